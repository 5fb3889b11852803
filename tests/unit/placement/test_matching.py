"""Which vCPU gets which CPU: guest cores on host cores, guest nodes on host nodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from hypothesis import event, given
from hypothesis import strategies as st
from placement_worlds import guests, topologies

from vmpin.cpuset import CpuSet
from vmpin.domain.model import Vcpu, VcpuId
from vmpin.domain.topology import Topology
from vmpin.placement.vcpus import match


def fits(pairs: Mapping[VcpuId, int], guest: Mapping[VcpuId, Vcpu], topology: Topology,
         place_of: Callable[[int], object], group_of: Callable[[Vcpu], object]) -> bool:
    """Whether vCPUs of one group are at one place."""
    groups: dict[object, set[object]] = {}
    for vcpu, cpu in pairs.items():
        groups.setdefault(group_of(guest[vcpu]), set()).add(place_of(cpu))
    return all(len(places) == 1 for places in groups.values())


def perfect(pairs: Mapping[VcpuId, int], guest: Mapping[VcpuId, Vcpu], topology: Topology) -> bool:
    """Every guest core on one host core, every guest node on one host node."""
    return (fits(pairs, guest, topology, topology.core_of, lambda vcpu: (vcpu.node, vcpu.core))
            and fits(pairs, guest, topology, topology.node_of, lambda vcpu: vcpu.node))


@st.composite
def uniform_matches(draw: st.DrawFn) -> tuple[tuple[Vcpu, ...], list[int], Topology]:
    """A guest of equal cores and nodes, ids in any order, and as many CPUs of a host."""
    threads, cores, nodes = draw(st.sampled_from([
        (2, 1, 2), (2, 2, 1), (2, 3, 1), (2, 1, 3), (1, 2, 2), (1, 3, 2), (1, 2, 3), (3, 2, 1), (3, 1, 2)]))
    ids = list(draw(st.permutations(range(threads * cores * nodes))))
    guest = tuple(Vcpu(VcpuId(ids.pop()), core, node) for node in range(nodes) for core in range(cores)
                  for _ in range(threads))
    host = draw(topologies().filter(lambda topology: len(topology.online) >= len(guest)))
    if draw(st.booleans()):  # whole cores, so that a perfect match is likely
        free: list[int] = []
        for core in draw(st.permutations(host.cores)):
            mine = list(core & host.online)
            if len(free) + len(mine) <= len(guest):
                free += mine
        free += [cpu for cpu in host.online if cpu not in free][: len(guest) - len(free)]
    else:
        free = list(draw(st.permutations(list(host.online))))[: len(guest)]
    return guest, free, host


@given(uniform_matches())
def test_a_perfect_match_of_a_uniform_guest_is_found_where_there_is_one(
        case: tuple[tuple[Vcpu, ...], list[int], Topology]) -> None:
    vcpus, cpus, topology = case
    guest = {vcpu.id: vcpu for vcpu in vcpus}
    found = match(vcpus, cpus, {}, guest, topology)
    assert sorted(found) == sorted(guest)
    assert sorted(found.values()) == sorted(cpus)
    exists = any(perfect(dict(zip(guest, way, strict=True)), guest, topology) for way in itertools.permutations(cpus))
    event("there is one" if exists else "there is none")
    assert perfect(found, guest, topology) or not exists


def test_a_guest_node_that_no_host_node_can_take_leaves_one_whole_for_the_next() -> None:
    """Of three vCPUs for CPUs 0, 2 | 3, 4 | 6 the third gets CPU 6, so that the other guest node is not parted too."""
    host = Topology.build(CpuSet(range(8)), nodes={0: CpuSet((0, 1, 2)), 1: CpuSet((3, 4, 5)), 2: CpuSet((6, 7))})
    guest = {VcpuId(number): Vcpu(VcpuId(number), None, int(number > 2)) for number in range(5)}
    assert match(list(guest.values()), [0, 2, 3, 4, 6], {}, guest, host) == {0: 0, 1: 2, 2: 6, 3: 3, 4: 4}


@given(st.data(), guests(6), topologies())
def test_a_match_is_a_match(data: st.DataObject, vcpus: Sequence[Vcpu], topology: Topology) -> None:
    """Each vCPU one CPU of those given, none twice, whatever stays where it is."""
    cpus = list(data.draw(st.permutations(list(topology.online))))
    split = data.draw(st.integers(0, len(vcpus)))
    kept = {vcpu.id: cpu for vcpu, cpu in zip(vcpus[:split], cpus, strict=False)}
    free = cpus[len(kept):]
    todo = [vcpu for vcpu in vcpus if vcpu.id not in kept][: len(free)]
    found = match(todo, free, kept, {vcpu.id: vcpu for vcpu in vcpus}, topology)
    assert found.keys() == {vcpu.id for vcpu in todo}
    assert len(set(found.values())) == len(found)
    assert set(found.values()) <= set(free)


@st.composite
def bound_guests(draw: st.DrawFn) -> tuple[list[Vcpu], list[int], Topology]:
    """Guest nodes whose memory is bound to some host nodes, or to none; and CPUs of three host nodes."""
    nodes = {cpu: draw(st.integers(0, 2)) for cpu in range(6)}
    topology = Topology.build(CpuSet(nodes), nodes={node: CpuSet(cpu for cpu, there in nodes.items() if there == node)
                                                    for node in range(3)})
    memory = [frozenset(draw(st.sets(st.integers(0, 3), max_size=2))) for _ in range(3)]
    placed = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    guest = [Vcpu(VcpuId(number), None, node, memory[node]) for number, node in enumerate(placed)]
    return guest, draw(st.permutations(range(6)))[:max(len(guest), draw(st.integers(1, 6)))], topology


def near_memory(pairs: Mapping[VcpuId, int], guest: Sequence[Vcpu], topology: Topology) -> int:
    return sum(topology.node_of(pairs[vcpu.id]) in vcpu.memory for vcpu in guest)


@given(bound_guests())
def test_as_few_vcpus_as_possible_are_away_from_their_memory(case: tuple[list[Vcpu], list[int], Topology]) -> None:
    """Compared with every way to give them CPUs."""
    guest, cpus, topology = case
    found = match(guest, cpus, {}, {vcpu.id: vcpu for vcpu in guest}, topology)
    assert sorted(found) == [vcpu.id for vcpu in guest]
    assert len(set(found.values())) == len(guest)
    most = max(near_memory(dict(zip((vcpu.id for vcpu in guest), way, strict=True)), guest, topology)
               for way in itertools.permutations(cpus, len(guest)))
    assert near_memory(found, guest, topology) == most


def test_guest_nodes_go_where_their_memory_is_and_siblings_stay_together() -> None:
    """Kata with enable_numa: guest node 0 on host node 1, and the other way round."""
    host = Topology.build(CpuSet(range(8)), cores=[CpuSet([cpu, cpu + 1]) for cpu in (0, 2, 4, 6)],
                          nodes={0: CpuSet(range(4)), 1: CpuSet(range(4, 8))})
    guest = [Vcpu(VcpuId(number), number // 2, number // 4, frozenset([1 - number // 4])) for number in range(8)]
    found = match(guest, range(8), {}, {vcpu.id: vcpu for vcpu in guest}, host)
    assert [found[vcpu.id] for vcpu in guest] == [4, 5, 6, 7, 0, 1, 2, 3]


def test_memory_of_the_whole_guest_draws_its_vcpus() -> None:
    host = Topology.build(CpuSet(range(8)), nodes={0: CpuSet(range(4)), 1: CpuSet(range(4, 8))})
    guest = [Vcpu(VcpuId(number), memory=frozenset([1])) for number in range(3)]
    assert set(match(guest, range(3, 8), {}, {vcpu.id: vcpu for vcpu in guest}, host).values()) == {4, 5, 6}


def test_siblings_stay_together_on_the_node_of_their_memory() -> None:
    host = Topology.build(CpuSet(range(8)), cores=[CpuSet([cpu, cpu + 1]) for cpu in (0, 2, 4, 6)],
                          nodes={0: CpuSet(range(6)), 1: CpuSet([6, 7])})
    guest = [Vcpu(VcpuId(number), number // 2, 0, frozenset([0])) for number in range(4)]
    whole = {vcpu.id: vcpu for vcpu in guest}
    assert match(guest, [0, 2, 3, 4, 5], {}, whole, host) == {0: 2, 1: 3, 2: 4, 3: 5}
    assert match([guest[3]], [0, 5], {VcpuId(2): 4}, whole, host) == {3: 5}
