"""The root file system of the node: a minimal Debian with Python, pytest, QEMU and container runtimes.

Which mirror it comes from is never said here: the machine's own apt configuration knows, or else debootstrap does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from lab import cache
from lab.errors import LabError

#: Counted up when the way it is built changes and nothing else shows it.
VERSION = 1
SUITE = "trixie"
#: With debootstrap, which takes no alternatives.
BASE = ("python3", "iproute2", "kmod", "procps", "util-linux", "numactl")
#: With apt, without what is only recommended.
PACKAGES = (
    "qemu-system-x86", "runc", "crun", "containerd", "busybox-static", "irqbalance",
    "python3-pytest", "python3-yaml", "python3-rich", "python3-hypothesis", "python3-psutil",
    "python3-protobuf", "python3-grpcio", "python3-tenacity", "python3-prometheus-client",
    # Neither tenacity nor jinja2 is needed any more. They go with the next change: each has the image built anew.
    "python3-pyroute2", "python3-jinja2",
)
#: Python packages that Debian does not have, for pip.
PYTHON = ("qemu.qmp>=0.0.3",)
#: dpkg: without waiting for the disk, and without documentation.
_DPKG = """\
force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/qemu/edk2-*
"""


def recipe() -> object:
    return {"version": VERSION, "suite": SUITE, "base": BASE, "packages": PACKAGES, "python": PYTHON, "dpkg": _DPKG}


@contextlib.contextmanager
def rootfs(fresh: bool = False) -> Iterator[Path]:
    """The root file system, built if it is not there; nothing writes to it."""
    with cache.entry("rootfs", recipe(), _make, fresh) as path:
        yield path / "root"


def _make(path: Path, log: Path) -> None:
    cache.need("debootstrap", "apt-get", "unshare", "setpriv")
    root = path / "root"
    environment = apt_environment()
    mirror = machine_mirror()
    cache.run(["debootstrap", "--variant=minbase", f"--include={','.join(BASE)}", SUITE, str(root),
               *([mirror] if mirror else [])], log, environment)
    (root / "etc/dpkg/dpkg.cfg.d/lab").write_text(_DPKG)
    policy = root / "usr/sbin/policy-rc.d"  # no service is started in a chroot
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    # The package lists that debootstrap fetched are still there.
    in_chroot(root, ["apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES], log, environment)
    _python_packages(root, log)
    in_chroot(root, ["apt-get", "clean"], log, environment)
    with (path / "packages").open("wb") as packages:
        subprocess.run(["chroot", root, "dpkg-query", "--show"], stdout=packages, check=True)


def _python_packages(root: Path, log: Path) -> None:
    """Into the node's Python: wheels of pure Python, which any pip can unpack."""
    (target,) = (root / "usr/local/lib").glob("python3.*/dist-packages")
    version = target.parent.name.removeprefix("python")
    cache.run([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--target", str(target),
               "--no-deps", "--no-compile", "--only-binary=:all:", "--python-version", version, *PYTHON], log)
    in_chroot(root, [f"python{version}", "-m", "compileall", "-q", f"/{target.relative_to(root)}"], log)


def in_chroot(root: Path, argv: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
    base = environment if environment is not None else dict(os.environ)
    cache.run(["chroot", str(root), *argv], log, base | {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive"})


def emulator(root: Path) -> list[str]:
    """The node's own QEMU, 10.0, run here: TCG of 7.2, which Debian 12 has, may keep the translation of an instruction
    that another CPU was just writing, and a kernel then dies of an int3 that is not there any more, or hangs."""
    usr = root / "usr"
    return [str(usr / "lib64/ld-linux-x86-64.so.2"), "--library-path", str(usr / "lib/x86_64-linux-gnu"),
            str(usr / "bin/qemu-system-x86_64"), "-L", str(usr / "share/qemu"), "-L", str(usr / "share/seabios")]


def machine_mirror() -> str:
    """The mirror from which this machine takes its own Debian; "" when it takes none from a plain one."""
    codename = ""
    with contextlib.suppress(OSError):
        for line in Path("/etc/os-release").read_text().splitlines():
            key, _, value = line.partition("=")
            if key == "VERSION_CODENAME":
                codename = value.strip('"')
    try:
        found = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"],
                               capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    debian = _is_debian()
    for line in found.splitlines():
        uri, release, component = line.rsplit(" ", 2)
        if debian and (release, component) == (codename, "main") and uri.startswith(("http://", "https://", "file:")):
            return uri
    return ""


def _is_debian() -> bool:
    try:
        return "ID=debian" in Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return False


def mirror_of(root: Path) -> str:
    """The mirror that a root file system was made from: debootstrap wrote it down."""
    for line in (root / "etc/apt/sources.list").read_text().splitlines():
        words = [word for word in line.split() if not word.startswith("[")]
        if words[:1] == ["deb"] and len(words) >= 3:
            return words[1]
    raise LabError(f"{root}/etc/apt/sources.list names no mirror")


def apt_environment() -> dict[str, str]:
    """This process's environment, with apt's proxy for those that do not read apt's configuration."""
    environment = dict(os.environ)
    for scheme in ("http", "https"):
        found = subprocess.run(["apt-config", "shell", "PROXY", f"Acquire::{scheme}::Proxy"], capture_output=True,
                               text=True, check=False).stdout.strip()
        if found.startswith("PROXY='"):
            environment.setdefault(f"{scheme}_proxy", found[len("PROXY='"):-1])
    return environment
