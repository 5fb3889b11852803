"""On which of the host's NUMA nodes the memory of a VM is.

numa_maps has the VMM's own memory. But the kernel walks the page tables for it, with the VMM's memory map locked: some
20 ms for each GiB of small pages, nearly nothing for huge ones. So the watcher never reads it, and a command reads it
for a bounded time. The counters of the VMM's cgroup cost the same for a VM of any size, but they also count virtiofsd
and the shim where these are in that cgroup, and the page cache of the files that they read.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vmpin.bounded import MAX_INT64, parse_whole
from vmpin.cpuset import EMPTY, CpuSet, CpuSetError, union
from vmpin.domain.topology import Topology
from vmpin.errors import SourceError
from vmpin.features.memory.memory_text import gib
from vmpin.features.memory.numa_files import parse_hugetlb_stat, parse_memory_stat, parse_numa_map
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs, names_in, read_file
from vmpin.host.sysfs import Sysfs

#: The seconds after which no further mapping of a VM is read, and no further numa_maps.
SECONDS, IN_ALL = 2.0, 10.0
#: A mapping is read whole, however long that takes: no numa_maps of a VMM with more bytes in small pages is read.
LARGEST = 64 << 30
_HUGETLB = re.compile(r"hugetlb\.[0-9]{1,8}[KMG]B\.numa_stat")


def add_memory(sandboxes: Iterable[dict[str, Any]], proc: Procfs, sysfs: Sysfs, cgroups: Cgroups) -> None:
    """Give each entry of a status document the member `memory`: {source, why, nodes, vcpu_nodes, away}; None without a
    VMM, and on a machine with one NUMA node. `why` is the reason where numa_maps was not read, or not wholly."""
    try:
        topology = sysfs.topology()
    except SourceError:
        topology = Topology.build(EMPTY)
    nodes = topology.nodes
    one = len(topology.distances) < 2 and len(nodes) < 2  # a node without CPUs is among the distances alone
    until = time.monotonic() + IN_ALL
    for entry in sandboxes:
        entry["memory"] = None
        if entry["vmm"] is not None and not one:
            pid = entry["vmm"]["pid"]
            total, why = _of_process(proc, pid, min(SECONDS, until - time.monotonic()))
            source = "numa_maps"
            if why and (of_cgroup := cgroup_memory(cgroups, pid)).total():
                total, source = of_cgroup, "cgroup"
            stat = proc.thread_stat(pid, pid)
            if stat is None or stat.starttime != entry["vmm"]["starttime"]:
                total, why = Counter(), "the VMM has ended"
            entry["memory"] = _data(total, source, why, _nodes_of_vcpus(entry["threads"], nodes))


def _of_process(proc: Procfs, pid: int, seconds: float) -> tuple[Counter[int], str]:
    """The bytes of a process by node, from numa_maps, and why these are not all of them."""
    if seconds <= 0:
        return Counter(), f"numa_maps of the VMs before it took {IN_ALL:g} s"
    if _resident(proc, pid) > LARGEST:
        return Counter(), f"it has more than {gib(LARGEST)} in small pages"
    try:
        with open(f"{proc.root}/{pid}/numa_maps", "rb") as maps:
            total, whole = memory_by_node(maps, seconds)
    except PermissionError:
        return Counter(), "only root may read numa_maps"
    except OSError:
        total, whole = Counter(), True
    if not whole:
        return total, f"numa_maps took longer than {seconds:.2g} s"
    return total, "" if total else "numa_maps is empty"


def memory_by_node(lines: Iterable[bytes], seconds: float = SECONDS,
                   clock: Callable[[], float] = time.monotonic) -> tuple[Counter[int], bool]:
    """Add up mappings until the time is over. :returns: bytes by node, and whether all of them were read."""
    until, total = clock() + seconds, Counter[int]()
    for line in lines:
        total += parse_numa_map(line.rstrip(b"\n"))
        if clock() >= until:
            return total, False
    return total, True


def cgroup_memory(cgroups: Cgroups, pid: int) -> Counter[int]:
    """The bytes of the cgroup that a process is in, by node, with hugetlbfs; empty for the topmost cgroup, and without
    the memory controller."""
    directory = cgroups.directory(pid, "memory")
    if directory is None:
        return Counter()
    total = parse_memory_stat(_read(f"{directory}/memory.numa_stat"))
    directory = cgroups.directory(pid, "hugetlb")
    for name in () if directory is None else names_in(directory):
        if _HUGETLB.fullmatch(name):
            total.update(parse_hugetlb_stat(_read(f"{directory}/{name}")))
    return total


def _read(path: str) -> bytes:
    try:
        return read_file(path) or b""
    except OSError:  # ENODEV: the cgroup was removed since it was opened
        return b""


def _resident(proc: Procfs, pid: int) -> int:
    """The bytes of a process's resident small and transparent huge pages: those of hugetlbfs are not among them."""
    fields = (read_file(f"{proc.root}/{pid}/statm") or b"").split()
    pages = parse_whole(fields[1], MAX_INT64) if len(fields) > 1 else None
    return (pages or 0) * os.sysconf("SC_PAGE_SIZE")


def _nodes_of_vcpus(threads: Iterable[Mapping[str, Any]], nodes: Mapping[int, CpuSet]) -> list[int]:
    """The NUMA nodes of the CPUs that the vCPU threads may use now."""
    masks = []
    for thread in threads:
        if thread["role"] == "vcpu":
            try:
                masks.append(CpuSet.parse(thread["actual"]))
            except CpuSetError:
                continue  # a thread that has ended
    may_use = union(masks)
    return [node for node, cpus in nodes.items() if not cpus.isdisjoint(may_use)]


def _data(total: Mapping[int, int], source: str, why: str, near: list[int]) -> dict[str, Any]:
    """The entry's member. :param near: the nodes of the vCPUs."""
    size = sum(total.values())
    away = sum(count for node, count in total.items() if node not in near)
    return {"source": source if size else None, "why": why, "vcpu_nodes": near,
            "nodes": {str(node): count for node, count in sorted(total.items()) if count},
            "away": round(away / size, 3) if size and near else None}
