"""cpuset cgroups, version 1, 2 and both (hybrid): which CPUs a thread's cgroup leaves it. Read only.

Everything answers None for what is not there: gone, hidden by a cgroup namespace, or not to be understood.
"""

import enum
import errno
import logging
import os
import re
from pathlib import Path
from typing import NamedTuple

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.host.procfs import Procfs, names_in, read_file

logger = logging.getLogger(__name__)

_OCTAL = re.compile(r"\\([0-7]{3})")


def usage(path: str) -> int | None:
    """CPU time in ns of the cgroup whose file that is (`Cgroups.usage_file`); None where it is gone. In version 2 the
    kernel keeps it for every cgroup, its controllers aside."""
    raw = read_file(path, 4096)
    if not raw:
        return None
    if path.endswith("/cpu.stat"):
        name, value = raw.split(b"\n", 1)[0].split()
        return int(value) * 1000 if name == b"usage_usec" else None
    return int(raw)


class Layout(enum.StrEnum):
    """Which hierarchies are mounted, as `vmpin status` shows it."""

    V1 = "v1"
    V2 = "v2"
    #: The cpuset controller is in v1, v2 is mounted besides.
    HYBRID = "hybrid"
    NONE = "none"


class CpusetCgroup(NamedTuple):
    """A cgroup as the cpuset controller sees it. `configured` is what was written to it (cpuset.cpus), None where
    nothing was; it may name CPUs that are offline or not the parent's. `effective` is what its threads can have now:
    empty only where no thread can live."""

    path: Path
    configured: CpuSet | None
    effective: CpuSet


class _Mount(NamedTuple):
    """A hierarchy: where it is mounted, and which of its cgroups is seen there (``/`` but for bind mounts).
    `prefix` is what the names of its cpuset files begin with: "" in v1 with the option noprefix, which the kernel
    takes for cpuset alone (kernel/cgroup/cgroup-v1.c: check_cgroupfs_options)."""

    point: str
    top: str = "/"
    prefix: str = "cpuset."

    def locate(self, cgroup: str) -> Path | None:
        """The directory of a cgroup named as in /proc/PID/cgroup, None when it is not below the mount: seen from a
        cgroup namespace, one outside of it is `/../x`, and so may `top` be; what is left without it must go down."""
        parts = [part for part in cgroup.split("/") if part]
        top = [part for part in self.top.split("/") if part]
        if not cgroup.startswith("/") or parts[: len(top)] != top:
            return None
        below = parts[len(top) :]
        if ".." in below or "." in below or "\0" in cgroup:
            return None
        return Path(self.point, *below)


class Cgroups:
    """The cgroup hierarchies mounted at or below `root`; the mounts are read once."""

    def __init__(self, root: str | Path = "/sys/fs/cgroup", proc: Procfs | None = None) -> None:
        self.root = os.path.normpath(root)
        self.proc = proc or Procfs()
        self._v1, self._cpuacct, self._v2 = self._mounted()
        if self._v1 is None and self._cpuacct is None and self._v2 is None:
            self._v1, self._cpuacct, self._v2 = self._found()

    @property
    def layout(self) -> Layout:
        if self._v1 is not None:
            return Layout.V1 if self._v2 is None else Layout.HYBRID
        return Layout.NONE if self._v2 is None else Layout.V2

    def cpuset_path(self, pid: int, tid: int | None = None) -> Path | None:
        """The directory of the cpuset cgroup of a thread (the main thread, without `tid`), as v1 moves single threads,
        and on v2 cpuset is a threaded controller; None: gone or hidden."""
        location = self._find(pid, tid)
        return None if location is None else location[0]

    def is_top(self, path: Path) -> bool:
        """Whether this is the topmost cgroup of its hierarchy, which belongs to no container."""
        return any(mount is not None and os.fspath(path) == mount.point for mount in (self._v1, self._v2))

    def cpus_file(self, path: Path) -> Path:
        """The file of a cpuset cgroup that its CPUs are written to."""
        return path / f"{self._v1.prefix if self._v1 is not None else 'cpuset.'}cpus"

    def cpuset_of(self, pid: int, tid: int | None = None) -> CpusetCgroup | None:
        """Return the CPUs that a thread's cpuset cgroup leaves it."""
        location = self._find(pid, tid)
        if location is None:
            return None
        path, mount = location
        try:
            return self._read_v2(path, mount) if mount is self._v2 else self._read_v1(path, mount.prefix)
        except CpuSetError as err:
            logger.debug("ignored cgroup=%s: %s", path, err)
            return None

    def usage_file(self, pid: int, container: str = "") -> str | None:
        """The file that counts the CPU time of a process's cgroup and all below it; None for a topmost one, which
        belongs to no container, and for what is hidden or gone.
        :param container: the id of the container that the process is in: its cgroup is then taken, and not one below
            it that the container made itself, as systemd and nested runtimes do."""
        raw = read_file(f"{self.proc.root}/{pid}/cgroup")
        v2_file = None
        for line in os.fsdecode(raw or b"").split("\n"):
            number, _, rest = line.partition(":")
            controllers, _, cgroup = rest.partition(":")
            cgroup = _cut_after(cgroup, container)
            if "cpuacct" in controllers.split(","):
                path = None if self._cpuacct is None else self._cpuacct.locate(cgroup)
                return None if path is None or not cgroup.strip("/") else f"{path}/cpuacct.usage"
            if number == "0" and not controllers and self._v2 is not None and cgroup.strip("/"):
                path = self._v2.locate(cgroup)
                v2_file = None if path is None or self.is_top(path) else f"{path}/cpu.stat"
        return v2_file

    def _find(self, pid: int, tid: int | None) -> tuple[Path, _Mount] | None:
        """The cgroup's directory, and the hierarchy that rules: v1 where the cpuset controller is in it."""
        raw = read_file(f"{self.proc.root}/{pid}/task/{pid if tid is None else tid}/cgroup")
        if raw is None:
            return None
        mount, unified = self._v2, None
        # Not splitlines(): a cgroup's name may hold any control character but the newline, and so forge a line.
        for line in os.fsdecode(raw).split("\n"):
            # A path may hold colons: cri-containerd's are kubepods-pod1.slice:cri-containerd:ID.
            number, _, rest = line.partition(":")
            controllers, _, cgroup = rest.partition(":")
            if "cpuset" in controllers.split(","):
                mount, unified = self._v1, cgroup
                break
            if number == "0" and not controllers:
                unified = cgroup
        if unified is None or mount is None:
            return None
        path = mount.locate(unified)
        return None if path is None else (path, mount)

    def _read_v1(self, path: Path, prefix: str) -> CpusetCgroup | None:
        configured, effective = _list(f"{path}/{prefix}cpus"), _list(f"{path}/{prefix}effective_cpus")
        if configured is None:
            return None
        return CpusetCgroup(path, configured or None, configured if effective is None else effective)

    def _read_v2(self, path: Path, mount: _Mount) -> CpusetCgroup | None:
        """A cgroup whose parent does not pass on the cpuset controller has no cpuset files: an ancestor rules it."""
        configured = _list(f"{path}/cpuset.cpus") or None  # the root cgroup has none
        at = path
        while True:
            effective = _list(f"{at}/cpuset.cpus.effective")
            # Without this a cgroup just removed would take on its parent's CPUs.
            if effective is None and at == path and not path.is_dir():
                return None
            if effective is not None:
                return CpusetCgroup(path, configured, effective)
            if os.fspath(at) == mount.point or at == at.parent:
                return None  # no cpuset controller in this hierarchy
            at = at.parent

    def _mounted(self) -> tuple[_Mount | None, _Mount | None, _Mount | None]:
        """Read from the mount table the v1 hierarchies with cpuset and with cpuacct (often one), and the v2
        hierarchy; of several mounts of one, the whole one. A v1 hierarchy is known by the controllers in its options:
        its directory may have any name, and the kernel lists them in another order in /proc/PID/cgroup."""
        cpuset: list[_Mount] = []
        cpuacct: list[_Mount] = []
        unified: list[_Mount] = []
        try:
            # Not read_file(): one read of this file gives a page of it, and a node's mounts take many.
            table = Path(f"{self.proc.root}/self/mountinfo").read_bytes()
        except OSError as err:
            logger.debug("no mount table: %s", err)
            return None, None, None
        # The table has mounts by their real paths; a link to the directory of the mounts is none of them.
        tops = {self.root.rstrip("/"), os.path.realpath(self.root).rstrip("/")}
        for line in os.fsdecode(table).split("\n"):
            before, _, after = line.partition(" - ")  # optional fields end there (proc_pid_mountinfo(5))
            fields, kind = before.split(" "), after.split(" ")
            if len(fields) < 6 or len(kind) < 3:
                continue
            options = kind[2].split(",")
            mount = _Mount(_unescaped(fields[4]), _unescaped(fields[3]), "" if "noprefix" in options else "cpuset.")
            if not any(mount.point == top or mount.point.startswith(f"{top}/") for top in tops):
                continue
            if kind[0] == "cgroup2":
                unified.append(mount)
            for controller, mounts in (("cpuset", cpuset), ("cpuacct", cpuacct)):
                if kind[0] == "cgroup" and controller in options:
                    mounts.append(mount)
        return _whole(cpuset), _whole(cpuacct), _whole(unified)

    def _found(self) -> tuple[_Mount | None, _Mount | None, _Mount | None]:
        """The same from the files alone, where the mount table does not name them: a host's under another path."""
        points = [f"{self.root}/{name}" for name in names_in(self.root)]
        # The directory of a hierarchy is named by its controllers, in any order.
        cpuacct = next((_Mount(point) for point in points if "cpuacct" in point.rpartition("/")[2].split(",")
                        or os.path.exists(f"{point}/cpuacct.usage")), None)
        if os.path.exists(f"{self.root}/cgroup.controllers"):
            return None, cpuacct, _Mount(self.root)
        cpuset = next((_Mount(point, prefix=prefix) for point in points for prefix, sign in (
            ("cpuset.", "cpuset.cpus"), ("", "effective_cpus")) if os.path.exists(f"{point}/{sign}")), None)
        unified = next((_Mount(point) for point in points if os.path.exists(f"{point}/cgroup.controllers")), None)
        return cpuset, cpuacct, unified


def _cut_after(cgroup: str, container: str) -> str:
    """A cgroup's path up to the first part that is named by a container's id, as runtimes do it (`ID`,
    `crio-ID.scope`, `kubepods-pod1.slice:cri-containerd:ID`); the whole path where there is none."""
    parts = cgroup.split("/")
    for at, part in enumerate(parts if container else (), start=1):
        before = part.removesuffix(".scope").removesuffix(container)
        if before + container == part.removesuffix(".scope") and before[-1:] in ("", "-", ":"):
            return "/".join(parts[:at])
    return cgroup


def _whole(mounts: list[_Mount]) -> _Mount | None:
    return min(mounts, key=lambda mount: (len(mount.top), len(mount.point)), default=None)


def _unescaped(field: str) -> str:
    """A path of mountinfo: space, tab, newline and backslash are written `\\040` and so on."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def _list(path: str) -> CpuSet | None:
    """A CPU list, None when there is no such file. :raises CpuSetError: the file holds something else."""
    try:
        raw = read_file(path)
    except OSError as err:
        # kernfs returns ENODEV for a file of a cgroup that was removed since it was opened.
        if err.errno != errno.ENODEV:
            logger.debug("ignored file=%s: %s", path, err)
        return None
    return None if raw is None else CpuSet.parse(raw.decode("ascii", "replace"))
