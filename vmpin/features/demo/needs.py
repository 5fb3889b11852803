"""The requirements of the demo: tools with their Debian packages, root, two CPUs."""

import os
import shutil
import struct
from dataclasses import dataclass

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
    """The required tools. :raises VmpinError: with the missing ones and how to get them."""
    lacking = missing(path)
    if lacking:
        raise VmpinError(f"the demo needs {', '.join(lacking)}", f"apt-get install {' '.join(lacking)}")
    for name in ("unshare", "sh"):
        if find(name, path) is None:
            raise VmpinError(f"the demo needs {name}", "apt-get install util-linux dash")
    if os.geteuid() != 0:
        raise VmpinError("the demo needs root: it makes containers and pins threads", "`sudo vmpin demo`")
    cpus = Sysfs(sys_root).online()
    cgroup = Cgroups().cpuset_of(os.getpid())
    if cgroup is not None and cgroup.effective:
        cpus &= cgroup.effective
    if len(cpus) < 2:
        raise VmpinError(f"the demo needs two CPUs, a shared and an exclusive one; available: {cpus or 'none'}",
                         "run it on a machine (or in a cgroup) with at least two online CPUs")
    qemu, crun, busybox = map(str, _programs(path).values())
    return Tools(qemu, crun, busybox, cpus)
