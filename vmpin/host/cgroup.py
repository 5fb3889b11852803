"""cpuset cgroups of version 1, 2 and both (hybrid): which CPUs a thread's cgroup allows. Read only.

All functions return None for a cgroup that is missing: removed, hidden by a cgroup namespace, or unparsable.
"""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.host.procfs import Procfs, names_in, read_file
from vmpin.named_tuple import NamedTuple

logger = logging.getLogger(__name__)

#: The levels of a cgroup's path that are read. A container may nest some 2,000, each of which would be looked into; a
#: nested node's have 20.
_DEEPEST = 64
#: A process can move between cgroups of its own all the time.
_MOST_LOCATIONS = 4096
#: Those of v1 that are used.
_CONTROLLERS = "cpuset", "cpuacct", "memory", "hugetlb"


def usage(path: str) -> int | None:
    """CPU time of a cgroup in ns; None if the cgroup is gone. In version 2 every cgroup has it, whatever controllers
    are enabled. :param path: of `Cgroups.usage_file`."""
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
    """A cgroup of the cpuset controller. `configured` is the content of cpuset.cpus, None if it is empty; it may
    include CPUs that are offline or that the parent does not have. `effective` are the CPUs that its threads can use
    now; empty only in a cgroup that cannot hold threads."""

    path: Path
    configured: CpuSet | None
    effective: CpuSet


class _Mount(NamedTuple):
    """A mounted hierarchy: its mount point, and the cgroup that is mounted there (``/`` except for bind mounts).
    `prefix` is the prefix of the names of its cpuset files: "" in v1 with the mount option noprefix, which the kernel
    accepts for cpuset only (kernel/cgroup/cgroup-v1.c: check_cgroupfs_options)."""

    point: str
    top: str = "/"
    prefix: str = "cpuset."

    def locate(self, cgroup: str) -> Path | None:
        """The directory of a cgroup that is named as in /proc/PID/cgroup; None if it is not below this mount. In a
        cgroup namespace a cgroup outside of it is shown as `/../x`. `top` may have such a prefix as well, but the
        path below `top` must not contain `..`. Of one that is nested too deep, the ancestor at _DEEPEST."""
        parts = [part for part in cgroup.split("/") if part]
        top = [part for part in self.top.split("/") if part]
        if not cgroup.startswith("/") or parts[: len(top)] != top:
            return None
        below = parts[len(top) :]
        if ".." in below or "." in below or "\0" in cgroup:
            return None
        return Path(self.point, *below[:_DEEPEST])


class Cgroups:
    """The cgroup hierarchies mounted at or below `root`, and controllers of v1 that are only mounted elsewhere; the
    mounts are read once."""

    def __init__(self, root: str | Path = "/sys/fs/cgroup", proc: Procfs | None = None) -> None:
        self.root = os.path.normpath(root)
        self.proc = proc or Procfs()
        #: By controller in v1; by cgroup2, version 2.
        self._mounts = self._mounted()
        self._v1, self._v2 = self._mounts.get("cpuset"), self._mounts.get("cgroup2")
        #: By the content of a /proc/PID/cgroup, what `_located` made of it: a node has few different ones.
        self._locations: dict[bytes, tuple[Path, _Mount] | None] = {}

    @property
    def layout(self) -> Layout:
        if self._v1 is not None:
            return Layout.V1 if self._v2 is None else Layout.HYBRID
        return Layout.NONE if self._v2 is None else Layout.V2

    def cpuset_path(self, pid: int, tid: int | None = None) -> Path | None:
        """The directory of a thread's cpuset cgroup; None if it is gone or hidden. Threads of one process may be in
        different cgroups: v1 moves single threads, and in v2 cpuset is a threaded controller.
        :param tid: None for the main thread."""
        location = self._find(pid, tid)
        return None if location is None else location[0]

    def is_top(self, path: Path) -> bool:
        """Whether this is the topmost cgroup of its hierarchy, which belongs to no container."""
        return any(mount is not None and os.fspath(path) == mount.point for mount in (self._v1, self._v2))

    def cpus_file(self, path: Path) -> Path:
        """The file with a cpuset cgroup's configured CPUs (cpuset.cpus)."""
        return path / f"{self._v1.prefix if self._v1 is not None else 'cpuset.'}cpus"

    def cpuset_of(self, pid: int, tid: int | None = None) -> CpusetCgroup | None:
        """Return a thread's cpuset cgroup with its CPUs. :param tid: None for the main thread."""
        location = self._find(pid, tid)
        if location is None:
            return None
        return self._read(*location)

    def container_cpuset(self, pid: int, container: str) -> CpusetCgroup | None:
        """Return the cpuset cgroup that is named after a container, else that of its first process. The process may be
        in a cgroup below: systemd makes `init.scope`, crun `container`, and KubeVirt `housekeeping`, whose cpuset has
        few of the container's CPUs. CPUs that a partition below has are not effective above it.
        :param pid: of the first process."""
        leaf = self.cpuset_of(pid)
        own = None if leaf is None else Path(_cut_after(leaf.path.as_posix(), container))
        if leaf is None or own is None or own == leaf.path:
            return leaf
        top = self.reread(leaf._replace(path=own))
        if top is None or top.configured is None:
            return leaf
        return top._replace(effective=top.effective | leaf.effective)

    def reread(self, cgroup: CpusetCgroup) -> CpusetCgroup | None:
        """Read the CPUs of a cgroup again. None if it is gone."""
        mount = self._v1 or self._v2
        return None if mount is None else self._read(cgroup.path, mount)

    def _read(self, path: Path, mount: _Mount) -> CpusetCgroup | None:
        try:
            return self._read_v2(path, mount) if mount is self._v2 else self._read_v1(path, mount.prefix)
        except CpuSetError as err:
            logger.debug("ignored cgroup=%s: %s", path, err)
            return None

    def usage_file(self, pid: int, container: str = "") -> str | None:
        """The file with the CPU time of a process's cgroup and its descendants; None if the cgroup is hidden or gone,
        and for the topmost cgroup, which belongs to no container.
        :param container: the id of the process's container, to get the container's own cgroup and not one that was
            created below it, as systemd and nested runtimes do."""
        path, v1 = self.directory(pid, "cpuacct", container), self._mounts.get("cpuacct")
        if path is None:
            return None
        return f"{path}/{'cpu.stat' if v1 is None or not path.is_relative_to(v1.point) else 'cpuacct.usage'}"

    def directory(self, pid: int, controller: str, container: str = "") -> Path | None:
        """The directory of a process's cgroup in the hierarchy of a controller (_CONTROLLERS): v1 if it is mounted
        there, else v2. None if the cgroup is hidden or gone, and for the topmost cgroup.
        :param container: as of `usage_file`."""
        mount, cgroup = self._membership(read_file(f"{self.proc.root}/{pid}/cgroup") or b"", controller)
        if mount is None or not cgroup.strip("/"):
            return None
        path = mount.locate(_cut_after(cgroup, container))
        return None if path is None or (mount is self._v2 and self.is_top(path)) else path

    def _find(self, pid: int, tid: int | None) -> tuple[Path, _Mount] | None:
        """The cgroup's directory and its hierarchy: v1 if the cpuset controller is mounted there."""
        raw = read_file(f"{self.proc.root}/{pid}/task/{pid if tid is None else tid}/cgroup")
        if raw is None:
            return None
        if raw not in self._locations:
            if len(self._locations) >= _MOST_LOCATIONS:
                self._locations.clear()
            self._locations[raw] = self._located(raw)
        return self._locations[raw]

    def _located(self, raw: bytes) -> tuple[Path, _Mount] | None:
        mount, cgroup = self._membership(raw, "cpuset")
        path = None if mount is None else mount.locate(cgroup)
        return None if mount is None or path is None else (path, mount)

    def _membership(self, raw: bytes, controller: str) -> tuple[_Mount | None, str]:
        """The hierarchy with a controller, and the cgroup in it, by a /proc/PID/cgroup: v1 if it lists the controller,
        else v2. None for a hierarchy that is not mounted; "" for no cgroup."""
        unified = ""
        for number, controllers, cgroup in _memberships(raw):
            if controller in controllers:
                return self._mounts.get(controller), cgroup
            if number == "0" and controllers == [""]:
                unified = cgroup
        return self._v2, unified

    def _read_v1(self, path: Path, prefix: str) -> CpusetCgroup | None:
        configured, effective = _list(f"{path}/{prefix}cpus"), _list(f"{path}/{prefix}effective_cpus")
        if configured is None:
            return None
        return CpusetCgroup(path, configured or None, configured if effective is None else effective)

    def _read_v2(self, path: Path, mount: _Mount) -> CpusetCgroup | None:
        """Read a v2 cgroup. A cgroup whose parent does not enable the cpuset controller has no cpuset files; the
        nearest ancestor with such files determines its effective CPUs."""
        configured = _list(f"{path}/cpuset.cpus") or None  # the root cgroup has none
        at = path
        while True:
            effective = _list(f"{at}/cpuset.cpus.effective")
            # Otherwise a cgroup that was just removed would get its parent's CPUs.
            if effective is None and at == path and not os.path.isdir(path):  # may be too long
                return None
            if effective is not None:
                return CpusetCgroup(path, configured, effective)
            if os.fspath(at) == mount.point or at == at.parent:
                return None  # no cpuset controller in this hierarchy
            at = at.parent

    def _mounted(self) -> dict[str, _Mount]:
        """Read the mount table: the v1 hierarchies by controller (several may be of one hierarchy), and cgroup2; of
        several mounts of one hierarchy, the mount of its root. A v1 hierarchy is identified by the controllers in its
        mount options: its directory may have any name, and /proc/PID/cgroup lists the controllers in another order."""
        try:
            table = list(self.proc.mounts("self"))
        except OSError as err:
            logger.debug("no mount table: %s", err)
            table = []
        # The mount table has real paths, and `root` may be a symbolic link.
        tops = {self.root.rstrip("/"), os.path.realpath(self.root).rstrip("/")}
        below, elsewhere = dict[str, _Mount](), dict[str, _Mount]()
        for entry in sorted(table, key=lambda entry: (len(entry.top), len(entry.point))):
            mount = _Mount(entry.point, entry.top, "" if "noprefix" in entry.options else "cpuset.")
            inside = any(f"{entry.point}/".startswith(f"{top}/") for top in tops)
            for name in {"cgroup": entry.options, "cgroup2": ("cgroup2",)}.get(entry.kind, ()):
                if name in _CONTROLLERS or name == "cgroup2":
                    (below if inside else elsewhere).setdefault(name, mount)
        if not below and (by_files := self._by_files()):
            return by_files
        # Android and old distributions mount controllers of v1 in other places (/dev/cpuset, /cgroup/cpuset).
        return {name: mount for name, mount in elsewhere.items() if name != "cgroup2"} | below

    def _by_files(self) -> dict[str, _Mount]:
        """Find the hierarchies by the files below `root`, for a host's /sys that is visible under another path."""
        mounts: dict[str, _Mount] = {}
        for name in ("", *names_in(self.root)):
            point = f"{self.root}/{name}".rstrip("/")
            # The directory of a hierarchy is named by its controllers, in any order.
            for controller in set(name.split(",")).intersection(_CONTROLLERS) - {"cpuset"}:
                mounts.setdefault(controller, _Mount(point))
            for controller, sign, prefix in (("cpuset", "cpuset.cpus", "cpuset."), ("cpuset", "effective_cpus", ""),
                                             ("cpuacct", "cpuacct.usage", ""), ("cgroup2", "cgroup.controllers", "")):
                if os.path.exists(f"{point}/{sign}"):
                    mounts.setdefault(controller, _Mount(point, prefix=prefix))
        if os.path.exists(f"{self.root}/cgroup.controllers"):
            mounts.pop("cpuset", None)
            mounts["cgroup2"] = _Mount(self.root)
        return mounts


def _memberships(raw: bytes) -> Iterator[tuple[str, list[str], str]]:
    """Parse /proc/PID/cgroup. Yields (number, controllers, cgroup) of each hierarchy; number "0" with the controllers
    [""] is version 2."""
    # Not splitlines(): a cgroup's name may contain any control character except newline, and could forge a line.
    for line in os.fsdecode(raw).split("\n"):
        # A path may contain colons: containerd's systemd cgroups are kubepods-pod1.slice:cri-containerd:ID.
        number, _, rest = line.partition(":")
        controllers, _, cgroup = rest.partition(":")
        yield number, controllers.split(","), cgroup


def _cut_after(cgroup: str, container: str) -> str:
    """Cut a cgroup's path after the first component that is named after the container, as runtimes name it (`ID`,
    `crio-ID.scope`, `kubepods-pod1.slice:cri-containerd:ID`). Without such a component the whole path."""
    parts = cgroup.split("/")
    for at, part in enumerate(parts if container else (), start=1):
        before = part.removesuffix(".scope").removesuffix(container)
        if before + container == part.removesuffix(".scope") and before[-1:] in ("", "-", ":"):
            return "/".join(parts[:at])
    return cgroup


def _list(path: str) -> CpuSet | None:
    """Read a CPU list; None if the file does not exist. :raises CpuSetError: the file has other content."""
    try:
        raw = read_file(path)
    except OSError as err:
        logger.debug("ignored file=%s: %s", path, err)
        return None
    return None if raw is None else _parsed(raw)


@lru_cache(maxsize=1024)
def _parsed(raw: bytes) -> CpuSet:
    """Cached, as files seldom change, and so that equal lists give the same object."""
    return CpuSet.parse(raw.decode("ascii", "replace"))
