"""On which of the host's NUMA nodes the memory of a VM is: read of its VMM's numa_maps, for commands that root runs.

The kernel walks the page tables for it: some 20 ms for each GiB of small pages, nearly nothing for huge ones. So
the watcher never reads it, and a command reads it for a bounded time."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from vmpin.bounded import MAX_INT64, parse_whole
from vmpin.cpuset import CpuSet, CpuSetError, union
from vmpin.errors import SourceError
from vmpin.features.memory.memory_text import gib
from vmpin.host.procfs import Procfs, read_file
from vmpin.host.sysfs import Sysfs

#: The seconds after which no further mapping of a VM is read, and no further VM.
SECONDS, IN_ALL = 2.0, 10.0
#: A mapping is read whole, however long that takes: a VMM with more bytes than this in small pages is not read.
LARGEST = 64 << 30
_MAX_NODE = 1023  #: Linux's limit (CONFIG_NODES_SHIFT).
_PAGES = re.compile(rb" N([0-9]{1,4})=([0-9]{1,18})(?= |$)")
_PAGE_KB = re.compile(rb" kernelpagesize_kB=([0-9]{1,9})(?: |$)")


def parse_numa_map(line: bytes) -> Counter[int]:
    """Return the bytes of one mapping by NUMA node, from a line of numa_maps (Documentation/filesystems/proc.rst)."""
    page = _PAGE_KB.search(line)
    size = None if page is None else parse_whole(page[1], MAX_INT64)
    if not size:
        return Counter()
    pages = {parse_whole(node, _MAX_NODE): parse_whole(count, MAX_INT64) for node, count in _PAGES.findall(line)}
    return Counter({node: count * size * 1024 for node, count in pages.items()
                    if node is not None and count is not None})


def memory_by_node(lines: Iterable[bytes], seconds: float = SECONDS,
                   clock: Callable[[], float] = time.monotonic) -> tuple[Counter[int], bool]:
    """Add up mappings until the time is over. :returns: bytes by node, and whether all of them were read."""
    until, total = clock() + seconds, Counter[int]()
    for line in lines:
        total += parse_numa_map(line.rstrip(b"\n"))
        if clock() >= until:
            return total, False
    return total, True


def add_memory(sandboxes: Iterable[dict[str, Any]], proc: Procfs, sysfs: Sysfs) -> None:
    """Give each entry of a status document the member `memory`: {why, nodes, vcpu_nodes, away}; None without a VMM,
    and on a machine with one NUMA node. `why` is the reason where it could not be read, or not wholly."""
    try:
        nodes = sysfs.topology().nodes
    except SourceError:
        nodes = {}
    until = time.monotonic() + IN_ALL
    for entry in sandboxes:
        entry["memory"] = None if entry["vmm"] is None or len(nodes) < 2 else _memory(
            entry, proc, nodes, min(SECONDS, until - time.monotonic()))


def _memory(entry: Mapping[str, Any], proc: Procfs, nodes: Mapping[int, CpuSet], seconds: float) -> dict[str, Any]:
    near = _nodes_of_vcpus(entry["threads"], nodes)
    pid, starttime = entry["vmm"]["pid"], entry["vmm"]["starttime"]
    if seconds <= 0:
        return _data({}, near, f"not inspected: the VMs before it took {IN_ALL:g} s")
    if _resident(proc, pid) > LARGEST:
        return _data({}, near, f"not inspected: it has more than {gib(LARGEST)} in small pages")
    try:
        total, whole = memory_by_node(_mappings(proc, pid), seconds)
    except PermissionError:
        return _data({}, near, "not inspected: run it as root")
    except OSError:
        total, whole = Counter(), True
    stat = proc.thread_stat(pid, pid)
    if stat is None or stat.starttime != starttime:
        return _data({}, near, "not inspected: the VMM has ended")
    if not total:
        return _data({}, near, "not inspected: this kernel has no numa_maps")
    return _data(total, near, "" if whole else "not all of it was read in time")


def _resident(proc: Procfs, pid: int) -> int:
    """The bytes of a process's resident small and transparent huge pages: those of hugetlbfs are not among them."""
    fields = (read_file(f"{proc.root}/{pid}/statm") or b"").split()
    pages = parse_whole(fields[1], MAX_INT64) if len(fields) > 1 else None
    return (pages or 0) * os.sysconf("SC_PAGE_SIZE")


def _mappings(proc: Procfs, pid: int) -> Iterator[bytes]:
    with open(f"{proc.root}/{pid}/numa_maps", "rb") as maps:
        yield from maps


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


def _data(total: Mapping[int, int], near: Sequence[int], why: str) -> dict[str, Any]:
    """The entry's member. :param near: the nodes of the vCPUs."""
    size = sum(total.values())
    away = sum(count for node, count in total.items() if node not in near)
    return {"why": why, "nodes": {str(node): count for node, count in sorted(total.items())},
            "vcpu_nodes": list(near), "away": round(away / size, 3) if size and near else None}
