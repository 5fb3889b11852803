"""Memory by NUMA node, from the content of the kernel's files."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from effort import effort
from hypothesis import given
from hypothesis import strategies as st

from vmpin.features.memory.numa_files import parse_hugetlb_stat, parse_memory_stat, parse_numa_map

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


@pytest.mark.parametrize(("line", "nodes"), [
    (b"7f0000000000 bind:1 anon=262144 dirty=262144 N0=4 N1=262140 kernelpagesize_kB=4",
     {0: 4 << 12, 1: 262140 << 12}),
    (b"7f4000000000 prefer:0 file=/dev/hugepages/vm huge anon=512 N0=512 kernelpagesize_kB=2048", {0: 1 << 30}),
    (b"55d0 default file=/usr/bin/qemu mapped=2 N12=2 kernelpagesize_kB=4", {12: 8192}),
    (b"55d0 default", {}), (b"", {}), (b"N0=4 N1=x kernelpagesize_kB=", {}), (b"55d0 default N0=5", {}),
    (b"55d0 default file=/tmp/N3=9 N0=1 kernelpagesize_kB=4", {0: 4096}),
    # Nodes, counts and pages that no kernel has.
    (b"55d0 default N99999=1 N1024=1 N1023=1 kernelpagesize_kB=4", {1023: 4096}),
    (b"55d0 default N0=9223372036854775807 N1=1 kernelpagesize_kB=4", {1: 4096}),
    (b"55d0 default N0=1 kernelpagesize_kB=999999999", {}), (b"55d0 default N0=1 kernelpagesize_kB=0", {}),
    (b"55d0 default N0=1 N0=2 N0=-1 N0=+1 N0=1.5 N0=\xd9\xa3 kernelpagesize_kB=4", {0: 8192}),
])
def test_a_mappings_bytes_by_node(line: bytes, nodes: dict[int, int]) -> None:
    assert dict(parse_numa_map(line)) == nodes


#: Linux 6.12, the cgroup of a QEMU whose guest has 96 MiB on node 0, and as much in huge pages on node 1.
V2 = b"""anon N0=115036160 N1=0
file N0=31395840 N1=0
kernel_stack N0=98304 N1=16384
pagetables N0=462848 N1=0
sec_pagetables N0=0 N1=12288
shmem N0=0 N1=0
file_mapped N0=19730432 N1=0
"""
HUGETLB_V2 = b"total=100663296 N0=0 N1=100663296\n"
V1 = b"""total=9 N0=4 N1=5
file=1 N0=1 N1=0
anon=8 N0=3 N1=5
unevictable=0 N0=0 N1=0
hierarchical_total=12 N0=5 N1=7
hierarchical_file=1 N0=1 N1=0
"""


@pytest.mark.parametrize(("raw", "nodes"), [
    (V2, {0: 115036160 + 31395840, 1: 0}),  # shmem would be a part of file
    (V1, {0: 5 * PAGE, 1: 7 * PAGE}),  # with the cgroups below it
    (b"anon N0=5\nfile N0=7", {0: 5}),  # cut off: a line without an end
    (V1[:V1.index(b"hier")], {}),  # pages, not bytes
    (b"anon N0=5\nanonymous N0=9\nxfile N0=9\n", {0: 5}),
    (b"", {}), (b"\n\n", {}), (b"anon\nfile=\n", {}), (b"hierarchical_total=1\n", {}),
    (b"anon N0=x N1=3 N2=99999999999999999999 N4096=1\n", {1: 3}),
])
def test_a_cgroups_bytes_by_node_in_both_versions(raw: bytes, nodes: dict[int, int]) -> None:
    assert dict(parse_memory_stat(raw)) == nodes


@pytest.mark.parametrize(("raw", "nodes"), [
    (HUGETLB_V2, {0: 0, 1: 96 * MIB}),
    (b"total=2097152 N0=2097152 N1=0\nhierarchical_total=4194304 N0=2097152 N1=2097152\n", {0: 2 * MIB, 1: 2 * MIB}),
    (b"total=1 N0=1", {}), (b"", {}),
])
def test_huge_pages_of_a_cgroup_by_node_in_both_versions(raw: bytes, nodes: dict[int, int]) -> None:
    assert dict(parse_hugetlb_stat(raw)) == nodes


@pytest.mark.parametrize("parse", [parse_numa_map, parse_memory_stat, parse_hugetlb_stat])
@given(st.binary(max_size=80), st.binary(max_size=20))
def test_no_content_breaks_a_parser(parse: Callable[[bytes], dict[int, int]], raw: bytes, more: bytes) -> None:
    for text in (raw, b"anon N0=1" + raw + b" N1=2\n" + more, b"x " + raw + b" N0=1 kernelpagesize_kB=4" + more):
        nodes = parse(text)
        assert all(0 <= node <= 1023 and 0 <= size < 1 << 63 for node, size in nodes.items())


@pytest.mark.parametrize("line", [b" N1=1" * 50_000, b" N" * 100_000, b"file=" + b"x" * 250_000,
                                  b" N1=" + b"1" * 250_000, b" kernelpagesize_kB=" * 13_000])
def test_a_long_line_costs_in_proportion_to_its_length(line: bytes) -> None:
    assert effort(lambda: parse_numa_map(b"7f00 default" + line + b" kernelpagesize_kB=4")) < 50
    assert effort(lambda: parse_memory_stat(b"anon" + line + b"\n")) < 50
