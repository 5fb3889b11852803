"""The same node is placed the same way: determinism, and what a change leaves where it is."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import assume, event, given
from hypothesis import strategies as st
from placement_worlds import World, befores, kubelet_worlds, policies, worlds

from vmpin.cpuset import CpuSet
from vmpin.domain.model import (
    Container,
    ContainerId,
    ContainerState,
    SandboxId,
    Vcpu,
    VcpuId,
    VcpuState,
)
from vmpin.domain.policy import Policy, SpareVcpuRule, VcpuRule
from vmpin.domain.sandbox_placement import Previous
from vmpin.domain.topology import Topology
from vmpin.placement.ownership import Node
from vmpin.placement.rules import PlacementRequest


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
    """One was just plugged in, or a watcher began and has identified none yet: an identified vCPU stays, and the
    others get their CPUs back when they are identified again."""
    policy = Policy(spare_vcpus=spare)
    first = world.place(policy)
    identified = [data.draw(st.lists(st.sampled_from(each.vcpus), unique=True) if each.vcpus else st.just([]))
                  for each in world.requests]
    meanwhile = World(world.node, tuple(
        each._replace(vcpus=tuple(vcpus), vcpu_state=VcpuState.UNIDENTIFIED) for each,
        vcpus in zip(world.requests, identified, strict=True)))
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
    """Some CPUs go off and come back, or what is known of exclusive CPUs does, or the policy."""
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
    meanwhile = World(world.node, tuple(each._replace(vcpu_state=VcpuState.UNIDENTIFIED) for each in world.requests))
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
