"""The search against all sets tried in turn (exhaustive_cpus), on random machines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from exhaustive_cpus import cpu_set, legal_sets
from hypothesis import event, given, settings
from hypothesis import strategies as st
from random_machines import Case, cases

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuQuery, FoundCpus, Refusal, SmtUse
from vmpin.features.allocator.search.best_set import best_cpus, best_part, largest, runner_up
from vmpin.features.allocator.search.cost_tables import cost_order
from vmpin.features.allocator.search.cpu_groups import cpu_groups

MANY = settings(max_examples=150)


@MANY
@given(cases())
def test_the_best_set_is_the_one_that_trying_all_finds(case: Case) -> None:
    every = legal_sets(*case)
    found = best_cpus(*case)
    if not every:
        assert isinstance(found, Refusal)
        assert any(letter.isdigit() for letter in found.reason), found
        event("refused")
        return
    assert found == FoundCpus(cpu_set(every[0]), every[0].cost)
    event(f"{every[0].cost.nodes} nodes")


@MANY
@given(cases(), st.data())
def test_of_sets_as_good_for_it_a_container_moves_to_the_one_that_keeps_most_of_its_cpus(case: Case,
                                                                                         data: st.DataObject) -> None:
    topology, free, query = case
    present = CpuSet(data.draw(st.sets(st.sampled_from(sorted(free)), max_size=query.size))) if free else EMPTY
    every = legal_sets(*case)
    if not every:
        return
    own = cost_order(query.align).index("broken_nodes")
    as_good = [each for each in every if each.parts[:own] == every[0].parts[:own]]
    best = min(as_good, key=lambda each: (-len(cpu_set(each) & present), each))
    assert best_cpus(topology, free, query._replace(present=present)) == FoundCpus(cpu_set(best), best.cost)
    event(f"another set: {best != every[0]}")


@st.composite
def clustered(draw: st.DrawFn) -> Case:
    """Many small nodes, two or three in a socket: several sorts of nodes, each with more than one."""
    nodes, in_socket = draw(st.integers(5, 7)), draw(st.integers(2, 3))
    parts = [CpuSet((2 * node, 2 * node + 1)) for node in range(nodes)]
    far = draw(st.sampled_from([[32] * 4, [20, 32, 20, 32], [12, 40, 21, 33]]))
    distances = {a: {b: 10 if a == b else 12 if a // in_socket == b // in_socket else
                     far[abs(a // in_socket - b // in_socket) % 4] for b in range(nodes)} for a in range(nodes)}
    caches = parts if draw(st.booleans()) else [union(parts[at:at + 3]) for at in range(0, nodes, 3)]
    topology = Topology.build(union(parts), parts if draw(st.booleans()) else [], caches, dict(enumerate(parts)),
                              distances=distances)
    free = CpuSet(draw(st.sets(st.sampled_from(list(topology.online)), min_size=6)))
    query = CpuQuery(draw(st.integers(2, len(free))), draw(st.sampled_from(list(Alignment))), False,
                     draw(st.sampled_from(list(SmtUse))), draw(st.integers(0, 3)) == 0,
                     frozenset(draw(st.sets(st.integers(0, nodes - 1), max_size=1))))
    return Case(topology, free, query)


@MANY
@given(clustered())
def test_the_best_set_of_many_nodes_in_several_sockets_is_the_one_that_trying_all_finds(case: Case) -> None:
    every, found = legal_sets(*case), best_cpus(*case)
    if not every:
        assert isinstance(found, Refusal)
        return
    assert found == FoundCpus(cpu_set(every[0]), every[0].cost)
    other = next((each for each in every if each.cost != every[0].cost), every[1] if len(every) > 1 else None)
    assert runner_up(*case, found) == (other and FoundCpus(cpu_set(other), other.cost))
    event(f"{every[0].cost.nodes} nodes")


@st.composite
def scattered(draw: st.DrawFn) -> Case:
    """Small nodes at distances of any kind, so that none is like another; some CPUs are kept."""
    nodes = draw(st.integers(4, 7))
    parts = [CpuSet((2 * node, 2 * node + 1)) for node in range(nodes)]
    far = draw(st.sampled_from([st.integers(11, 60), st.sampled_from([12, 20, 32]), st.sampled_from([0, 20])]))
    distances = {a: {b: 10 if a == b else draw(far) for b in range(nodes)} for a in range(nodes)}
    caches = parts if draw(st.booleans()) else [union(parts[at:at + 2]) for at in range(0, nodes, 2)]
    topology = Topology.build(union(parts), parts if draw(st.booleans()) else [], caches, dict(enumerate(parts)),
                              distances=distances)
    some = CpuSet(draw(st.sets(st.sampled_from(list(topology.online)), min_size=5)))
    keep = CpuSet(list(some)[:draw(st.sampled_from([0, 0, 1, 3]))])
    query = CpuQuery(draw(st.integers(len(keep) + 1, len(some))), draw(st.sampled_from(list(Alignment))),
                     draw(st.integers(0, 4)) == 0, draw(st.sampled_from(list(SmtUse))), draw(st.integers(0, 2)) == 0,
                     frozenset(draw(st.sets(st.integers(0, nodes - 1), max_size=1))), keep)
    return Case(topology, some - keep, query)


@settings(max_examples=400)
@given(scattered(), st.integers(0, 1500))
def test_a_search_that_ends_early_has_a_legal_set_and_a_bound_that_is_never_wrong(case: Case, effort: int) -> None:
    every, found = legal_sets(*case), best_cpus(*case, effort=effort)
    assert found == best_cpus(*case, effort=effort)
    if not every:
        assert isinstance(found, Refusal)
        return
    assert isinstance(found, FoundCpus)
    best, same = every[0], next(each for each in every if cpu_set(each) == found.cpus)
    assert found.cost == same.cost
    if found.least_distance is None:
        event("proven")
        assert found.cpus == cpu_set(best)
        return
    before = cost_order(case.query.align).index("distance")
    assert same.parts[:before] == best.parts[:before]
    assert found.least_distance <= best.cost.distance <= found.cost.distance
    event("the nearest nodes" if best.cost.distance == found.cost.distance else "others")
    event("bound reached" if found.least_distance == best.cost.distance else "below")
    other = runner_up(*case, found, effort=effort)
    assert other is None or other.cpus in map(cpu_set, every)


@MANY
@given(scattered())
def test_the_nearest_of_nodes_that_are_all_different_are_the_ones_that_trying_all_finds(case: Case) -> None:
    every, found = legal_sets(*case), best_cpus(*case)
    assert found == FoundCpus(cpu_set(every[0]), every[0].cost) if every else isinstance(found, Refusal)


@MANY
@given(cases(most=11))
def test_the_runner_up_is_the_best_that_costs_more_or_the_next_by_number(case: Case) -> None:
    best, every = best_cpus(*case), legal_sets(*case)
    if isinstance(best, Refusal):
        return
    other = next((each for each in every if each.cost != every[0].cost), every[1] if len(every) > 1 else None)
    event("none" if other is None else "costs more" if other.cost != every[0].cost else "costs the same")
    assert runner_up(*case, best) == (other and FoundCpus(cpu_set(other), other.cost))


@given(cases(), st.data())
def test_the_best_part_is_the_one_that_trying_all_finds(case: Case, data: st.DataObject) -> None:
    held = CpuSet(data.draw(st.sets(st.sampled_from(list(case.topology.online)), min_size=1)))
    query = case.query._replace(keep=EMPTY, size=data.draw(st.integers(1, len(held))))
    every = legal_sets(case.topology, case.free | held, query, held)
    found = best_part(case.topology, case.free, held, query)
    assert isinstance(found, Refusal) if not every else found == FoundCpus(cpu_set(every[0]), every[0].cost)


@given(cases(most=9))
def test_the_largest_set_fits_and_no_larger_one_does(case: Case) -> None:
    query = case.query._replace(keep=EMPTY)
    sizes = [size for size in range(1, len(case.topology.online) + 1)
             if legal_sets(case.topology, case.free, query._replace(size=size))]
    assert largest(case.topology, case.free, query) == max(sizes, default=0)


@given(cases(), st.data())
def test_the_order_of_maps_and_groups_plays_no_part(case: Case, data: st.DataObject) -> None:
    topology, free, query = case

    def mixed(values: Iterable[Any]) -> Any:
        return data.draw(st.permutations(list(values)))

    distances = {node: dict(mixed(row.items())) for node, row in mixed(topology.distances.items())}
    other = Topology.build(topology.online, mixed(topology.cores), mixed(topology.caches),
                           dict(mixed(topology.nodes.items())), distances=distances, sockets=mixed(topology.sockets))
    cpu_groups.cache_clear()
    assert best_cpus(other, free, query._replace(near=frozenset(mixed(query.near)))) == best_cpus(*case)


@given(cases())
def test_growing_keeps_all_and_shrinking_back_is_possible(case: Case) -> None:
    found = best_cpus(*case)
    if isinstance(found, Refusal):
        return
    assert case.query.keep <= found.cpus <= case.free | case.query.keep
    assert len(found.cpus) == case.query.size
    back = best_part(case.topology, case.free - found.cpus, found.cpus, CpuQuery(len(case.query.keep)))
    assert isinstance(back, FoundCpus)
    assert back.cpus <= found.cpus


@given(cases())
def test_no_set_is_better_than_the_best_by_the_order_that_is_shown(case: Case) -> None:
    best = best_cpus(*case)
    if isinstance(best, FoundCpus) and (second := runner_up(*case, best)):
        order = cost_order(case.query.align)
        ranks = [tuple(getattr(each.cost, name) for name in order) for each in (best, second)]
        assert (ranks[0], list(best.cpus)) < (ranks[1], list(second.cpus))
