"""The requirements of the demo: a place where containers can be made, tools with their Debian packages, two CPUs."""

import contextlib
import os
import secrets
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vmpin.cpuset import CpuSet
from vmpin.errors import VmpinError
from vmpin.host.cgroup import Cgroups
from vmpin.host.sysfs import Sysfs

_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"])
_PT_INTERP = 3


def find(name: str, path: str = _PATH) -> str | None:
    return shutil.which(name, path=path)


def is_static(program: str) -> bool:
    """True if a 64-bit ELF program names no dynamic loader (elf(5): no PT_INTERP program header)."""
    try:
        with open(program, "rb") as file:
            header = file.read(64)
            if header[:5] != b"\x7fELF\x02":
                return False
            order = "<" if header[5] == 1 else ">"
            (table,) = struct.unpack_from(f"{order}Q", header, 32)
            size, count = struct.unpack_from(f"{order}HH", header, 54)
            file.seek(table)
            headers = file.read(size * count)
        return all(struct.unpack_from(f"{order}I", headers, at * size)[0] != _PT_INTERP for at in range(count))
    except (OSError, struct.error):
        return False


def _programs(path: str) -> dict[str, str | None]:
    """Find each Debian package's program, None if missing. The busybox has to run in an empty root directory."""
    busybox = find("busybox", path)
    return {"qemu-system-x86": find("qemu-system-x86_64", path), "crun": find("crun", path),
            "busybox-static": busybox if busybox is not None and is_static(busybox) else None}


def missing(path: str = _PATH) -> list[str]:
    """The missing Debian packages. :param path: directories with programs, as in $PATH."""
    return [package for package, program in _programs(path).items() if program is None]


@dataclass(frozen=True)
class Tools:
    qemu: str
    crun: str
    busybox: str
    #: The CPUs this process's cgroup leaves it.
    cpus: CpuSet


def tools(path: str = _PATH, sys_root: str = "/sys") -> Tools:
    """The required tools. :raises VmpinError: with the missing ones and how to get them, or as `check_place`."""
    check_place(sys_root)
    lacking = missing(path)
    if lacking:
        raise VmpinError(f"the demo needs {', '.join(lacking)}", f"apt-get install {' '.join(lacking)}")
    qemu, crun, busybox = map(str, _programs(path).values())
    return Tools(qemu, crun, busybox, _cpus(sys_root))


def check_place(sys_root: str = "/sys") -> None:
    """Check what no package brings. :raises VmpinError: with everything that this place lacks."""
    lacks = list(_lacks(Path(sys_root)))
    if lacks:
        raise VmpinError(f"the demo needs {'; and '.join(what for what, _ in lacks)}",
                         "; ".join(dict.fromkeys(remedy for _, remedy in lacks)))


_ELSEWHERE = "run it on a machine of its own, or in a privileged container"


def _lacks(sys: Path) -> Iterator[tuple[str, str]]:
    """Yield each thing that the place lacks, with its remedy."""
    if os.geteuid() != 0:
        yield "root: it makes containers and pins threads", "run the same command as root"
        return
    try:
        own = os.readlink("/proc/self")
    except OSError:
        own = ""
    if own != str(os.getpid()):
        why = "it is of another pid namespace" if own else "nothing is mounted there"
        yield f"this pid namespace's own /proc: {why}", "mount -t proc proc /proc"
        return
    yield from _no_mounts(Path("/proc/self/mountinfo"))
    if not (sys / "devices").is_dir():
        yield f"{sys}: nothing is mounted there", f"mount -t sysfs sysfs {sys}"
        return
    yield from _no_cgroups(sys / "fs/cgroup")
    cpus = _cpus(str(sys))
    if len(cpus) < 2:
        yield (f"two CPUs, a shared and an exclusive one; available: {cpus or 'none'}",
               "run it on a machine (or in a cgroup) with at least two online CPUs")


def _no_mounts(mountinfo: Path) -> Iterator[tuple[str, str]]:
    """Containers have mounts of their own. The kernel makes none private, and moves no root, where / is no mount
    point (mount(2), pivot_root(2): EINVAL)."""
    if all(line.split(" ")[4:5] != ["/"] for line in mountinfo.read_text("utf-8", "replace").splitlines()):
        yield ("a / that is a mount point: in this chroot it is a plain directory, where no container can be made",
               "outside of it, `mount --bind DIRECTORY DIRECTORY` before chroot")
        return
    if (unshare := find("unshare")) is None or find("sh") is None:
        yield "unshare and sh", "apt-get install util-linux dash"
        return
    tried = subprocess.run([unshare, "--mount", "--propagation", "private", "true"], stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, check=False)
    if tried.returncode:
        yield f"mount namespaces: {tried.stderr.strip()}", _ELSEWHERE


def _no_cgroups(root: Path) -> Iterator[tuple[str, str]]:
    """Where crun makes the containers' cgroups: one is tried."""
    top = root / "cpuset" if (root / "cpuset").is_dir() else root
    if not (top / "cgroup.procs").exists():
        yield f"cgroups: none are mounted on {root}", f"mount -t cgroup2 cgroup2 {root}, or {_ELSEWHERE}"
        return
    with contextlib.suppress(FileNotFoundError):  # cgroup v1 has no such file
        controllers = (top / "cgroup.controllers").read_text().split()
        if "cpuset" not in controllers:
            yield f"the cgroup controller cpuset: {top} has {', '.join(controllers) or 'none'}", _ELSEWHERE
            return
    tried = top / f"vmpin-demo-{secrets.token_hex(4)}"
    try:
        tried.mkdir()
        tried.rmdir()
    except OSError as err:
        yield f"cgroups that can be written: {top}: {err.strerror}", _ELSEWHERE


def _cpus(sys_root: str) -> CpuSet:
    cpus = Sysfs(sys_root).online()
    cgroup = Cgroups().cpuset_of(os.getpid())
    return cpus & cgroup.effective if cgroup is not None and cgroup.effective else cpus
