"""The kernel's files with memory by NUMA node: a process's numa_maps; a cgroup's memory.numa_stat and
hugetlb.SIZE.numa_stat. Pure: bytes by node, from their content. What is not understood is left out."""

from __future__ import annotations

import os
import re
from collections import Counter

from vmpin.bounded import MAX_INT64, parse_whole

_MAX_NODE = 1023  #: Linux's limit (CONFIG_NODES_SHIFT).
_MAX_PAGE_KB = 16 << 20  #: The largest page of any architecture has 16 GiB.
_COUNT = re.compile(rb" N([0-9]{1,4})=([0-9]{1,19})(?= |$)")
_PAGE_KB = re.compile(rb" kernelpagesize_kB=([0-9]{1,9})(?: |$)")
_ROW = re.compile(rb"^(([a-z_]+[ =]).*)\n", re.MULTILINE)
_PAGE = os.sysconf("SC_PAGE_SIZE")


def parse_numa_map(line: bytes) -> Counter[int]:
    """One mapping, from a line of numa_maps (Documentation/filesystems/proc.rst)."""
    page = _PAGE_KB.search(line)
    size = None if page is None else parse_whole(page[1], _MAX_PAGE_KB)
    return _counts(line, size * 1024) if size else Counter()


def parse_memory_stat(raw: bytes) -> Counter[int]:
    """A cgroup with those below it, from memory.numa_stat: in cgroup v2 `anon` and `file`, which has shmem in it, in
    bytes; in v1 `hierarchical_total`, in pages (mm/memcontrol.c, mm/memcontrol-v1.c). Neither has hugetlbfs."""
    rows = _rows(raw)
    if b"hierarchical_total=" in rows:
        return _counts(rows[b"hierarchical_total="], _PAGE)
    total = _counts(rows.get(b"anon ", b""), 1)
    total.update(_counts(rows.get(b"file ", b""), 1))
    return total


def parse_hugetlb_stat(raw: bytes) -> Counter[int]:
    """Huge pages of one size of a cgroup with those below it, from hugetlb.SIZE.numa_stat, in bytes; in cgroup v1
    `total` is of this cgroup alone (mm/hugetlb_cgroup.c, since Linux 5.18)."""
    rows = _rows(raw)
    return _counts(rows.get(b"hierarchical_total=") or rows.get(b"total=", b""), 1)


def _rows(raw: bytes) -> dict[bytes, bytes]:
    """Complete lines, by the name at their beginning with the blank or `=` after it."""
    return {name: line for line, name in _ROW.findall(raw)}


def _counts(line: bytes, unit: int) -> Counter[int]:
    """The counts `N0=5 N1=7` by node, times `unit`; none that is more than a signed 64-bit number."""
    counts = ((parse_whole(node, _MAX_NODE), parse_whole(count, MAX_INT64 // unit)) for node, count in
              _COUNT.findall(line))
    return Counter({node: count * unit for node, count in counts if node is not None and count is not None})
