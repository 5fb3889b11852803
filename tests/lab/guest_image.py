"""What a VM boots that is to be a guest: Debian's cloud kernel and an initramfs with busybox and Python. Built once.

    layer/lab/guest/vmlinuz  layer/lab/guest/initrd  version        (layer: a layer of the node's root)

Only packages are in it. The init, what the tests do in the guest and vmpin's agent come as a second archive with every
boot (real_guest), so that none of them makes it another image.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab import cache, cpio
from lab.kernel import image_package, in_order, modules_for
from lab.packages import Packages, unpack
from lab.rootfs import emulator, in_chroot, mirror_of, rootfs

VERSION = 1
#: Its kernel, 6.1, sees hotplugged vCPUs under TCG, which one from 6.9 on does not, and has both kinds of cgroups.
SUITE = "bookworm"
KERNEL = "linux-image-cloud-amd64"
#: dpkg -x of these is enough for Python's standard library, less what links with other libraries.
PACKAGES = ("busybox-static", "libc6", "zlib1g", "libexpat1", "python3.11-minimal", "libpython3.11-minimal",
            "libpython3.11-stdlib")
MODULES = ("virtio_pci", "virtio_console", "vmw_vsock_virtio_transport", "vsock_loopback")
PYTHON = "usr/bin/python3.11"
_LIBRARY = "usr/lib/python3.11"
#: Of the standard library: what is never run in a guest, or what needs libraries that are not there.
_WITHOUT = ("config-3.11-x86_64-linux-gnu", "distutils", "idlelib", "lib2to3", "pydoc_data", "sqlite3", "tkinter",
            "turtledemo", "unittest", "xml", "xmlrpc", "wsgiref", "curses", "dbm", "lib-dynload/_bz2*",
            "lib-dynload/_ctypes*", "lib-dynload/_curses*", "lib-dynload/_dbm*", "lib-dynload/_hashlib*",
            "lib-dynload/_lzma*", "lib-dynload/_sqlite3*", "lib-dynload/_ssl*", "lib-dynload/_uuid*",
            "lib-dynload/nis*", "lib-dynload/readline*", "lib-dynload/_codecs_*")
_LIBRARIES = ("libc.so.6", "libm.so.6", "libz.so.1", "libexpat.so.1")
_MACHINE = "lib/x86_64-linux-gnu"


@dataclass(frozen=True)
class GuestImage:
    kernel: Path
    initrd: Path
    #: The beginning of the command line that boots it.
    emulator: tuple[str, ...]


#: In the lab's node: `layer` is laid over its root.
IN_NODE = GuestImage(Path("/lab/guest/vmlinuz"), Path("/lab/guest/initrd"), ("qemu-system-x86_64",))


def recipe() -> object:
    return {"version": VERSION, "suite": SUITE, "kernel": KERNEL, "packages": PACKAGES, "modules": MODULES,
            "without": _WITHOUT, "libraries": _LIBRARIES}


@contextlib.contextmanager
def guest_layer(mirror: str, fresh: bool = False) -> Iterator[Path]:
    """The image as a layer of the node's root, built if it is not there."""
    def make(path: Path, log: Path) -> None:
        _make(path, mirror, log)

    with cache.entry("guest", recipe(), make, fresh) as path:
        yield path / "layer"


@contextlib.contextmanager
def guest_image() -> Iterator[GuestImage]:
    """The image, and the node's root file system for its QEMU; built if they are not there."""
    cache.find_system_tools()
    with rootfs() as root, guest_layer(mirror_of(root)) as layer:
        kernel, initrd = (layer / path.relative_to("/") for path in (IN_NODE.kernel, IN_NODE.initrd))
        yield GuestImage(kernel, initrd, tuple(emulator(root)))


def _make(path: Path, mirror: str, log: Path) -> None:
    cache.need("apt-get", "dpkg-deb", "depmod", "modprobe", "unshare", "setpriv")
    packages = Packages(path / "apt", SUITE, mirror, log)
    kernel, tree = path / "kernel", path / "tree"
    for directory, debs in ((kernel, [image_package(packages, KERNEL)]),
                            (tree, [packages.download(name) for name in PACKAGES])):
        directory.mkdir()
        for deb in debs:
            unpack(deb, directory, log, ("./usr/share/*",))
    (release,) = os.listdir(kernel / "lib/modules")
    cache.run(["depmod", "-b", str(kernel), release], log)
    guest = path / "layer/lab/guest"
    guest.mkdir(parents=True)
    shutil.move(kernel / f"boot/vmlinuz-{release}", guest / "vmlinuz")
    modules = modules_for(MODULES, kernel, release)
    (guest / "initrd").write_bytes(cpio.archive([
        *((name, cpio.DIRECTORY, b"") for name in ("dev", "proc", "sys", "run", "tmp", "modules")),
        *_programs(tree, log), *in_order(modules)]))
    (path / "version").write_text("\n".join(sorted(deb.name for deb in (path / "apt").glob("*.deb"))) + "\n")
    for directory in (kernel, tree, path / "apt"):
        shutil.rmtree(directory)


def _programs(tree: Path, log: Path) -> Iterator[tuple[str, int, bytes]]:
    """busybox, and Python with its library compiled: nothing is compiled in the guest, where it takes seconds."""
    in_chroot(tree, [f"/{PYTHON}", "-S", "-E", "-m", "compileall", "-q", "-b", "--invalidation-mode",
                     "unchecked-hash", f"/{_LIBRARY}"], log)
    for pattern in _WITHOUT:
        for found in (tree / _LIBRARY).glob(pattern):
            cache.remove(found) if found.is_dir() else found.unlink()
    wanted = [tree / "bin/busybox", tree / PYTHON, tree / "lib64/ld-linux-x86-64.so.2",
              *(_library(tree, name) for name in _LIBRARIES),
              *(path for path in sorted((tree / _LIBRARY).rglob("*")) if path.suffix in (".pyc", ".so")
                and "__pycache__" not in path.parts)]
    directories = {parent for path in wanted for parent in path.relative_to(tree).parents}
    for directory in sorted(directories - {Path()}):
        yield str(directory), cpio.DIRECTORY, b""
    for path in wanted:
        yield str(path.relative_to(tree)), cpio.PROGRAM if path.suffix != ".pyc" else cpio.FILE, path.read_bytes()


def _library(tree: Path, name: str) -> Path:
    """By the name that programs ask for it, wherever the package has it (the links within a package are relative)."""
    return next(path for path in (tree / _MACHINE / name, tree / "usr" / _MACHINE / name) if path.exists())
