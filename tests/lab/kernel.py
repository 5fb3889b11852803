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

from lab import cache, cpio
from lab.errors import LabError
from lab.packages import Packages, unpack
from lab.rootfs import mirror_of
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
_INIT = Path(__file__).with_name("initramfs-init")


@dataclass(frozen=True)
class Built:
    image: Path
    initrd: Path | None
    #: Directories to lay over the root file system: the modules, and what else is to be in the node.
    layers: tuple[Path, ...]
    version: str
    #: The root file system whose QEMU emulates the node; None: the node's own.
    emulator: Path | None = None


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
        yield Built(path / "vmlinuz", initrd if initrd.exists() else None, (path / "layer",),
                    (path / "version").read_text().strip())


def _make(path: Path, which: Kernel, root: Path, log: Path) -> None:
    cache.need("apt-get", "dpkg-deb", "depmod", "modprobe", "unshare", "setpriv")
    unpacked = path / "unpacked"
    unpacked.mkdir()
    deb = image_package(Packages(path / "apt", which.suite, mirror_of(root), log), PACKAGE)
    unpack(deb, unpacked, log, (f"*/kernel/{directory}" for directory in _USELESS))
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
    early = modules_for(EARLY, layer / "usr", release)
    if early:
        (path / "initrd").write_bytes(_initramfs(root, early))
    (path / "version").write_text(f"{deb.name.partition('_')[2].rpartition('_')[0]} ({release})\n")
    shutil.rmtree(unpacked)
    shutil.rmtree(path / "apt")


def image_package(packages: Packages, metapackage: str) -> Path:
    """Fetch the kernel that a metapackage names."""
    names = packages.depends(metapackage)
    image = next((name for name in names if name.startswith("linux-image-")), None)
    if image is None:
        raise LabError(f"{metapackage} names no kernel: {names}")
    return packages.download(image)


def modules_for(names: Sequence[str], base: Path, release: str) -> list[Path]:
    """Modules and what they need, in the order to load them; [] if all are built in.

    :param base: lib/modules/RELEASE lies in it, as depmod left it.
    """
    found: list[Path] = []
    for name in names:
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
    return cpio.archive([
        *((name, cpio.DIRECTORY, b"") for name in ("bin", "dev", "proc", "root", "modules")),
        ("bin/busybox", cpio.PROGRAM, busybox.read_bytes()), *in_order(modules),
        ("init", cpio.PROGRAM, _INIT.read_bytes())])


def in_order(modules: Sequence[Path]) -> Iterator[tuple[str, int, bytes]]:
    """Modules as files of an initramfs, named so that `insmod modules/*` has them in their order."""
    for number, path in enumerate(modules):
        raw = path.read_bytes()
        yield (f"modules/{number:02}-{path.name.partition('.')[0]}.ko", cpio.FILE,
               lzma.decompress(raw) if path.suffix == ".xz" else raw)
