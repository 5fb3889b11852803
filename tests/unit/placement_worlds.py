"""Nodes with their sandboxes, drawn by hypothesis: those that a kubelet would leave, and those that make no sense."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hypothesis import strategies as st
from ruled import claims

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import (
    Container,
    ContainerId,
    ContainerState,
    SandboxId,
    Vcpu,
    VcpuId,
    VcpuState,
)
from vmpin.domain.policy import Policy, SpareVcpuRule, ThreadPolicy, VcpuRule
from vmpin.domain.sandbox_placement import Placement, Previous
from vmpin.domain.topology import Topology
from vmpin.placement.ownership import Node, Ownership, ownership
from vmpin.placement.rules import PlacementRequest, place

#: CPUs of the largest node drawn.
MOST = 16
OriginalMasks = Mapping[SandboxId, Previous]


@dataclass(frozen=True)
class World:
    """A node with its sandboxes."""

    node: Node
    requests: tuple[PlacementRequest, ...]

    @property
    def own(self) -> Ownership:
        return ownership({each.id: claims(each.containers, self.node) for each in self.requests}, self.node)

    def place(self, policy: Policy | None = None, before: OriginalMasks | None = None) -> tuple[Placement, ...]:
        own = self.own
        return tuple(place(each, self.node, own, policy or Policy(), (before or {}).get(each.id))
                     for each in self.requests)

    def kept(self, placements: Iterable[Placement], before: OriginalMasks | None = None) -> OriginalMasks:
        """What the next placements keep to, as reconcile.placement_cache has it."""
        return {each.id: placement.as_previous((before or {}).get(each.id), each.vcpus_identified)
                for each, placement in zip(self.requests, placements, strict=True)}


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """1 to 16 CPUs, SMT 1, 2 or 4 with siblings side by side or far apart, one or two memory nodes, some CPUs off."""
    count = draw(st.sampled_from([8, 12, 16]) | st.integers(1, MOST))
    smt = draw(st.sampled_from([1, 2, 2, 4]))
    cores: list[CpuSet] = []
    if draw(st.booleans()):
        cores = [CpuSet(range(cpu, min(cpu + smt, count))) for cpu in range(0, count, smt)]
    else:
        far = -(-count // smt)
        cores = [CpuSet(range(core, count, far)) for core in range(far)]
    split = draw(st.integers(0, len(cores)))
    nodes = {0: union(cores[:split]), 1: union(cores[split:])}
    off = draw(st.sets(st.integers(0, count - 1), max_size=count - 1)) if draw(st.integers(0, 3)) == 0 else set()
    return Topology.build(CpuSet(range(count)) - CpuSet(off), cores=cores, nodes=nodes)


@st.composite
def guests(draw: st.DrawFn, fewest: int = 0, most: int = 6) -> tuple[Vcpu, ...]:
    """vCPUs with holes in their ids, in any order, with or without cores and nodes."""
    ids = list(draw(st.permutations(range(13))))[: draw(st.integers(fewest, most))]
    about = draw(st.sampled_from(["nothing", "cores", "nodes", "both"]))
    small = st.none() | st.integers(0, 2)
    return tuple(Vcpu(VcpuId(number), draw(small) if about in ("cores", "both") else None,
                      draw(small) if about in ("nodes", "both") else None) for number in ids)


vcpu_states = st.sampled_from([*[VcpuState.IDENTIFIED] * 5, VcpuState.UNIDENTIFIED])
states = st.sampled_from([ContainerState.RUNNING, ContainerState.RUNNING, ContainerState.CREATED,
                          ContainerState.STOPPED])


@st.composite
def kubelet_worlds(draw: st.DrawFn) -> World:
    """As the static CPU manager leaves a node: exclusive CPUs apart, everything else on the shared pool."""
    topology = draw(topologies())
    # The kubelet always keeps some CPUs.
    given_away = list(draw(st.permutations(list(topology.online))))[draw(st.integers(1, 3)):]
    plan: list[list[tuple[str, CpuSet | None]]] = []
    for sandbox in range(draw(st.integers(1, 3))):
        containers: list[tuple[str, CpuSet | None]] = []
        for number in range(draw(st.sampled_from([1, 2, 3, 0]))):
            size = draw(st.sampled_from([1, 2, 3, 0]))
            mine, given_away = given_away[:size], given_away[size:]
            containers.append((f"c{sandbox}-{number}", CpuSet(mine) or None))
        plan.append(containers)
    taken = union(cpus or EMPTY for containers in plan for _, cpus in containers)
    pool = topology.online - taken
    pool_known = draw(st.booleans())
    requests = []
    for sandbox, containers in enumerate(plan):
        made = []
        for name, cpus in containers:
            state = draw(states)
            if cpus is None:
                shared = draw(st.sampled_from([None, pool]))
                made.append(Container(ContainerId(name), name, shared, None, state))
            else:
                made.append(Container(ContainerId(name), name, cpus, None if pool_known else True, state))
        if draw(st.booleans()):
            made.insert(0, Container(ContainerId(f"pod{sandbox}"), "", pool, pause=True))
        exclusive = sum(len(cpus or EMPTY) for _, cpus in containers)
        cpus_of_it = draw(guests(max(0, exclusive - 2), exclusive + 2))
        requests.append(PlacementRequest(SandboxId(f"pod{sandbox}"), cpus_of_it, tuple(made)))
    housekeeping = CpuSet(draw(st.sets(st.sampled_from(list(pool)), max_size=2)))
    return World(Node(topology, pool if pool_known else None, housekeeping), tuple(requests))


some_cpus = st.sets(st.integers(0, MOST + 1), min_size=1, max_size=6).map(CpuSet)
any_cpus = some_cpus | st.just(EMPTY)


@st.composite
def hostile_worlds(draw: st.DrawFn) -> World:
    """Anything goes: overlapping, offline and empty cpusets, a pool and housekeeping CPUs that make no sense."""
    topology = draw(topologies())
    requests = []
    for sandbox in range(draw(st.integers(1, 3))):
        containers = tuple(
            Container(ContainerId(f"c{number}"), "", draw(some_cpus | any_cpus | st.none()),
                      draw(st.sampled_from([True, None, True, False])), draw(states), draw(st.integers(0, 5)) == 5)
            for number in range(draw(st.sampled_from([2, 3, 1, 4, 0]))))
        requests.append(PlacementRequest(SandboxId(f"pod{sandbox}"), draw(guests(most=10)), containers,
                                vcpu_state=draw(vcpu_states)))
    return World(Node(topology, draw(any_cpus | st.none()), draw(any_cpus)), tuple(requests))


worlds = kubelet_worlds() | hostile_worlds() | kubelet_worlds()
rules = st.sampled_from(ThreadPolicy) | some_cpus
policies = st.builds(Policy, st.sampled_from(VcpuRule), st.sampled_from(SpareVcpuRule), rules, rules, rules, rules,
                     rules)


@st.composite
def befores(draw: st.DrawFn, world: World) -> OriginalMasks:
    """What a placement before could have been, or a state file says: anything."""
    lone = st.integers(0, MOST + 1).map(lambda cpu: CpuSet([cpu]))
    names = st.none() | st.sampled_from([ContainerId(f"c{number}") for number in range(4)])
    pair = st.tuples(lone | any_cpus | st.none(), names)
    ids = st.integers(0, 12).map(VcpuId)
    return {each.id: Previous(draw(any_cpus), draw(st.dictionaries(ids, pair, max_size=8)),
                              draw(st.dictionaries(ids, st.integers(0, MOST + 1), max_size=8)))
            for each in world.requests if draw(st.booleans())}
