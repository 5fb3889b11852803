"""Which vCPUs are alone on an exclusive CPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from placement_worlds import World, hostile_worlds, kubelet_worlds
from ruled import claims

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import Container, ContainerId, SandboxId, ThreadRole, Vcpu, VcpuId
from vmpin.domain.policy import Policy
from vmpin.domain.topology import Topology
from vmpin.features.scheduling.lone_vcpus import why_not_alone
from vmpin.placement.ownership import Node, ownership
from vmpin.placement.rules import PlacementRequest, place

SHOP = SandboxId("shop")
NODE = Node(Topology.build(CpuSet.parse("0-7")), CpuSet.parse("0-1"), CpuSet.parse("0"))
ELSEWHERE = ("iothreads", "vhost", "emulator", "virtiofsd", "shim")


def whys(policy: Policy, vcpus: int, *containers: tuple[str, bool], collided: str = "") -> list[str]:
    """By vCPU. :param containers: the CPUs of each, and whether they are exclusive."""
    held = tuple(Container(ContainerId(f"c{number}"), cpuset=CpuSet.parse(cpus), exclusive=exclusive)
                 for number, (cpus, exclusive) in enumerate(containers))
    own = ownership({SHOP: claims(held, NODE)}, NODE)
    request = PlacementRequest(SHOP, tuple(Vcpu(VcpuId(number)) for number in range(vcpus)), held)
    placement = place(request, NODE, own, policy)
    return [why_not_alone(vcpu, placement, own.claims[SHOP].cpus, CpuSet.parse(collided), policy)
            for vcpu in placement.vcpus]


def test_pinned_vcpus_are_alone_where_the_sandbox_has_shared_cpus_for_its_other_threads() -> None:
    assert whys(Policy(), 3, ("4-5", True), ("0-1", False)) == ["it may run on CPUs 0-1", "", ""]
    assert whys(Policy(), 2, ("4-5", True), ("0-1", False)) == ["", ""]


def test_without_shared_cpus_each_rule_that_keeps_threads_there_is_named() -> None:
    assert whys(Policy(), 1, ("4", True)) == [
        "threads of the role iothread, vhost, kvm, emulator, virtiofsd, shim (policy apart, and the sandbox has no "
        "shared CPU) may run on CPU 4"]


@pytest.mark.parametrize("rule", ["shared", "housekeeping", "0-1"])
def test_policies_that_take_the_other_threads_elsewhere_leave_vcpus_alone(rule: str) -> None:
    policy = Policy.of({**dict.fromkeys(ELSEWHERE, rule)})
    assert whys(policy, 2, ("4-5", True)) == ["", ""]
    assert [bool(why) for why in whys(policy, 3, ("4-5", True))] == [True, True, True], "a spare vCPU may run there"
    spare = Policy.of({**dict.fromkeys(ELSEWHERE, rule), "spare_vcpus": "shared"})
    assert [not why for why in whys(spare, 3, ("4-5", True))].count(True) == 2


@pytest.mark.parametrize("key", ELSEWHERE)
def test_a_role_that_is_switched_off_may_run_anywhere(key: str) -> None:
    (why,) = whys(Policy.of({**dict.fromkeys(ELSEWHERE, "shared"), key: "off"}), 1, ("4", True))
    assert "(policy off) may run on CPU 4" in why


def test_what_floats_shares_or_is_not_placed_is_not_alone() -> None:
    shared = Policy.of(dict.fromkeys(ELSEWHERE, "shared"))
    assert whys(shared, 1, ("1", False)) == ["CPU 1 is not exclusive to its pod"]
    assert whys(Policy.of({"vcpus": "off"}), 1, ("4", True), ("0-1", False)) == ["its mask is not set"]
    assert whys(shared, 2, ("4", True)) == ["vCPU 1 may run on CPU 4", "vCPU 0 may run on CPU 4"]
    assert whys(shared, 1, ("4", True), collided="4") == ["another sandbox may use CPU 4, too"]


@given(kubelet_worlds() | hostile_worlds())
def test_no_other_thread_of_its_vm_may_run_where_a_vcpu_is_alone(world: World) -> None:
    own = world.own
    for placement in world.place(Policy.of(dict.fromkeys(ELSEWHERE, "shared"))):
        claim = own.claims.get(placement.sandbox)
        exclusive = EMPTY if claim is None else claim.cpus
        for vcpu in placement.vcpus:
            if why_not_alone(vcpu, placement, exclusive, EMPTY, Policy()):
                continue
            assert vcpu.cpus is not None
            others = [other.cpus for other in placement.vcpus if other is not vcpu] + [
                placement.cpus_for(role, None) for role in ThreadRole if role is not ThreadRole.VCPU]
            assert all(cpus is not None and cpus.isdisjoint(vcpu.cpus) for cpus in others)
            assert vcpu.cpus <= exclusive
            assert vcpu.cpus.isdisjoint(own.foreign(placement.sandbox))
