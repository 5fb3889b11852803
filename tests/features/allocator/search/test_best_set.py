"""The search by examples: what a reader expects of it. All of it is held against trying every set in
test_search_properties."""

from __future__ import annotations

import random

import pytest

from vmpin.cpuset import CpuSet, union
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuCost, CpuQuery, FoundCpus, Refusal, SmtUse
from vmpin.features.allocator.search.best_set import best_cpus, best_part, largest, runner_up
from vmpin.features.allocator.search.cost_tables import cost_order


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def groups(*texts: str) -> list[CpuSet]:
    return [cpus(text) for text in texts]


#: Two nodes of two caches of two cores of two threads.
TWO_NODES = Topology.build(cpus("0-15"), groups(*(f"{cpu}-{cpu + 1}" for cpu in range(0, 16, 2))),
                           groups("0-3", "4-7", "8-11", "12-15"), {0: cpus("0-7"), 1: cpus("8-15")},
                           distances={0: {0: 10, 1: 21}, 1: {0: 21, 1: 10}}, sockets=groups("0-7", "8-15"))
ALL = TWO_NODES.online


def found(free: str, query: CpuQuery, topology: Topology = TWO_NODES) -> str:
    """The best CPUs, as a list."""
    best = best_cpus(topology, cpus(free), query)
    assert isinstance(best, FoundCpus), best
    return str(best.cpus)


def refused(free: str, query: CpuQuery, topology: Topology = TWO_NODES) -> str:
    best = best_cpus(topology, cpus(free), query)
    assert isinstance(best, Refusal), best
    return best.reason


def test_one_node_is_better_than_two_and_the_fuller_cache_than_a_whole_one() -> None:
    assert found("0-2,8-15", CpuQuery(4)) == "8-11"
    assert found("0-15", CpuQuery(2)) == "0-1"
    assert found("0-7,10-15", CpuQuery(2)) == "10-11"  # breaks no whole node, no whole cache, and leaves nothing over
    assert found("0-3,8-9", CpuQuery(4)) == "0-3"


def test_a_half_used_core_is_filled_before_a_whole_one_is_broken() -> None:
    assert found("0-2,5-7", CpuQuery(1)) == "2"
    assert found("2-3,5-7", CpuQuery(3)) == "5-7"
    # Fewer nodes and fewer whole caches broken come first, and fewer CPUs left in the caches after it.
    assert found("0,2,4-5,12-15", CpuQuery(1)) == "0"
    assert found("0-1,4-5,6,8", CpuQuery(1)) == "8"
    # No core that is required whole is ever broken, and a core of one thread cannot be.
    assert best_cpus(TWO_NODES, ALL, CpuQuery(4, smt=SmtUse.REQUIRE)) == FoundCpus(
        cpus("0-3"), CpuCost(1, 0, 0, 1, 0, 1, 0, 0, 0, 4))
    assert best_cpus(TWO_NODES._replace(cores=()), ALL, CpuQuery(1)) == FoundCpus(
        cpus("0"), CpuCost(1, 0, 0, 1, 0, 1, 1, 0, 3, 7))


def test_of_equal_caches_the_one_of_the_fuller_node_is_taken() -> None:
    best = best_cpus(TWO_NODES, cpus("0-7,10-15"), CpuQuery(2, smt=SmtUse.REQUIRE))
    assert best == FoundCpus(cpus("10-11"), CpuCost(1, 0, 0, 1, 0, 0, 0, 0, 0, 4))
    assert found("0-3,5-6,8-11", CpuQuery(4)) == "8-11"
    assert found("0,4,6,8,12", CpuQuery(1)) == "8"


def test_the_cost_is_counted_part_by_part() -> None:
    best = best_cpus(TWO_NODES, ALL - CpuSet((0,)), CpuQuery(9, near=frozenset((1,))))
    assert best == FoundCpus(cpus("1,8-15"), CpuCost(nodes=2, distance=21, away=1, caches=3, partial_cores=1,
                                                     broken_nodes=0, broken_caches=0, broken_cores=0, leftover=2,
                                                     node_left=6))


def test_devices_come_before_caches_and_after_nodes() -> None:
    assert found("0-3,8,12,13", CpuQuery(3, near=frozenset((1,)))) == "8,12-13"
    assert found("0-3,8,12", CpuQuery(3, near=frozenset((1,)))) == "0-2"


def test_alignments_put_their_part_first() -> None:
    assert found("0,4,8-11", CpuQuery(2)) == "8-9"
    assert found("0-1,4-6,8-11", CpuQuery(4, Alignment.NODE)) == "8-11"
    # One node would do with three caches' leftovers; one cache does not exist here: two nodes with fewer caches.
    topology = Topology.build(cpus("0-5"), caches=groups("0", "1", "2-4", "5"), nodes={0: cpus("0-2"), 1: cpus("3-5")})
    assert found("0-5", CpuQuery(3), topology) == "3-5"
    assert found("0-5", CpuQuery(3, Alignment.CACHE), topology) == "2-4"
    assert found("0,2,4,6,8-9,12-13", CpuQuery(4, Alignment.CORE)) == "8-9,12-13"
    assert found("0-1,2,4,6,8-9", CpuQuery(4, Alignment.NODE)) == "0-2,4"
    assert found("0-1,2,4,6,8-9", CpuQuery(4, Alignment.CORE)) == "0-1,8-9"


def test_the_nodes_of_a_socket_count_as_one_where_sockets_are_asked_for() -> None:
    nodes = {0: cpus("0-3"), 1: cpus("4-7"), 2: cpus("8-11"), 3: cpus("12-15")}
    topology = Topology.build(ALL, nodes=nodes, sockets=groups("0-7", "8-15"))
    assert found("0-1,4-8,12-15", CpuQuery(5), topology) == "4-8"
    assert found("0-1,4-8,12-15", CpuQuery(5, Alignment.SOCKET), topology) == "8,12-15"
    assert found("0-3,8-15", CpuQuery(5, Alignment.SOCKET, True), topology) == "8-12"
    assert refused("0-3,12-15", CpuQuery(5, Alignment.SOCKET, True), topology) == (
        "no socket has 5 free CPUs: socket 0-7 has 4, socket 8-15 has 4")


def test_smt_is_packed_required_or_spread() -> None:
    assert found("0,2,4-7", CpuQuery(2)) == "4-5"
    assert found("0,2,4-5", CpuQuery(2, smt=SmtUse.SPREAD)) == "0,2"
    assert found("0-7", CpuQuery(2, smt=SmtUse.SPREAD)) == "0,2"
    assert found("0-2,4-5", CpuQuery(4, smt=SmtUse.REQUIRE)) == "0-1,4-5"


def test_an_offline_sibling_makes_no_core_partial() -> None:
    topology = TWO_NODES._replace(online=ALL - CpuSet((1,)))
    assert found("0,2-3", CpuQuery(1, smt=SmtUse.REQUIRE), topology) == "0"


def test_an_even_split_is_taken_only_where_one_node_is_not_enough() -> None:
    assert found("0-7,8-15", CpuQuery(8, spread_nodes=True)) == "0-7"
    assert found("0-7,8-15", CpuQuery(10, spread_nodes=True)) == "0-4,8-12"
    assert found("0-7,8-15", CpuQuery(10)) == "0-9"
    assert found("0-7,8-15", CpuQuery(10, smt=SmtUse.REQUIRE, spread_nodes=True)) == "0-5,8-11"
    assert found("0-7,8-9", CpuQuery(9, spread_nodes=True)) == "0-8"  # no even split exists


def test_growing_stays_around_what_is_kept_and_shrinking_gives_the_rest_back() -> None:
    assert found("0-7,10-15", CpuQuery(4, keep=cpus("8-9"))) == "8-11"
    best = best_part(TWO_NODES, cpus("0"), cpus("1-3,8"), CpuQuery(2))
    assert isinstance(best, FoundCpus)
    assert str(best.cpus) == "2-3"


def test_the_nearest_nodes_are_taken() -> None:
    nodes = {node: CpuSet((2 * node, 2 * node + 1)) for node in range(4)}
    distances = {a: {b: 10 if a == b else 12 if a + b == 3 else 31 for b in range(4)} for a in range(4)}
    topology = Topology.build(cpus("0-7"), nodes=nodes, distances=distances)
    assert found("0-7", CpuQuery(4), topology) == "0-1,6-7"
    assert found("0-6", CpuQuery(4), topology) == "2-5"


def test_fewer_caches_are_better_than_near_nodes_where_caches_come_first() -> None:
    nodes = {node: cpus(f"{4 * node}-{4 * node + 3}") for node in range(4)}
    distances = {a: {b: 10 if a == b else 12 if a // 2 == b // 2 else 32 for b in range(4)} for a in range(4)}
    topology = Topology.build(ALL, caches=groups("0-3", "4-5", "6-7", "8-11", "12-13", "14-15"), nodes=nodes,
                              distances=distances)
    assert found("0-15", CpuQuery(8), topology) == "0-7"
    assert found("0-15", CpuQuery(8, Alignment.CACHE), topology) == "0-3,8-11"


def test_caches_over_nodes_are_counted_once() -> None:
    nodes = {node: cpus(f"{4 * node}-{4 * node + 3}") for node in range(4)}
    topology = Topology.build(ALL, caches=groups("0-7", "8-15"), nodes=nodes)
    best = best_cpus(topology, ALL - CpuSet((0,)), CpuQuery(6))
    assert best == FoundCpus(cpus("1-2,4-7"), CpuCost(2, 0, 0, 1, 0, 0, 0, 0, 1, 1))
    # All of one node breaks the cache that the other one shares.
    assert best_cpus(topology, ALL, CpuQuery(4)) == FoundCpus(cpus("0-3"), CpuCost(1, 0, 0, 1, 0, 0, 1, 0, 4, 0))


def test_cpus_without_a_cache_or_node_are_in_one_together() -> None:
    topology = Topology.build(cpus("0-5"), nodes={0: cpus("0-3")})
    best = best_cpus(topology, cpus("0-5"), CpuQuery(2))
    assert best == FoundCpus(cpus("4-5"), CpuCost(1, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    assert best_cpus(Topology.build(cpus("3")), cpus("3"), CpuQuery(1)) == FoundCpus(
        cpus("3"), CpuCost(1, 0, 0, 1, 0, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(("free", "query", "why"), [
    ("0-2", CpuQuery(4), "needs 4 CPUs, 3 are free: node 0 has 3, node 1 has 0"),
    ("0-2", CpuQuery(6, keep=cpus("8-9")),
     "needs 4 CPUs more than the 2 that are kept, 3 are free: node 0 has 3, node 1 has 0"),
    ("0", CpuQuery(2), "needs 2 CPUs, 1 is free: node 0 has 1, node 1 has 0"),
    ("0-2", CpuQuery(1, keep=cpus("8-9")), "1 CPU is fewer than the 2 that are kept"),
    ("0-3,8-12", CpuQuery(6, Alignment.NODE, True), "no node has 6 free CPUs: node 0 has 4, node 1 has 5"),
    ("0-3,5", CpuQuery(5, Alignment.CACHE, True),
     "no cache has 5 free CPUs: cache 0-3 has 4, cache 4-7 has 1, cache 8-11 has 0, cache 12-15 has 0"),
    ("0-3,8-11", CpuQuery(3, smt=SmtUse.REQUIRE), "needs whole cores of 2 threads: 3 CPUs are no multiple"),
    ("0,2,4-5", CpuQuery(4, Alignment.CORE, True),
     "needs 4 CPUs in whole cores, 2 are in cores that are wholly free"),
    ("0-2,4-5", CpuQuery(4, smt=SmtUse.REQUIRE, keep=cpus("8")),
     "needs whole cores, and siblings of the kept CPUs 8 are not free"),
    ("0-5,8-11", CpuQuery(8, Alignment.NODE, True, SmtUse.REQUIRE),
     "no node has 8 free CPUs in whole cores: node 0 has 6, node 1 has 4"),
    ("0-7", CpuQuery(4, Alignment.NODE, True, keep=cpus("8,1")),
     "needs CPUs within one node, and those that are kept (1,8) are in several"),
])
def test_a_refusal_says_why_with_numbers(free: str, query: CpuQuery, why: str) -> None:
    assert refused(str(cpus(free) - query.keep), query) == why


def test_whole_cores_of_several_widths_that_do_not_add_up_are_named() -> None:
    topology = Topology.build(cpus("0-4"), groups("0-1", "2-4"))
    assert found("0-4", CpuQuery(3, smt=SmtUse.REQUIRE), topology) == "2-4"
    assert refused("0-4", CpuQuery(4, smt=SmtUse.REQUIRE), topology) == (
        "needs whole cores: those that are wholly free have 2, 3 threads, which do not add up to 4 CPUs")


def test_kept_cpus_that_are_offline_are_named() -> None:
    topology = TWO_NODES._replace(online=ALL - CpuSet((8,)))
    assert refused("0-3", CpuQuery(4, keep=cpus("8-9")), topology) == "of the CPUs that are kept, 8 are offline"


def test_the_runner_up_costs_more_or_has_higher_numbers() -> None:
    best = best_cpus(TWO_NODES, cpus("0-3,8-11"), CpuQuery(2))
    assert isinstance(best, FoundCpus)
    other = runner_up(TWO_NODES, cpus("0-3,8-11"), CpuQuery(2), best)
    assert (str(best.cpus), best.cost.partial_cores) == ("0-1", 0)
    assert other is not None
    assert (str(other.cpus), other.cost.partial_cores) == ("0,2", 2)
    single = best_cpus(TWO_NODES, cpus("4,6"), CpuQuery(1))
    assert isinstance(single, FoundCpus)
    second = runner_up(TWO_NODES, cpus("4,6"), CpuQuery(1), single)
    assert second == FoundCpus(cpus("6"), single.cost)
    assert runner_up(TWO_NODES, cpus("4"), CpuQuery(1), FoundCpus(cpus("4"), single.cost._replace(
        leftover=0, node_left=0))) is None


def test_the_largest_set_follows_the_request() -> None:
    free = cpus("0-4,8,10,12-15")
    assert largest(TWO_NODES, free, CpuQuery(1)) == 11
    assert largest(TWO_NODES, free, CpuQuery(1, smt=SmtUse.REQUIRE)) == 8
    assert largest(TWO_NODES, free, CpuQuery(1, Alignment.NODE, True)) == 6
    assert largest(TWO_NODES, free, CpuQuery(1, Alignment.CACHE, True)) == 4
    assert largest(TWO_NODES, CpuSet(), CpuQuery(1)) == 0


def test_a_machine_of_512_cpus_in_16_nodes_is_searched() -> None:
    cores = [CpuSet((cpu, cpu + 256)) for cpu in range(256)]
    nodes = {node: union(cores[16 * node:16 * node + 16]) for node in range(16)}
    distances = {a: {b: 10 if a == b else 11 if a // 2 == b // 2 else 21 for b in range(16)} for a in range(16)}
    topology = Topology.build(cpus("0-511"), cores, [union(cores[8 * at:8 * at + 8]) for at in range(32)], nodes,
                              distances=distances)
    assert found("0-511", CpuQuery(64), topology) == "0-31,256-287"
    assert found("8-503", CpuQuery(40), topology) == "8-11,16-31,264-267,272-287"


def test_the_order_of_the_parts_follows_the_alignment() -> None:
    assert cost_order(Alignment.NODE)[:3] == ("nodes", "distance", "away")
    assert cost_order(Alignment.CACHE)[:3] == ("caches", "nodes", "distance")
    assert cost_order(Alignment.CORE)[:3] == ("partial_cores", "nodes", "distance")


def test_the_best_of_eight_nodes_in_four_sockets_touches_more_nodes_for_fewer_shared_cores() -> None:
    cores = [CpuSet((core, core + 48)) for core in range(48)]
    nodes = {node: union(cores[6 * node:6 * node + 6]) for node in range(8)}
    distances = {a: {b: 10 if a == b else 12 if a // 2 == b // 2 else 32 for b in nodes} for a in nodes}
    topology = Topology.build(CpuSet(range(96)), cores, list(nodes.values()), nodes, distances=distances)
    best = best_cpus(topology, cpus("0-1,5,9,12-14,17-20,22-24,27,29,35,37-38,40,47,56,65,67,72,79,85,87,91"),
                     CpuQuery(21, Alignment.CORE, smt=SmtUse.SPREAD))
    # Distances are tried in turn: at 420 there are six nodes with enough CPUs, but a core would be used twice.
    assert best == FoundCpus(cpus("0-1,5,9,12-14,17-20,22-24,27,29,37-38,40,56,87"),
                             CpuCost(6, 440, 0, 6, 0, 0, 0, 4, 4, 4))


def test_of_more_nodes_than_can_be_tried_some_near_ones_are_taken_with_a_bound() -> None:
    """32 nodes of 8 CPUs, at 32 different kinds of distances; 10 are needed, of more than 60 million choices."""
    parts = [CpuSet(range(8 * node, 8 * node + 8)) for node in range(32)]
    chance = random.Random(1)
    distances = {a: {b: 10 if a == b else chance.randint(12, 60) for b in range(32)} for a in range(32)}
    topology = Topology.build(union(parts), nodes=dict(enumerate(parts)), distances=distances)
    for size in (80, 160):
        found = best_cpus(topology, topology.online, CpuQuery(size))
        assert isinstance(found, FoundCpus)
        assert (len(found.cpus), found.cost.nodes) == (size, size // 8)
        if found.least_distance is not None:
            assert 0.8 * found.cost.distance <= found.least_distance <= found.cost.distance
        few = best_cpus(topology, topology.online, CpuQuery(size), effort=10_000)
        assert isinstance(few, FoundCpus)
        assert few.least_distance is not None
        assert few.cost.distance >= found.cost.distance >= few.least_distance
    near = best_cpus(topology, topology.online, CpuQuery(24))
    assert isinstance(near, FoundCpus)
    assert near.least_distance is None, "few nodes are tried to the end"
