"""Where a VM's other threads go, and the containers in its guest."""

from __future__ import annotations

import pytest
from decided import MAIN, SIDE, box, decide, guests, node, own_cpus, shown, vcpus

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerState, ThreadRole, VcpuId
from vmpin.domain.policy import Policy, ThreadPolicy
from vmpin.domain.sandbox_placement import Verdict
from vmpin.placement.ownership import Node


def test_a_container_gets_the_vcpus_behind_its_cpus_and_shared_ones_the_floating() -> None:
    containers = [own_cpus("a", "4,7"), own_cpus("b", "5-6"), box("s1", "0-1"), box("s2", None),
                  box("gone", "0-1")._replace(state=ContainerState.STOPPED)]
    found = decide(containers, vcpus(0, 1, 2, 3, 4, 5), node(pool="0-3"))
    assert shown(found) == {0: "0-3", 1: "0-3", 2: "4", 3: "5", 4: "6", 5: "7"}
    assert guests(found) == {"a": [2, 5], "b": [3, 4], "s1": [0, 1], "s2": [0, 1]}


@pytest.mark.parametrize(("ids", "beside", "verdict"), [
    ((0, 1, 2), [0], Verdict.PINNED),
    # No spare one: every vCPU, and that is no one's loss.
    ((0, 1), [0, 1], Verdict.PINNED),
])
def test_the_pause_container_goes_with_the_spare_vcpus(ids: tuple[int, ...], beside: list[int],
                                                       verdict: Verdict) -> None:
    found = decide([box("pause", "0-15", exclusive=True, pause=True), MAIN], vcpus(*ids), node(pool="0-1"))
    assert guests(found)["pause"] == beside
    assert (found.verdict, str(found.mask)) == (verdict, "4-5")


def test_two_containers_that_own_the_same_cpu_both_get_its_vcpu() -> None:
    found = decide([own_cpus("a", "4-5"), own_cpus("b", "5-6")], vcpus(0, 1, 2), node())
    assert guests(found) == {"a": [0, 1], "b": [1, 2]}


@pytest.mark.parametrize(("rule", "on", "expect", "reason"), [
    (ThreadPolicy.APART, node(pool="0-1"), "0-1", ""),
    (ThreadPolicy.SANDBOX, node(pool="0-1"), "0-1,4-5", ""),
    (ThreadPolicy.SHARED, node(pool="0-1"), "0-1", ""),
    (ThreadPolicy.HOUSEKEEPING, node(pool="0-1", housekeeping="7,13"), "7", ""),  # 13 is another's
    (ThreadPolicy.HOUSEKEEPING, node(pool="0-1"), "0-1,4-5", "housekeeping"),
    (ThreadPolicy.HOUSEKEEPING, node(pool="0-1", housekeeping="12-13"), "0-1,4-5", "housekeeping"),
    (CpuSet.parse("7-8,13,99"), node(pool="0-1"), "7-8", ""),
    (CpuSet.parse("12-13"), node(pool="0-1"), "0-1,4-5", "12-13"),
    (CpuSet.parse("90"), node(pool="0-1"), "0-1,4-5", "90"),
    (ThreadPolicy.OFF, node(pool="0-1"), None, ""),
])
@pytest.mark.parametrize("role", [role for role in ThreadRole if role is not ThreadRole.VCPU])
def test_other_threads_go_where_their_policy_says(
        role: ThreadRole, rule: ThreadPolicy | CpuSet, on: Node, expect: str | None, reason: str) -> None:
    policy = Policy.of({role.policy: rule})
    found = decide([MAIN, SIDE], vcpus(0, 1, 2), on, policy, others=[[own_cpus("x", "12-13")]])
    cpus = found.cpus_for(role, None)
    assert (None if cpus is None else str(cpus)) == expect
    text = f"{role.policy}: {reason}: no such CPU can be used; the sandbox mask is used"
    assert found.reasons == ((text,) if reason else ())
    assert found.verdict is Verdict.PINNED
    others = {each: str(where) for each, where in found.others.items() if each.policy != role.policy}
    assert set(others.values()) == {"0-1"}


def test_other_threads_of_a_sandbox_with_exclusive_cpus_only_are_on_those() -> None:
    found = decide([MAIN], vcpus(0, 1), node(pool="0-1"))
    assert {str(cpus) for cpus in found.others.values()} == {"4-5"}
    assert found.verdict is Verdict.PINNED
    assert found.reasons == ()


def test_other_threads_of_a_sandbox_without_exclusive_cpus_are_on_its_mask() -> None:
    found = decide([SIDE], vcpus(0, 1), node(pool="0-3"))
    assert {str(cpus) for cpus in found.others.values()} == {str(found.mask)}


def test_shared_threads_of_a_sandbox_without_shared_cpus_go_to_the_pool() -> None:
    found = decide([MAIN], vcpus(0, 1), node(pool="0-1,12"), Policy()._replace(vhost=ThreadPolicy.SHARED),
                   others=[[own_cpus("x", "12")]])
    assert str(found.cpus_for(ThreadRole.VHOST, None)) == "0-1"


def test_a_vcpu_without_a_placement_is_left_alone() -> None:
    found = decide([MAIN], vcpus(0, 1), node())
    assert found.cpus_for(ThreadRole.VCPU, VcpuId(9)) is None
    assert found.cpus_for(ThreadRole.VCPU, None) is None
    assert str(found.cpus_for(ThreadRole.VCPU, VcpuId(1))) == "5"
