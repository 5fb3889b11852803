"""/sys/devices/system: the node's CPUs, cores, caches and memory nodes.

Only the list of online CPUs is required. Kernels, architectures and hypervisors leave out different other parts; those
get defaults.
"""

import contextlib
import logging
import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from vmpin.bounded import parse_whole
from vmpin.cpuset import EMPTY, CpuSet, CpuSetError, union
from vmpin.domain.topology import Topology
from vmpin.errors import SourceError
from vmpin.host.procfs import names_in, read_file

logger = logging.getLogger(__name__)

_MOST = 99999  #: No machine has as many CPUs, or nodes.


class Sysfs:
    """The files below `root` (``/sys``, or a recorded tree in tests)."""

    def __init__(self, root: str | Path = "/sys") -> None:
        self.root = os.fspath(root)
        self.cpu = f"{self.root}/devices/system/cpu"
        self.node = f"{self.root}/devices/system/node"

    @cached_property
    def _covered(self) -> bool:
        """Whether a file of lxcfs is mounted on the list of online CPUs: it shows a container, as `0-3`, as many CPUs
        as its quota or cpuset has (lxcfs, src/sysfs_fuse.c: do_cpuset_read)."""
        try:
            return os.stat(f"{self.cpu}/online").st_dev != os.stat(self.root).st_dev
        except OSError:
            return False

    def online(self) -> CpuSet:
        """The online CPUs: one file, read in every pass, more where lxcfs covers it.
        :raises SourceError: it is missing or invalid."""
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
        return (self._by_other_lists(online) or online) if self._covered else online

    def _by_other_lists(self, shown: CpuSet) -> CpuSet:
        """The online CPUs by the kernel's other two lists, where a covered one lacks CPUs that the topmost cgroup in
        sight has; EMPTY elsewhere: in a container of LXC it may have all that the container's processes may use."""
        tops = (cpu_list(f"{self.root}/fs/cgroup/{name}") for name in ("cpuset.cpus.effective", "cpuset/cpuset.cpus"))
        if union(top or EMPTY for top in tops) <= shown:
            return EMPTY
        return (cpu_list(f"{self.cpu}/present") or EMPTY) - (cpu_list(f"{self.cpu}/offline") or EMPTY)

    def smt_off(self) -> bool:
        """Whether SMT is switched off, or to fewer threads than a core has (on POWER: their number), by `nosmt` or at
        run time (kernel/cpu.c: control_show)."""
        control = text_of(f"{self.cpu}/smt/control")
        return control in ("off", "forceoff") or control.isdigit()

    def plugged(self, cpus: CpuSet) -> dict[int, int]:
        """Return for each online CPU a number that changes when the CPU was offline in between: the inode of its
        topology directory, which is recreated then (drivers/base/topology.c), and kernfs does not reuse inode numbers.
        CPUs without such a directory are left out."""
        inodes = {}
        for cpu in cpus:
            try:
                inodes[cpu] = os.stat(f"{self.cpu}/cpu{cpu}/topology").st_ino
            except OSError:
                continue
        return inodes

    def topology(self) -> Topology:
        """Read the whole topology. It takes several files per CPU, so it is for the start and for changes of the
        online CPUs. :raises SourceError: as `online`."""
        online = self.online()
        present = cpu_list(f"{self.cpu}/present") or EMPTY
        plugged = online | present
        cpus = numbered(self.cpu, "cpu")
        isolated, nohz_full = self.set_apart(plugged)
        cores, caches = merged(map(self._core, cpus)), merged(map(self._cache, cpus))
        # A kernel without NUMA has no node directories: all CPUs are in one node.
        return Topology.build(online, cores, caches, self._nodes() or {0: plugged}, isolated, nohz_full, present,
                              self._distances())

    def set_apart(self, plugged: CpuSet) -> tuple[CpuSet, CpuSet]:
        """Return (isolated, nohz_full) among the plugged CPUs: three files, read at every resync. The file `isolated`
        has the kernel's isolcpus= option (drivers/base/cpu.c: print_cpus_isolated), which may include CPUs that the
        machine does not have. Isolated cpuset partitions may be created at any time."""
        boot, full = (cpu_list(f"{self.cpu}/{name}") or EMPTY for name in ("isolated", "nohz_full"))
        return (boot | self._partitions()) & plugged, full & plugged

    def _partitions(self) -> CpuSet:
        """The CPUs of isolated cpuset partitions: a file of the root cgroup lists them (kernel/cgroup/cpuset.c, since
        Linux 6.8); before that (since 6.1), and below the root of a cgroup namespace, each partition's own files.
        Beside v1, version 2 is in `unified`."""
        for root in (f"{self.root}/fs/cgroup", f"{self.root}/fs/cgroup/unified"):
            if os.path.exists(f"{root}/cpuset.cpus.isolated"):
                return cpu_list(f"{root}/cpuset.cpus.isolated") or EMPTY
            if "cpuset" in text_of(f"{root}/cgroup.controllers").split():
                return self._isolated_below(root)
        return EMPTY

    def _isolated_below(self, root: str) -> CpuSet:
        """The CPUs of valid isolated partitions. Their parents are the root or partitions themselves, or pass CPUs to
        them (remote partitions, since 6.7). Their owner may nest them deeper than Python's functions."""
        isolated, parents = EMPTY, [root]
        while parents:
            cgroups = list[str]()
            with contextlib.suppress(OSError), os.scandir(parents.pop()) as entries:
                cgroups = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            for path in cgroups:
                kind = text_of(f"{path}/cpuset.cpus.partition")
                if kind == "isolated":
                    isolated |= cpu_list(f"{path}/cpuset.cpus.effective") or EMPTY
                handed = f"{path}/cpuset.cpus.exclusive"
                if kind in ("isolated", "root") or (os.path.exists(handed) and text_of(handed)):
                    parents.append(path)
        return isolated

    def _core(self, cpu: int) -> CpuSet:
        """A CPU's SMT siblings including itself; EMPTY for a CPU without topology, such as an offline one."""
        directory = f"{self.cpu}/cpu{cpu}/topology"
        for name in ("core_cpus_list", "thread_siblings_list"):  # the second is its name before 5.3
            core = cpu_list(f"{directory}/{name}")
            if core is not None and cpu in core:
                return core
        return EMPTY

    def _cache(self, cpu: int) -> CpuSet:
        """The CPUs that share a CPU's last-level data cache; EMPTY if the kernel lists no caches."""
        directory = f"{self.cpu}/cpu{cpu}/cache"
        best, shared = 0, EMPTY
        for index in names_in(directory):
            if not index.startswith("index") or text_of(f"{directory}/{index}/type") == "Instruction":
                continue
            level = text_of(f"{directory}/{index}/level")
            if not (level.isascii() and level.isdigit() and len(level) < 3) or int(level) <= best:
                continue
            cpus = cpu_list(f"{directory}/{index}/shared_cpu_list")
            if cpus is not None and cpu in cpus:
                best, shared = int(level), cpus
        return shared

    def _nodes(self) -> dict[int, CpuSet]:
        """The CPUs of each memory node. A CPU listed in two nodes (read during a change) counts for the first."""
        nodes: dict[int, CpuSet] = {}
        seen = EMPTY
        for node in numbered(self.node, "node"):
            cpus = (cpu_list(f"{self.node}/node{node}/cpulist") or EMPTY) - seen
            if cpus:
                nodes[node] = cpus
                seen |= cpus
        return nodes

    def _distances(self) -> dict[int, dict[int, int]]:
        """Read the distances between memory nodes; a node's file lists all nodes, ascending (drivers/base/node.c)."""
        nodes = numbered(self.node, "node")
        rows = {node: text_of(f"{self.node}/node{node}/distance").split() for node in nodes}
        return {node: dict(zip(nodes, map(int, row), strict=True)) for node, row in rows.items()
                if len(row) == len(nodes) and all(distance.isascii() and distance.isdigit() for distance in row)}


def cpu_list(path: str) -> CpuSet | None:
    """Read a CPU list; None if the file is missing or is no CPU list."""
    text = text_of(path)
    try:
        return CpuSet.parse(text)
    except CpuSetError as err:
        if text != "(null)":  # nohz_full, if the kernel supports it but has no such CPUs
            logger.debug("ignored file=%s: %s", path, err)
    return None


def text_of(path: str) -> str:
    """A file's text, stripped; "" if it cannot be read."""
    try:
        raw = read_file(path)
    except OSError as err:
        logger.debug("ignored file=%s: %s", path, err)
        return ""
    return "" if raw is None else raw.decode("utf-8", "replace").strip()


def numbered(directory: str, prefix: str) -> list[int]:
    """The numbers of a directory's entries that are named by a prefix and a number, ascending: not `cpufreq`."""
    return sorted(number for name in names_in(directory) if name.startswith(prefix)
                  and (number := parse_whole(name.removeprefix(prefix), _MOST)) is not None)


def merged(groups: Iterable[CpuSet]) -> list[CpuSet]:
    """Remove duplicates and merge overlapping groups. The groups are read CPU by CPU, and a CPU may go online or
    offline in between: then one sibling shows `2` and the other `2-3`."""
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
