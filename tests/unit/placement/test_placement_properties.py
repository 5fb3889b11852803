"""What holds for every node, stated and searched for: the invariants of the placement rules."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import assume, event, given
from hypothesis import strategies as st

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import (
    Container,
    ContainerId,
    ContainerState,
    SandboxId,
    ThreadId,
    ThreadRole,
    Vcpu,
    VcpuId,
    VmThread,
)
from vmpin.domain.topology import Topology
from vmpin.pinning.plan import Observed, diff, ordered
from vmpin.placement.matching import match
from vmpin.placement.ownership import Node, Ownership, claims_of, find_collisions, ownership
from vmpin.placement.policy import Policy, SpareVcpuRule, ThreadPolicy, VcpuRule
from vmpin.placement.rules import Placement, PlacementRequest, Verdict, place
from vmpin.placement.vcpus import Previous

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
        return ownership({each.id: claims_of(each.containers, self.node) for each in self.requests}, self.node)

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
    told = draw(st.booleans())
    requests = []
    for sandbox, containers in enumerate(plan):
        made = []
        for name, cpus in containers:
            state = draw(states)
            if cpus is None:
                shared = draw(st.sampled_from([None, pool]))
                made.append(Container(ContainerId(name), name, shared, None, state))
            else:
                made.append(Container(ContainerId(name), name, cpus, None if told else True, state))
        if draw(st.booleans()):
            made.insert(0, Container(ContainerId(f"pod{sandbox}"), "", pool, pause=True))
        exclusive = sum(len(cpus or EMPTY) for _, cpus in containers)
        cpus_of_it = draw(guests(max(0, exclusive - 2), exclusive + 2))
        requests.append(PlacementRequest(SandboxId(f"pod{sandbox}"), cpus_of_it, tuple(made)))
    housekeeping = CpuSet(draw(st.sets(st.sampled_from(list(pool)), max_size=2)))
    return World(Node(topology, pool if told else None, housekeeping), tuple(requests))


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
                                vcpus_identified=draw(st.integers(0, 5)) < 5))
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


def masks(placement: Placement) -> list[CpuSet]:
    """Every mask that some thread gets."""
    found = [vcpu.cpus for vcpu in placement.vcpus] + list(placement.others.values())
    return [cpus for cpus in found if cpus is not None]


# --- for every node --------------------------------------------------------------------------------------------------

@given(st.data(), worlds, policies)
def test_no_thread_gets_an_empty_mask_an_offline_cpu_or_anothers_cpu(
        data: st.DataObject, world: World, policy: Policy) -> None:
    own = world.own
    for placement in world.place(policy, data.draw(befores(world))):
        foreign = own.foreign(placement.sandbox)
        if placement.verdict is Verdict.UNMANAGED:
            assert masks(placement) == []
            continue
        assert placement.mask
        for cpus in [placement.mask, *masks(placement)]:
            assert cpus
            assert cpus <= world.node.online
        if world.node.online - foreign:
            for cpus in masks(placement):
                assert cpus.isdisjoint(foreign)
        else:
            assert placement.verdict in (Verdict.DEGRADED, Verdict.OFF)


@given(st.data(), worlds)
def test_by_default_no_thread_is_outside_the_sandbox_mask(data: st.DataObject, world: World) -> None:
    for placement in world.place(Policy(), data.draw(befores(world))):
        for cpus in masks(placement):
            assert cpus <= placement.mask


@given(st.data(), worlds)
def test_by_default_no_other_thread_is_on_an_exclusive_cpu_while_the_sandbox_has_others(
        data: st.DataObject, world: World) -> None:
    """Of a VM whose vCPUs are all known: else any thread may be one."""
    own = world.own
    for request, placement in zip(world.requests, world.place(Policy(), data.draw(befores(world))), strict=True):
        left = placement.mask - own.claims[request.id].cpus - own.foreign(request.id)
        event("there are others" if left else "there are no others")
        if left and request.vcpus_identified:
            assert set(placement.others.values()) == {left}


@given(worlds)
def test_the_mask_is_no_wider_than_what_the_containers_and_the_pool_give(world: World) -> None:
    own = world.own
    for request, placement in zip(world.requests, world.place(), strict=True):
        live = [each for each in request.containers if each.state is not ContainerState.STOPPED and not each.pause]
        asked = union(each.cpuset or own.pool for each in live) if live else own.pool
        if not live and world.node.shared_pool is None:
            assert placement.verdict is Verdict.UNMANAGED
        elif placement.mask != asked & world.node.online:
            assert placement.verdict is Verdict.DEGRADED
            assert placement.reasons
            assert (asked & world.node.online) <= own.foreign(request.id)


@given(st.data(), worlds, policies)
def test_one_to_one_is_one_to_one_and_every_exclusive_cpu_has_its_vcpu(
        data: st.DataObject, world: World, policy: Policy) -> None:
    policy = policy._replace(vcpus=VcpuRule.AUTO)
    own = world.own
    for request, placement in zip(world.requests, world.place(policy, data.draw(befores(world))), strict=True):
        exclusive = own.claims[request.id].cpus
        pinned = [vcpu for vcpu in placement.vcpus if vcpu.pinned]
        cpus = [vcpu.cpus.first for vcpu in pinned if vcpu.cpus is not None]
        assert all(vcpu.cpus is not None and len(vcpu.cpus) == 1 for vcpu in pinned)
        assert len(set(cpus)) == len(cpus) == len(pinned)
        if request.vcpus_identified and len(request.vcpus) >= len(exclusive):
            event("one-to-one" if exclusive else "nothing exclusive")
            assert CpuSet(cpus) == exclusive
            assert [vcpu.id for vcpu in placement.vcpus if vcpu.container is not None] == [vcpu.id for vcpu in pinned]
        else:
            assert not pinned
            assert placement.verdict in (Verdict.DEGRADED, Verdict.UNMANAGED)


@given(kubelet_worlds(), policies)
def test_on_a_node_that_agrees_with_itself_no_cpu_is_used_twice(world: World, policy: Policy) -> None:
    assert find_collisions(world.own) == []
    placements = world.place(policy._replace(vcpus=VcpuRule.AUTO))
    pinned = [cpu for placement in placements for vcpu in placement.vcpus if vcpu.pinned for cpu in vcpu.cpus or EMPTY]
    assert len(set(pinned)) == len(pinned)
    for one, other in itertools.permutations(placements, 2):
        exclusive = world.own.claims[one.sandbox].cpus
        assert all(cpus.isdisjoint(exclusive) for cpus in masks(other))


@given(st.data(), worlds)
def test_shared_work_stays_off_the_exclusive_cpus_while_there_are_others(data: st.DataObject, world: World) -> None:
    own = world.own
    for request, placement in zip(world.requests, world.place(Policy(), data.draw(befores(world))), strict=True):
        exclusive = own.claims[request.id].cpus
        left = placement.mask - exclusive - own.foreign(request.id)
        apart = request.vcpus_identified and any(vcpu.container is not None for vcpu in placement.vcpus)
        for vcpu in placement.vcpus:
            if apart and left and vcpu.container is None:
                assert vcpu.cpus == left


@given(st.data(), worlds)
def test_every_container_has_vcpus_and_exclusive_ones_only_their_own(data: st.DataObject, world: World) -> None:
    for request, placement in zip(world.requests, world.place(Policy(), data.draw(befores(world))), strict=True):
        live = [each for each in request.containers if each.state is not ContainerState.STOPPED]
        assert set(placement.containers) == {each.id for each in live}
        by_id = {vcpu.id: vcpu for vcpu in placement.vcpus}
        for each in live:
            mine = placement.containers[each.id]
            assert bool(mine) == bool(request.vcpus)
            assert list(mine) == sorted(mine)
            if placement.verdict is Verdict.PINNED and each.id in dict(world.own.claims[request.id].exclusive):
                cpus = union(by_id[vcpu].cpus or EMPTY for vcpu in mine)
                assert each.cpuset is not None
                assert cpus == each.cpuset & world.node.online


@given(worlds, policies)
def test_a_degraded_verdict_has_a_reason_and_pinned_means_nothing_is_missing(world: World, policy: Policy) -> None:
    for request, placement in zip(world.requests, world.place(policy), strict=True):
        assert placement.verdict is not Verdict.DEGRADED or placement.reasons
        if placement.verdict is not Verdict.UNMANAGED:
            assert (placement.verdict is Verdict.OFF) == (policy.vcpus is VcpuRule.OFF)
        if placement.verdict is Verdict.PINNED:
            assert request.vcpus_identified
            assert {cpu for vcpu in placement.vcpus if vcpu.pinned for cpu in vcpu.cpus or EMPTY} == set(
                world.own.claims[request.id].cpus)
        assert len(set(placement.reasons)) == len(placement.reasons)


# --- determinism and stability ---------------------------------------------------------------------------------------

@given(st.data(), worlds, policies)
def test_the_same_node_gives_the_same_placement_in_whatever_order_the_vcpus_come(
        data: st.DataObject, world: World, policy: Policy) -> None:
    before = data.draw(befores(world))
    shuffled = World(world.node, tuple(
        each._replace(vcpus=tuple(data.draw(st.permutations(each.vcpus)))) for each in world.requests))
    backwards = {key: Previous(value.mask, dict(reversed(list(value.vcpus.items()))),
                               dict(reversed(list(value.pairs.items())))) for key, value in before.items()}
    first = world.place(policy, before)
    assert world.place(policy, before) == first
    assert shuffled.place(policy, before) == first
    assert world.place(policy, backwards) == first


@given(st.data(), worlds, policies)
def test_placing_again_with_its_own_outcome_changes_nothing(
        data: st.DataObject, world: World, policy: Policy) -> None:
    before = data.draw(befores(world))
    first = world.place(policy, before)
    before = world.kept(first, before)
    second = world.place(policy, before)
    assert [each.vcpus for each in second] == [each.vcpus for each in first]
    assert [each.containers for each in second] == [each.containers for each in first]
    assert [each.others for each in second] == [each.others for each in first]
    assert [each.mask for each in second] == [each.mask for each in first]
    assert world.place(policy, world.kept(second, before)) == second


@given(st.data(), kubelet_worlds())
def test_one_container_or_vcpu_more_or_less_leaves_every_valid_pair(data: st.DataObject, world: World) -> None:
    before = world.place()
    at = data.draw(st.integers(0, len(world.requests) - 1))
    request = world.requests[at]
    pool = world.own.pool
    what = data.draw(st.sampled_from(["stop", "shared", "unplug", "plug"]))
    event(what)
    if what == "stop":
        assume(request.containers)
        gone = data.draw(st.sampled_from(request.containers))
        request = request._replace(containers=tuple(
            each._replace(state=ContainerState.STOPPED) if each is gone else each for each in request.containers))
    elif what == "shared":
        request = request._replace(containers=(*request.containers, Container(ContainerId("new"), "", pool)))
    elif what == "unplug":
        assume(request.vcpus)
        gone_vcpu = data.draw(st.sampled_from(request.vcpus))
        request = request._replace(vcpus=tuple(each for each in request.vcpus if each is not gone_vcpu))
    else:
        request = request._replace(vcpus=(*request.vcpus, Vcpu(VcpuId(data.draw(st.integers(13, 15))))))
    after = World(world.node, (*world.requests[:at], request, *world.requests[at + 1:]))
    exclusive = after.own.claims[request.id].cpus
    enough = len(request.vcpus) >= len(exclusive)
    for old, new in zip(before, after.place(Policy(), world.kept(before)), strict=True):
        kept = {vcpu.id: vcpu.cpus for vcpu in new.vcpus}
        for vcpu in old.vcpus:
            if not vcpu.pinned or vcpu.id not in kept:
                continue
            if new.sandbox != request.id or (enough and vcpu.cpus is not None and vcpu.cpus <= exclusive):
                assert kept[vcpu.id] == vcpu.cpus


@given(st.data(), kubelet_worlds(), st.sampled_from(SpareVcpuRule))
def test_a_vcpu_that_is_unidentified_for_a_while_moves_no_other(
        data: st.DataObject, world: World, spare: SpareVcpuRule) -> None:
    """One that was just plugged in, or all of a watcher's that has just begun: who is told stays where it was, and
    what the others had is theirs when they are told again."""
    policy = Policy(spare_vcpus=spare)
    first = world.place(policy)
    told = [data.draw(st.lists(st.sampled_from(each.vcpus), unique=True) if each.vcpus else st.just([]))
            for each in world.requests]
    meanwhile = World(world.node, tuple(
        each._replace(vcpus=tuple(vcpus), vcpus_identified=False) for each,
        vcpus in zip(world.requests, told, strict=True)))
    kept: dict[SandboxId, Previous] = {}
    before = world.kept(first)
    for old, new in zip(first, meanwhile.place(policy, before), strict=True):
        assert all(place.cpus == old.by_vcpu[place.id] for place in new.vcpus)
        assert {place.id: place.container for place in new.vcpus}.items() <= {
            place.id: place.container for place in old.vcpus}.items()
        kept[new.sandbox] = new.as_previous(before[new.sandbox], identified=False)
    assert world.place(policy, kept) == first


@given(st.data(), kubelet_worlds(), st.sampled_from(SpareVcpuRule))
def test_what_passes_leaves_every_one_to_one_pair(data: st.DataObject, world: World, spare: SpareVcpuRule) -> None:
    """Some CPUs go off and come back, or the word of who is exclusive does, or the policy."""
    policy = Policy(spare_vcpus=spare)
    # The vCPUs that float are the highest: those that no rule but stability keeps from being pinned.
    earlier = World(world.node, tuple(
        each._replace(vcpus=each.vcpus[:len(world.own.claims[each.id].cpus)]) for each in world.requests))
    before = earlier.kept(earlier.place(policy))
    first = world.place(policy, before)
    before = {each.sandbox: each.as_previous(before[each.sandbox]) for each in first}
    what = data.draw(st.sampled_from(["CPUs", "checkpoint", "policy"]))
    meanwhile, for_now, node = world, policy, world.node
    if what == "CPUs":
        left = CpuSet(data.draw(st.sets(st.sampled_from(list(node.online)), min_size=1)))
        meanwhile = replace(world, node=node._replace(topology=node.topology._replace(online=left)))
    elif what == "checkpoint":
        meanwhile = World(node._replace(shared_pool=None), tuple(
            each._replace(containers=tuple(one._replace(exclusive=None) for one in each.containers))
            for each in world.requests))
    else:
        for_now = Policy(vcpus=data.draw(st.sampled_from([VcpuRule.UNION, VcpuRule.OFF])))
    kept = {each.sandbox: each.as_previous(before[each.sandbox]) for each in meanwhile.place(for_now, before)}
    for old, new in zip(first, world.place(policy, kept), strict=True):
        assert {place.id: place.cpus for place in old.vcpus if place.pinned} == {
            place.id: place.cpus for place in new.vcpus if place.pinned}


@given(st.data(), worlds, policies)
def test_no_two_vcpus_have_one_cpu_while_some_are_unidentified(
        data: st.DataObject, world: World, policy: Policy) -> None:
    """Whatever a state file says."""
    meanwhile = World(world.node, tuple(each._replace(vcpus_identified=False) for each in world.requests))
    for placement in meanwhile.place(policy, data.draw(befores(world))):
        alone = [place.cpus for place in placement.vcpus
                 if place.container is not None and place.cpus is not None and len(place.cpus) == 1]
        assert len(set(alone)) == len(alone)


def moves(old: Previous, new: Mapping[VcpuId, CpuSet | None]) -> int:
    return sum(vcpu in old.vcpus and old.vcpus[vcpu][0] != cpus for vcpu, cpus in new.items())


@st.composite
def small_changes(draw: st.DrawFn) -> tuple[World, Previous]:
    """One sandbox of at most 5 vCPUs on 8 CPUs, with a placement before that has much to do with it."""
    node = Node(Topology.build(CpuSet(range(8))), draw(st.sampled_from([None, CpuSet([0]), CpuSet([0, 1])])),
                CpuSet([0]))
    pick = list(draw(st.permutations(range(2, 8))))
    containers = []
    for number in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 3))
        containers.append(Container(ContainerId(f"c{number}"), "", CpuSet(pick[:size]) or None, True))
        pick = pick[size:]
    if draw(st.booleans()):
        containers.append(Container(ContainerId("s"), "", CpuSet([0])))
    ids = draw(st.lists(st.integers(0, 6), unique=True, min_size=1, max_size=5))
    exclusive = [each.cpuset for each in containers if each.cpuset]
    likely = st.one_of(st.sampled_from([*exclusive, CpuSet([0])]), st.integers(0, 7).map(lambda cpu: CpuSet([cpu])))
    names = st.none() | st.sampled_from([each.id for each in containers])
    before = Previous(CpuSet(range(8)), {
        VcpuId(number): (draw(likely), draw(names)) for number in range(7) if draw(st.integers(0, 3))})
    request = PlacementRequest(SandboxId("pod"), tuple(Vcpu(VcpuId(each)) for each in ids), tuple(containers))
    return World(node, (request,)), before


@given(small_changes(), st.sampled_from(SpareVcpuRule))
def test_no_other_placement_by_the_rules_moves_fewer_vcpus(change: tuple[World, Previous],
                                                           spare: SpareVcpuRule) -> None:
    """Against every way there is to give out the same masks."""
    world, before = change
    (placement,) = world.place(Policy(spare_vcpus=spare), {SandboxId("pod"): before})
    ids = [vcpu.id for vcpu in placement.vcpus]
    given_out = [vcpu.cpus for vcpu in placement.vcpus]
    event("one-to-one" if any(vcpu.pinned for vcpu in placement.vcpus) else "shares")
    fewest = min(moves(before, dict(zip(ids, way, strict=True))) for way in set(itertools.permutations(given_out)))
    assert moves(before, placement.by_vcpu) == fewest


@given(kubelet_worlds())
def test_without_a_past_the_spare_vcpus_are_the_lowest_and_ids_ascend_with_cpus(world: World) -> None:
    blind = World(world.node, tuple(
        each._replace(vcpus=tuple(Vcpu(vcpu.id) for vcpu in each.vcpus)) for each in world.requests))
    for placement in blind.place():
        pinned = [vcpu for vcpu in placement.vcpus if vcpu.pinned]
        if pinned:
            assert placement.vcpus[-len(pinned):] == tuple(pinned)
            cpus = [vcpu.cpus.first for vcpu in pinned if vcpu.cpus is not None]
            assert cpus == sorted(cpus)


# --- the plan --------------------------------------------------------------------------------------------------------

class Kernel:
    """Affinity as the kernel keeps it: what is shown is what was asked, as far as the cpuset cgroup leaves it."""

    def __init__(self, limit: CpuSet, tell_limit: bool) -> None:
        self.limit = limit
        self.tell_limit = tell_limit
        self.actual: dict[ThreadId, CpuSet] = {}
        self.asked: dict[ThreadId, CpuSet] = {}
        self.shown: dict[ThreadId, CpuSet] = {}

    def set(self, thread: VmThread, cpus: CpuSet) -> None:
        if cpus & self.limit:  # else EINVAL, which changes nothing, and of which nothing is kept
            self.actual[thread.id] = cpus & self.limit
            self.asked[thread.id], self.shown[thread.id] = cpus, self.actual[thread.id]

    def observe(self, threads: Iterable[VmThread]) -> list[Observed]:
        return [Observed(thread, self.actual[thread.id], self.asked.get(thread.id), self.shown.get(thread.id),
                         self.limit if self.tell_limit else None) for thread in threads]


def threads_of(placement: Placement) -> list[VmThread]:
    roles = [(ThreadRole.VCPU, vcpu.id) for vcpu in placement.vcpus]
    roles += [(role, None) for role in ThreadRole if role is not ThreadRole.VCPU]  # type: ignore[misc]
    return [VmThread(ThreadId(100 + at, 7), role, role.value, 104, vcpu) for at, (role, vcpu) in enumerate(roles)]


@given(st.data(), worlds, policies, st.booleans())
def test_a_second_diff_is_what_the_kernel_refused(
        data: st.DataObject, world: World, policy: Policy, tell_limit: bool) -> None:
    """Whatever the masks were, and whatever the cpuset cgroup leaves of what was asked: where it leaves nothing, that
    is tried again, and nothing else is."""
    online = world.node.online
    limit = data.draw(st.sampled_from([online, CpuSet(list(online)[: len(online) // 2 + 1])]))
    for placement in world.place(policy):
        threads = threads_of(placement)
        kernel = Kernel(limit, tell_limit)
        for thread in threads:
            kernel.actual[thread.id] = data.draw(any_cpus) & limit
        # An empty mask that is known to be all the cgroup leaves is not tried.
        refused = {thread.id for thread in threads
                   if (wanted := placement.cpus_for(thread.role, thread.vcpu)) is not None and not wanted & limit
                   and (kernel.actual[thread.id] or not tell_limit)}
        operations = diff(placement, kernel.observe(threads))
        for operation in ordered(operations):
            kernel.set(operation.thread, operation.cpus)
        for seen in kernel.observe(threads):
            wanted = placement.cpus_for(seen.thread.role, seen.thread.vcpu)
            if wanted is None:
                assert seen.asked is None
            elif wanted & limit:
                assert seen.actual == wanted & limit
        event("some are refused" if refused else "none is refused")
        assert {operation.thread.id for operation in diff(placement, kernel.observe(threads))} == refused


# --- matching --------------------------------------------------------------------------------------------------------

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
