"""The node's kernels: Debian's own packages, unpacked, with an initramfs where virtiofs is a module.

    vmlinuz  initrd (not always)  version  layer/usr/lib/modules/…      (a layer of the node's root)
"""

from __future__ import annotations

import contextlib
import lzma
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import cache
from lab.errors import LabError
from lab.rootfs import apt_environment, mirror_of
from lab.variant import Kernel

VERSION = 1
#: Not the cloud flavour: it has neither KVM nor vhost.
PACKAGE = "linux-image-amd64"
#: What the root file system needs before it can load modules itself.
EARLY = ("virtio_pci", "virtiofs")
#: Modules for hardware that the node never has: two thirds of all.
_USELESS = ("drivers/gpu", "drivers/media", "drivers/net/ethernet", "drivers/net/wireless", "drivers/infiniband",
            "drivers/iio", "drivers/scsi", "drivers/hid", "drivers/staging", "drivers/usb", "sound", "fs/xfs",
            "fs/ocfs2", "fs/btrfs", "fs/f2fs")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_INIT = Path(__file__).with_name("initramfs-init")


@dataclass(frozen=True)
class Built:
    image: Path
    initrd: Path | None
    #: The modules, as a directory to lay over the root file system.
    layer: Path
    version: str


def recipe(kernel: Kernel) -> object:
    return {"version": VERSION, "suite": kernel.suite, "package": PACKAGE, "early": EARLY, "useless": _USELESS,
            "init": _INIT.read_text()}


@contextlib.contextmanager
def kernel(which: Kernel, root: Path, fresh: bool = False) -> Iterator[Built]:
    """A kernel, built if it is not there. `root` gives the mirror, and the busybox of an initramfs."""
    def make(path: Path, log: Path) -> None:
        _make(path, which, root, log)

    with cache.entry(f"kernel-{which}", recipe(which), make, fresh) as path:
        initrd = path / "initrd"
        yield Built(path / "vmlinuz", initrd if initrd.exists() else None, path / "layer",
                    (path / "version").read_text().strip())


def _make(path: Path, which: Kernel, root: Path, log: Path) -> None:
    cache.need("apt-get", "dpkg-deb", "depmod", "modprobe", "unshare", "setpriv")
    unpacked = path / "unpacked"
    unpacked.mkdir()
    deb = _download(path / "apt", which, mirror_of(root), log)
    cache.run(["sh", "-c", 'dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" '
               + " ".join(f"--exclude='*/kernel/{directory}'" for directory in _USELESS), "sh", str(deb),
               str(unpacked)], log)
    modules = next((found for found in (unpacked / "lib/modules", unpacked / "usr/lib/modules") if found.is_dir()),
                   None)
    if modules is None:
        raise LabError(f"{deb.name} has no modules")
    (release,) = os.listdir(modules)
    layer = path / "layer"
    (layer / "usr/lib").mkdir(parents=True)
    modules.rename(layer / "usr/lib/modules")
    shutil.move(unpacked / f"boot/vmlinuz-{release}", path / "vmlinuz")
    (unpacked / f"boot/config-{release}").rename(path / "config")
    cache.run(["depmod", "-b", str(layer / "usr"), release], log)
    early = _early_modules(layer / "usr", release)
    if early:
        (path / "initrd").write_bytes(_initramfs(root, early))
    (path / "version").write_text(f"{deb.name.partition('_')[2].rpartition('_')[0]} ({release})\n")
    shutil.rmtree(unpacked)
    shutil.rmtree(path / "apt")


def _download(work: Path, which: Kernel, mirror: str, log: Path) -> Path:
    """Fetch the kernel that the release's metapackage names, with apt: it knows proxies and checks signatures.

    Its lists and sources are its own, as the machine may run another release.
    """
    for directory in ("lists/partial", "cache/archives/partial", "etc"):
        (work / directory).mkdir(parents=True)
    (work / "status").touch()
    signed = f"[signed-by={_KEYRING}] " if os.path.exists(_KEYRING) else ""
    (work / "etc/sources.list").write_text(f"deb {signed}{mirror} {which.suite} main\n")
    options = [
        f"Dir::State::lists={work}/lists", f"Dir::State::status={work}/status", f"Dir::Cache={work}/cache",
        f"Dir::Etc::sourcelist={work}/etc/sources.list", "Dir::Etc::sourceparts=/dev/null",
        "Dir::Etc::preferences=/dev/null", "Dir::Etc::preferencesparts=/dev/null", "APT::Architecture=amd64",
        "APT::Architectures=amd64", "APT::Sandbox::User=root", "Acquire::Languages=none",
    ]
    flags = [word for option in options for word in ("-o", option)]
    cache.run(["apt-get", *flags, "update", "--error-on=any"], log, apt_environment())
    shown = subprocess.run(["apt-cache", *flags, "depends", "--important", PACKAGE], capture_output=True, text=True,
                           check=True).stdout
    names = [line.partition("Depends:")[2].strip() for line in shown.splitlines() if "Depends:" in line]
    image = next((name for name in names if name.startswith("linux-image-")), None)
    if image is None:
        raise LabError(f"{PACKAGE} of {which.suite} names no kernel: {shown}")
    cache.run(["sh", "-c", 'cd "$1" && shift && exec apt-get "$@"', "sh", str(work), *flags, "download", image], log,
              apt_environment())
    (deb,) = work.glob("linux-image-*.deb")
    return deb


def _early_modules(base: Path, release: str) -> list[Path]:
    """The modules needed before the root file system is there, in the order to load them; [] if all are built in."""
    found: list[Path] = []
    for name in EARLY:
        shown = subprocess.run(["modprobe", "--dirname", str(base), "--set-version", release, "--config", "/dev/null",
                                "--show-depends", name], capture_output=True, text=True, check=False)
        if shown.returncode != 0:
            raise LabError(f"kernel {release} has no {name}: {shown.stderr.strip()}")
        for line in shown.stdout.splitlines():
            word, _, path = line.strip().partition(" ")
            if word == "insmod" and Path(path) not in found:
                found.append(Path(path))
    return found


def _initramfs(root: Path, modules: Sequence[Path]) -> bytes:
    """A cpio archive ("newc") with busybox, the modules and an init that loads them and goes on to the real root."""
    busybox = next(path for path in (root / "usr/bin/busybox", root / "bin/busybox") if path.exists())
    names = []
    files: list[tuple[str, int, bytes]] = [(name, 0o40755, b"") for name in ("bin", "dev", "proc", "root", "modules")]
    files.append(("bin/busybox", 0o100755, busybox.read_bytes()))
    for number, path in enumerate(modules):
        raw = path.read_bytes()
        names.append(f"modules/{number:02}-{path.name.partition('.')[0]}.ko")
        files.append((names[-1], 0o100644, lzma.decompress(raw) if path.suffix == ".xz" else raw))
    files.append(("init", 0o100755, _INIT.read_bytes()))
    return b"".join([*(_cpio(*file, number) for number, file in enumerate(files, 1)),
                     _cpio("TRAILER!!!", 0, b"", 0)])


def _cpio(name: str, mode: int, data: bytes, inode: int) -> bytes:
    raw = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + raw
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)
