from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.topology import Topology


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


TWO_SOCKETS = Topology.build(
    cpus("0-7"),
    cores=[cpus("4,5"), cpus("0-1"), cpus("2-3"), cpus("6-7")],
    caches=[cpus("4-7"), cpus("0-3")],
    nodes={1: cpus("4-7"), 0: cpus("0-3")},
)


def test_a_cpu_finds_its_core_cache_and_node() -> None:
    assert TWO_SOCKETS.core_of(5) == cpus("4-5")
    assert TWO_SOCKETS.cache_of(5) == cpus("4-7")
    assert TWO_SOCKETS.node_of(5) == 1
    assert TWO_SOCKETS.all_cpus == cpus("0-7")


def test_groups_are_sorted_and_repeats_and_empty_ones_dropped() -> None:
    by_each_cpu = [cpus("2-3"), cpus("0-1"), cpus("0-1"), cpus("2-3"), EMPTY]
    built = Topology.build(cpus("0-3"), cores=by_each_cpu, caches=by_each_cpu,
                           nodes={7: cpus("2-3"), 2: EMPTY, 0: cpus("0-1")})
    assert built.cores == built.caches == (cpus("0-1"), cpus("2-3"))
    assert list(built.nodes) == [0, 7]


def test_cpus_without_a_core_are_cores_of_their_own() -> None:
    built = Topology.build(cpus("0-2,9"), cores=[cpus("0-1")])
    assert built.cores == (cpus("0-1"), cpus("2"), cpus("9"))
    assert built == Topology.build(cpus("0-2,9"), cores=[cpus("9"), cpus("2"), cpus("0-1")])


def test_an_unknown_cpu_is_alone_and_in_no_node() -> None:
    assert TWO_SOCKETS.core_of(99) == cpus("99")
    assert TWO_SOCKETS.cache_of(99) == cpus("99")
    assert TWO_SOCKETS.node_of(99) is None


def test_without_caches_the_core_stands_in() -> None:
    assert Topology.build(cpus("0-3"), cores=[cpus("0-1")]).cache_of(0) == cpus("0-1")


def test_without_nodes_there_is_none() -> None:
    assert Topology.build(cpus("0-3")).node_of(0) is None


def test_sockets_are_sorted_and_each_is_there_once() -> None:
    built = Topology.build(cpus("0-7"), sockets=[cpus("4-5"), cpus("0-3"), cpus("4-5")])
    assert built.sockets == (cpus("0-3"), cpus("4-5"))


def test_kinds_and_devices_are_the_same_in_any_order() -> None:
    one = Topology.build(cpus("0-3"), kinds={"performance": cpus("0"), "efficient": cpus("1-4"), "odd": EMPTY},
                         devices={"eth0": 1, "3b:00.0": 0})
    other = Topology.build(cpus("0-3"), kinds={"efficient": cpus("1-4"), "performance": cpus("0")},
                           devices={"3b:00.0": 0, "eth0": 1})
    assert one == other
    assert list(one.kinds) == list(other.kinds)
    assert one.all_cpus == cpus("0-4")


def test_groups_may_name_cpus_that_are_offline() -> None:
    built = Topology.build(cpus("0,2"), cores=[cpus("0-1")], caches=[cpus("0-3")], nodes={0: cpus("0-3")})
    assert built.core_of(1) == cpus("0-1")
    assert built.node_of(3) == 0
    assert built.all_cpus == cpus("0-3")
    assert built.online == cpus("0,2")


def test_known_counts_every_cpu_that_is_named_anywhere() -> None:
    built = Topology.build(cpus("0"), cores=[cpus("1")], caches=[cpus("2")], nodes={0: cpus("3")},
                           isolated=cpus("4"), nohz_full=cpus("5"), present=cpus("6"))
    assert built.all_cpus == cpus("0-6")


@pytest.mark.parametrize(("groups", "message"), [
    ({"cores": [cpus("0-1"), cpus("1-2")]}, "CPU 1 is in two cores: core 0-1 and core 1-2"),
    ({"caches": [cpus("0-3"), cpus("3-7")]}, "CPU 3 is in two caches: cache 0-3 and cache 3-7"),
    ({"nodes": {0: cpus("0-3"), 1: cpus("2")}}, r"CPU 2 is in two nodes: node 0 \(0-3\) and node 1 \(2\)"),
    ({"nodes": {0: cpus("5"), 1: cpus("5")}}, "CPU 5 is in two nodes"),
    ({"sockets": [cpus("0-4"), cpus("4-7")]}, "CPU 4 is in two sockets: socket 0-4 and socket 4-7"),
    ({"dies": [cpus("0-1"), cpus("0")]}, "CPU 0 is in two dies"),
    ({"kinds": {"performance": cpus("0-1"), "efficient": cpus("1")}},
     r"CPU 1 is in two kinds: efficient \(1\) and performance \(0-1\)"),
])
def test_overlapping_groups_are_refused_and_the_cpu_is_named(groups: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Topology.build(cpus("0-7"), **groups)  # type: ignore[arg-type]


def test_it_is_a_value() -> None:
    again = Topology.build(cpus("0-7"), cores=[cpus("0-1"), cpus("2-3"), cpus("4-5"), cpus("6-7")],
                           caches=[cpus("0-3"), cpus("4-7")], nodes={0: cpus("0-3"), 1: cpus("4-7")})
    _ = again.all_cpus, again.core_of(1)  # what is memoised takes no part in equality
    assert again == TWO_SOCKETS
    assert hash(again) == hash(TWO_SOCKETS)
    assert pickle.loads(pickle.dumps(again)) == copy.deepcopy(again) == TWO_SOCKETS
    with pytest.raises(AttributeError):
        again.online = EMPTY  # type: ignore[misc]


@given(st.lists(st.frozensets(st.integers(0, 30), max_size=5), max_size=8), st.frozensets(st.integers(0, 30)))
def test_every_known_cpu_is_in_exactly_one_core(groups: list[frozenset[int]], online: frozenset[int]) -> None:
    try:
        built = Topology.build(CpuSet(online), cores=map(CpuSet, groups))
    except ValueError:
        distinct = set(groups)
        assert sum(map(len, distinct)) > len(frozenset().union(*distinct))
        return
    assert sorted(cpu for core in built.cores for cpu in core) == list(built.all_cpus)
    assert all(cpu in built.core_of(cpu) for cpu in built.all_cpus)
    assert online <= built.all_cpus.frozen()
