"""The guest's cgroups, of version 1, version 2 or both (hybrid): each container's, its processes and threads.

A container's cgroup is the one whose last part is its id, as Kata's agent names it: `ID`, or `PREFIX-ID.scope` where
systemd manages it (src/agent/rustjail/src/container.rs), at any depth. Read only."""

import os
import re
from typing import Container, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from vmpin.protocol.parsing import is_container
from vmpin_agent import file_io, guest_threads

_LIKE_A_CONTAINER = re.compile(r"(?:.*-)?([0-9a-f]{64})(?:\.scope)?")
#: Limits beyond what a guest has: a container may create cgroups below its own.
_MAX_DEPTH = 32
_MAX_CGROUPS = 20_000


class Hierarchy(NamedTuple):
    """One mounted hierarchy. `cpuset`: whether that controller is in it."""

    root: str
    v2: bool
    cpuset: bool

    def priority(self) -> Tuple[bool, bool, str]:
        """Key for sorting: hierarchies with cpuset first, v2 before v1, then by path."""
        return not self.cpuset, not self.v2, self.root


class ContainerCgroup(NamedTuple):
    """A container's cgroup; `inode` distinguishes it from a later one at the same path."""

    hierarchy: Hierarchy
    path: str
    inode: int

    @property
    def shown(self) -> str:
        """The path as in /proc/PID/cgroup."""
        return self.path[len(self.hierarchy.root) :] or "/"


class GuestCgroups:
    """:param root: where the hierarchies are mounted.
    :param kata: where Kata's agent has a directory for each container."""

    def __init__(self, root: str = "/sys/fs/cgroup", proc: str = "/proc", kata: str = "/run/kata-containers") -> None:
        self.root = root.rstrip("/")
        self._proc = proc
        self._kata = kata
        self._hierarchies: List[Hierarchy] = []
        self._known: Dict[str, ContainerCgroup] = {}

    @property
    def hierarchies(self) -> List[Hierarchy]:
        """The mounted hierarchies, those with cpuset first. Read again while there is none with cpuset: the agent may
        have started before the mounts."""
        if not any(hierarchy.cpuset for hierarchy in self._hierarchies):
            self._hierarchies = sorted(self._mounted(), key=Hierarchy.priority)
        return self._hierarchies

    def _mounted(self) -> Iterator[Hierarchy]:
        for path in (self.root, *(path for path, _ in _directories(self.root))):
            controllers = file_io.read(f"{path}/cgroup.controllers")
            if controllers is not None:
                yield Hierarchy(path, True, "cpuset" in controllers.split())
                if path == self.root:
                    return
            elif path != self.root and os.path.exists(f"{path}/tasks"):
                yield Hierarchy(path, False, os.path.exists(f"{path}/{cpuset_file(path, 'cpus')}"))

    def locate(self, wanted: Set[str]) -> Dict[str, ContainerCgroup]:
        """Return, by id, the cgroup of each of these containers: the uppermost, in a hierarchy with cpuset if
        possible."""
        places = {cid: place for cid, place in self._known.items()
                  if cid in wanted and inode(place.path) == place.inode}
        lacking = wanted - places.keys()
        for hierarchy in self.hierarchies if lacking else ():
            for path, name in walk(hierarchy.root):
                for cid in _names(name):
                    if cid in lacking and cid not in places:
                        places[cid] = ContainerCgroup(hierarchy, path, inode(path) or 0)
        self._known = places
        return dict(places)

    def all(self, named: Set[str]) -> Dict[str, ContainerCgroup]:
        """The cgroup of every container, by id. Containers are those named, and cgroups that Kata's directories or the
        form of their name show to be containers."""
        try:
            kata = {name for name in os.listdir(self._kata) if is_container(name)}
        except OSError:
            kata = set()
        places: Dict[str, ContainerCgroup] = {}
        for hierarchy in self.hierarchies:
            for path, name in walk(hierarchy.root):
                match = _LIKE_A_CONTAINER.fullmatch(name)
                ids = [match[1]] if match else [cid for cid in _names(name) if cid in named or cid in kata]
                if ids and ids[0] not in places:
                    places[ids[0]] = ContainerCgroup(hierarchy, path, inode(path) or 0)
        return places

    def threads(self, hierarchy: Hierarchy, path: str) -> List[int]:
        """The threads in one cgroup, not below it."""
        text = file_io.read(f"{path}/cgroup.threads" if hierarchy.v2 else f"{path}/tasks")
        if text is not None:
            return _numbers(text)
        return [tid for pid in self.processes(path) for tid in guest_threads.of_process(self._proc, pid)]

    def processes(self, path: str) -> List[int]:
        """The processes in one cgroup, not below it; none for a threaded cgroup, as the kernel does not list them."""
        return _numbers(file_io.read(f"{path}/cgroup.procs") or "")

    def count(self, paths: List[str]) -> int:
        """The number of processes in these cgroups."""
        return sum(len(self.processes(path)) for path in paths)


def inode(path: str) -> Optional[int]:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def cpuset_file(path: str, name: str) -> str:
    """The name of a cgroup's cpuset file: without the controller's name in version 1 mounted with noprefix
    (kernel/cgroup/cgroup.c: cgroup_file_name)."""
    return name if os.path.isfile(f"{path}/{name}") else f"cpuset.{name}"


def within(place: ContainerCgroup, without: Container[str] = ()) -> List[str]:
    """The cgroups of a container, uppermost first. :param without: paths to leave out."""
    return [place.path, *(path for path, _ in walk(place.path, without))]


def walk(path: str, without: Container[str] = ()) -> Iterator[Tuple[str, str]]:
    """The cgroups below this one and their names, uppermost first. :param without: paths to leave out."""
    level = [path]
    seen = 0
    for _ in range(_MAX_DEPTH):
        below = []
        for parent in level:
            for directory in _directories(parent):
                if directory[0] in without:
                    continue
                seen += 1
                if seen > _MAX_CGROUPS:
                    return
                yield directory
                below.append(directory[0])
        level = below


def _directories(path: str) -> List[Tuple[str, str]]:
    try:
        if os.stat(path).st_nlink == 2:
            return []  # links of itself and its dot: no children (fs/kernfs/inode.c: kernfs_refresh_inode)
        with os.scandir(path) as entries:
            return sorted((entry.path, entry.name) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _names(name: str) -> List[str]:
    """The container ids that a cgroup of this name may belong to."""
    if not name.endswith(".scope"):
        return [name]
    stem = name[: -len(".scope")]
    return [stem, *(stem[at + 1 :] for at, char in enumerate(stem) if char == "-")]


def _numbers(text: str) -> List[int]:
    try:
        return [int(word) for word in text.split()]
    except ValueError:
        return []
