"""What holds for every node, stated and searched for: the invariants of the placement rules, and of the plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st
from placement_worlds import World, any_cpus, befores, kubelet_worlds, policies, worlds

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import (
    ContainerState,
    ThreadId,
    ThreadRole,
    VmThread,
)
from vmpin.domain.policy import Policy, VcpuRule
from vmpin.domain.sandbox_placement import Placement, Verdict
from vmpin.pinning.plan import Observed, diff, ordered
from vmpin.placement.ownership import find_collisions
from vmpin.placement.rules import outlasts_creations


def masks(placement: Placement) -> list[CpuSet]:
    """Every mask that some thread gets."""
    found = [vcpu.cpus for vcpu in placement.vcpus] + list(placement.others.values())
    return [cpus for cpus in found if cpus is not None]


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
        for cpus in masks(placement):
            assert cpus.isdisjoint(foreign)


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
        pause = union(each.cpuset or EMPTY for each in request.containers if each.pause) & world.node.online
        alone = own.pool and (own.pool & pause or pause or own.pool)
        asked = union(each.cpuset or own.pool for each in live) if live else alone
        if placement.verdict is Verdict.UNMANAGED:
            assert placement.reasons
            assert (not live and world.node.shared_pool is None) or not (
                (asked | own.pool) & world.node.online) - own.foreign(request.id)
        elif placement.mask != asked & world.node.online:
            assert placement.verdict is Verdict.DEGRADED
            assert placement.reasons
            # All of them, or all of one container: that one shares the pool.
            assert any(each.cpuset is not None and (each.cpuset & world.node.online) <= own.foreign(request.id)
                       for each in live) or (asked & world.node.online) <= own.foreign(request.id)


@given(st.data(), worlds)
def test_where_the_pool_is_empty_no_sandbox_gets_more_than_its_containers_have_or_it_had(
        data: st.DataObject, world: World) -> None:
    """Between the kubelet's two writes the default set can be empty: CPUs outside it may be reserved."""
    world = replace(world, node=world.node._replace(shared_pool=EMPTY))
    before = data.draw(befores(world))
    for request, placement in zip(world.requests, world.place(Policy(), before), strict=True):
        live = [each for each in request.containers if each.state is not ContainerState.STOPPED and not each.pause]
        has = union(each.cpuset or EMPTY for each in live)
        had = before[request.id].mask if request.id in before else EMPTY
        event(placement.verdict)
        for cpus in masks(placement):
            assert cpus <= has or cpus <= had


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


@given(st.data(), worlds, policies)
def test_a_placement_that_outlasts_creations_is_the_same_when_the_containers_start(
        data: st.DataObject, world: World, policy: Policy) -> None:
    created = replace(world, requests=tuple(request._replace(containers=tuple(
        container._replace(creating=data.draw(st.booleans())) for container in request.containers))
        for request in world.requests))
    before = data.draw(befores(created))
    placements = created.place(policy, before)
    started = world.place(policy, created.kept(placements, before))
    for placement, after in zip(placements, started, strict=True):
        if outlasts_creations(placement, created.own.claims[placement.sandbox]):
            event(placement.verdict)
            assert (after.vcpus, after.others, after.containers) == (
                placement.vcpus, placement.others, placement.containers)


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


class Kernel:
    """Affinity as the kernel keeps it: what is shown is what was asked, as far as the cpuset cgroup leaves it."""

    def __init__(self, limit: CpuSet, show_limit: bool) -> None:
        self.limit = limit
        self.show_limit = show_limit
        self.actual: dict[ThreadId, CpuSet] = {}
        self.asked: dict[ThreadId, CpuSet] = {}
        self.shown: dict[ThreadId, CpuSet] = {}

    def set(self, thread: VmThread, cpus: CpuSet) -> None:
        if cpus & self.limit:  # else EINVAL, which changes nothing, and of which nothing is kept
            self.actual[thread.id] = cpus & self.limit
            self.asked[thread.id], self.shown[thread.id] = cpus, self.actual[thread.id]

    def observe(self, threads: Iterable[VmThread]) -> list[Observed]:
        return [Observed(thread, self.actual[thread.id], self.asked.get(thread.id), self.shown.get(thread.id),
                         self.limit if self.show_limit else None) for thread in threads]


def threads_of(placement: Placement) -> list[VmThread]:
    roles = [(ThreadRole.VCPU, vcpu.id) for vcpu in placement.vcpus]
    roles += [(role, None) for role in ThreadRole if role is not ThreadRole.VCPU]  # type: ignore[misc]
    return [VmThread(ThreadId(100 + at, 7), role, role.value, 104, vcpu) for at, (role, vcpu) in enumerate(roles)]


@given(st.data(), worlds, policies, st.booleans())
def test_a_second_diff_is_what_the_kernel_refused(
        data: st.DataObject, world: World, policy: Policy, show_limit: bool) -> None:
    """Whatever the masks were, and whatever the cpuset cgroup leaves of what was asked: where it leaves nothing, that
    is tried again, and nothing else is."""
    online = world.node.online
    limit = data.draw(st.sampled_from([online, CpuSet(list(online)[: len(online) // 2 + 1])]))
    for placement in world.place(policy):
        threads = threads_of(placement)
        kernel = Kernel(limit, show_limit)
        for thread in threads:
            kernel.actual[thread.id] = data.draw(any_cpus) & limit
        # An empty mask that is known to be all the cgroup leaves is not tried.
        refused = {thread.id for thread in threads
                   if (wanted := placement.cpus_for(thread.role, thread.vcpu)) is not None and not wanted & limit
                   and (kernel.actual[thread.id] or not show_limit)}
        operations = diff(placement, kernel.observe(threads))
        for operation in ordered(operations):
            kernel.set(operation.thread, operation.cpus)
        for seen in kernel.observe(threads):
            wanted = placement.cpus_for(seen.thread.role, seen.thread.vcpu)
            if wanted is None:
                assert seen.requested is None
            elif wanted & limit:
                assert seen.actual == wanted & limit
        event("some are refused" if refused else "none is refused")
        assert {operation.thread.id for operation in diff(placement, kernel.observe(threads))} == refused
