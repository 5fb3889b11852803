"""The root file system of a node as an operator has it: Debian 12 with systemd as its init, QEMU and podman, and
nothing of vmpin. It is booted by `boot`, with files laid over it (installation.py)."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lab import cache
from lab.rootfs import apt_environment, in_chroot, machine_mirror

VERSION = 1
SUITE = "bookworm"
BASE = ("systemd", "systemd-sysv", "dbus", "python3", "kmod", "procps", "iproute2")
#: python3-venv: vmpin as a wheel. podman: it runs the hook.
PACKAGES = ("python3-venv", "qemu-system-x86", "podman", "crun", "busybox-static")
_DPKG = """\
force-unsafe-io
path-exclude=/usr/share/qemu/edk2-*
"""


def recipe() -> object:
    return {"version": VERSION, "suite": SUITE, "base": BASE, "packages": PACKAGES, "dpkg": _DPKG}


@contextlib.contextmanager
def debian(fresh: bool = False) -> Iterator[Path]:
    """The root file system, built if it is not there; nothing writes to it."""
    with cache.entry("debian", recipe(), _make, fresh) as path:
        yield path / "root"


def _make(path: Path, log: Path) -> None:
    cache.need("debootstrap", "unshare", "setpriv")
    root, environment, mirror = path / "root", apt_environment(), machine_mirror()
    cache.run(["debootstrap", "--variant=minbase", f"--include={','.join(BASE)}", SUITE, str(root),
               *([mirror] if mirror else [])], log, environment)
    (root / "etc/dpkg/dpkg.cfg.d/lab").write_text(_DPKG)
    in_chroot(root, ["apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES], log, environment)
    in_chroot(root, ["apt-get", "clean"], log, environment)
    with (path / "packages").open("wb") as packages:
        subprocess.run(["chroot", root, "dpkg-query", "--show"], stdout=packages, check=True)
