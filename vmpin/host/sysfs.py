"""/sys/devices/system: the node's CPUs, cores, caches and memory nodes.

Only the list of online CPUs must be there; all else degrades to what is known without it, because kernels,
architectures and hypervisors leave out different parts.
"""

import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from vmpin.cpuset import EMPTY, CpuSet, CpuSetError, union
from vmpin.domain.topology import Topology
from vmpin.errors import SourceError
from vmpin.host.procfs import names_in, read_file

logger = logging.getLogger(__name__)

_CPU = re.compile(r"cpu([0-9]{1,5})")
_NODE = re.compile(r"node([0-9]{1,5})")
_INDEX = re.compile(r"index[0-9]{1,3}")


class Sysfs:
    """The files below `root` (``/sys``, or a recorded tree in tests)."""

    def __init__(self, root: str | Path = "/sys") -> None:
        self.root = os.fspath(root)
        self.cpu = f"{self.root}/devices/system/cpu"
        self.node = f"{self.root}/devices/system/node"

    def online(self) -> CpuSet:
        """The online CPUs: one file, read at every pass. :raises SourceError: nothing can be decided without it."""
        path = f"{self.cpu}/online"
        try:
            raw = read_file(path)
            online = CpuSet.parse("" if raw is None else raw.decode("ascii", "replace"))
        except OSError as err:
            raise SourceError(path, f"cannot be read: {err.strerror}") from err
        except CpuSetError as err:
            raise SourceError(path, str(err)) from err
        if not online:
            raise SourceError(path, "does not exist" if raw is None else "names no CPU")
        return online

    def plugged(self, cpus: CpuSet) -> dict[int, int]:
        """Return for each online CPU a number that changes when the CPU was off in between: its topology directory is
        made again then (drivers/base/topology.c), and kernfs gives no number twice. {} where the kernel shows none."""
        inodes = {}
        for cpu in cpus:
            try:
                inodes[cpu] = os.stat(f"{self.cpu}/cpu{cpu}/topology").st_ino
            except OSError:
                continue
        return inodes

    def topology(self) -> Topology:
        """Everything; some files per CPU, so for the start and for changes of the online CPUs. :raises: as
        `online`."""
        online = self.online()
        present = cpu_list(f"{self.cpu}/present") or EMPTY
        plugged = online | present
        cpus = numbered(self.cpu, _CPU)
        isolated, nohz_full = self.set_apart(plugged)
        cores, caches = merged(map(self._core, cpus)), merged(map(self._cache, cpus))
        # A kernel without NUMA has no node directories, and one node.
        return Topology.build(online, cores, caches, self._nodes() or {0: plugged}, isolated, nohz_full, present,
                              self._distances())

    def set_apart(self, plugged: CpuSet) -> tuple[CpuSet, CpuSet]:
        """Read which of the plugged CPUs are isolated, and which are nohz_full: three files, read at every resync.
        `isolated` of sysfs has isolcpus= of the kernel's command line (drivers/base/cpu.c: print_cpus_isolated), which
        may name CPUs that the machine does not have; isolated cpuset partitions, made at any time, are in a file of
        the topmost cgroup alone (kernel/cgroup/cpuset.c, since Linux 6.7)."""
        boot, full = (cpu_list(f"{self.cpu}/{name}") or EMPTY for name in ("isolated", "nohz_full"))
        partitions = cpu_list(f"{self.root}/fs/cgroup/cpuset.cpus.isolated") or EMPTY
        return (boot | partitions) & plugged, full & plugged

    def _core(self, cpu: int) -> CpuSet:
        """A CPU's siblings, itself among them; EMPTY where they are not shown (an offline CPU has no topology)."""
        directory = f"{self.cpu}/cpu{cpu}/topology"
        for name in ("core_cpus_list", "thread_siblings_list"):  # the second is its name before 5.3
            core = cpu_list(f"{directory}/{name}")
            if core is not None and cpu in core:
                return core
        return EMPTY

    def _cache(self, cpu: int) -> CpuSet:
        """The CPUs that share a CPU's last-level data cache; EMPTY where the kernel shows no caches."""
        directory = f"{self.cpu}/cpu{cpu}/cache"
        best, shared = 0, EMPTY
        for index in names_in(directory):
            if _INDEX.fullmatch(index) is None or text_of(f"{directory}/{index}/type") == "Instruction":
                continue
            level = text_of(f"{directory}/{index}/level")
            if not (level.isascii() and level.isdigit() and len(level) < 3) or int(level) <= best:
                continue
            cpus = cpu_list(f"{directory}/{index}/shared_cpu_list")
            if cpus is not None and cpu in cpus:
                best, shared = int(level), cpus
        return shared

    def _nodes(self) -> dict[int, CpuSet]:
        """The CPUs of every memory node; a CPU that two nodes claim (read amid a change) stays with the first."""
        nodes: dict[int, CpuSet] = {}
        seen = EMPTY
        for node in numbered(self.node, _NODE):
            cpus = (cpu_list(f"{self.node}/node{node}/cpulist") or EMPTY) - seen
            if cpus:
                nodes[node] = cpus
                seen |= cpus
        return nodes

    def _distances(self) -> dict[int, dict[int, int]]:
        """Read the distances of memory nodes: each one's file has all of them, ascending (drivers/base/node.c)."""
        nodes = numbered(self.node, _NODE)
        rows = {node: text_of(f"{self.node}/node{node}/distance").split() for node in nodes}
        return {node: dict(zip(nodes, map(int, row), strict=True)) for node, row in rows.items()
                if len(row) == len(nodes) and all(distance.isascii() and distance.isdigit() for distance in row)}


def cpu_list(path: str) -> CpuSet | None:
    """A CPU list, or None: the file is missing or not a list."""
    text = text_of(path)
    try:
        return CpuSet.parse(text)
    except CpuSetError as err:
        if text != "(null)":  # nohz_full, on a kernel that can have such CPUs but was given none
            logger.debug("ignored file=%s: %s", path, err)
    return None


def text_of(path: str) -> str:
    """A file's text without white space around it, "" when it cannot be read."""
    try:
        raw = read_file(path)
    except OSError as err:
        logger.debug("ignored file=%s: %s", path, err)
        return ""
    return "" if raw is None else raw.decode("ascii", "replace").strip()


def numbered(directory: str, pattern: re.Pattern[str]) -> list[int]:
    """The numbers n of a directory's entries `cpu<n>`, ascending; beside them stand `cpufreq` and `cpuidle`."""
    return sorted(int(match[1]) for match in map(pattern.fullmatch, names_in(directory)) if match)


def merged(groups: Iterable[CpuSet]) -> list[CpuSet]:
    """The groups without repeats, those that overlap made one. Each CPU shows its group by itself, one after the
    other, and a CPU may come or go in between: of two siblings the first then shows `2` and the second `2-3`."""
    merged: list[CpuSet] = []
    seen: set[CpuSet] = set()
    claimed = EMPTY
    for group in groups:
        if not group or group in seen:
            continue
        seen.add(group)
        if not group.isdisjoint(claimed):
            overlapping = [other for other in merged if not other.isdisjoint(group)]
            merged = [other for other in merged if other.isdisjoint(group)]
            group = union((group, *overlapping))
        merged.append(group)
        claimed |= group
    return merged
