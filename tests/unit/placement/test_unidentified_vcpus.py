"""Placement while vCPU threads cannot be identified, and the CPUs that vCPUs return to."""

from __future__ import annotations

import pytest
from decided import MAIN, SIDE, box, decide, guests, node, own_cpus, shown, vcpus

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import Container, ContainerId, ThreadRole, VcpuId, VcpuState
from vmpin.domain.policy import Policy, ThreadPolicy, VcpuRule
from vmpin.domain.sandbox_placement import Previous, Verdict
from vmpin.placement.rules import VCPUS_UNIDENTIFIED

UNIDENTIFIED = VcpuState.UNIDENTIFIED


def test_vcpus_that_cannot_be_distinguished_degrade_and_every_thread_is_on_the_mask() -> None:
    policy = Policy(iothreads=ThreadPolicy.HOUSEKEEPING, vhost=ThreadPolicy.OFF, emulator=CpuSet.parse("9"),
                    virtiofsd=CpuSet.parse("9"))
    found = decide([MAIN, SIDE], vcpus(0), node(housekeeping="7"), policy, vcpu_state=UNIDENTIFIED)
    assert found.verdict is Verdict.DEGRADED
    assert found.reasons == (
        "its vCPU threads cannot all be identified: its other threads are kept on the sandbox mask",)
    for role in (ThreadRole.IOTHREAD, ThreadRole.VHOST, ThreadRole.EMULATOR, ThreadRole.KVM):
        assert str(found.cpus_for(role, None)) == "0-1,4-5"  # any of them may be a vCPU
    assert str(found.cpus_for(ThreadRole.VIRTIOFSD, None)) == "9"
    assert shown(found) == {0: "0-1,4-5"}
    assert guests(found) == {"main": [0], "side": [0]}


@pytest.mark.parametrize("containers", [[MAIN, SIDE], [SIDE]])
def test_vcpus_that_cannot_be_identified_yet_are_waited_for(containers: list[Container]) -> None:
    found = decide(containers, vcpus(), node(), vcpu_state=VcpuState.AWAITED)
    assert (found.verdict, found.reasons) == (Verdict.WAITING, (VCPUS_UNIDENTIFIED,))
    # Where threads go is the same.
    late = decide(containers, vcpus(), node(), vcpu_state=UNIDENTIFIED)
    assert late.verdict is Verdict.DEGRADED
    assert (late.mask, late.others, late.vcpus) == (found.mask, found.others, found.vcpus)
    # What else is wrong is said.
    lost = decide([box("side", "20-21")], vcpus(), node("0-7"), vcpu_state=VcpuState.AWAITED)
    assert lost.verdict is Verdict.DEGRADED


def test_while_a_vcpu_is_unidentified_those_with_a_place_keep_it() -> None:
    """0, 1 and 7 are placed when 6 is plugged in, which cannot be identified before it has run."""
    first = decide([MAIN, SIDE], vcpus(0, 1, 7), node())
    assert shown(first) == {0: "0-1", 1: "4", 7: "5"}
    found = decide([MAIN, SIDE], vcpus(0, 1, 7), node(), previous=first.as_previous(), vcpu_state=UNIDENTIFIED)
    assert found.verdict is Verdict.DEGRADED
    assert shown(found) == shown(first)
    assert guests(found) == guests(first)
    # The rest of the VM's threads may be the vCPU.
    assert str(found.cpus_for(ThreadRole.EMULATOR, None)) == "0-1,4-5"
    then = decide([MAIN, SIDE], vcpus(0, 1, 6, 7), node(),
                  previous=found.as_previous(first.as_previous(), identified=False))
    assert shown(then) == {0: "0-1", 1: "4", 6: "0-1", 7: "5"}


def test_while_a_vcpu_is_unidentified_no_outdated_place_is_kept() -> None:
    before = Previous(CpuSet.parse("0-5"), {
        VcpuId(0): (CpuSet.parse("2"), ContainerId("main")),    # was main's, and is another's by now
        VcpuId(1): (CpuSet.parse("5"), ContainerId("main")),
        VcpuId(2): (CpuSet.parse("5"), ContainerId("main")),    # that is 1's
        VcpuId(3): (EMPTY, ContainerId("main")),
        VcpuId(4): (CpuSet.parse("4"), None)})                  # floated there, when it was the pool
    found = decide([MAIN, SIDE], vcpus(0, 1, 2, 3, 4), node(), previous=before, vcpu_state=UNIDENTIFIED)
    assert shown(found) == {0: "0-1", 1: "5", 2: "0-1", 3: "0-1", 4: "0-1"}
    # No vCPU has a place of its own: it may be theirs.
    before = Previous(before.mask, {VcpuId(4): before.vcpus[VcpuId(4)]})
    assert shown(decide([MAIN, SIDE], vcpus(4), node(), previous=before, vcpu_state=UNIDENTIFIED)) == {4: "0-1,4-5"}


def test_while_a_vcpu_is_unidentified_a_container_without_one_is_not_shut_out() -> None:
    """The new one's CPUs are left to the vCPUs that have no place."""
    first = decide([MAIN, SIDE], vcpus(0, 1, 2), node())
    assert shown(first) == {0: "0-1", 1: "4", 2: "5"}
    found = decide([MAIN, SIDE, own_cpus("new", "6-7")], vcpus(0, 1, 2), node(), previous=first.as_previous(),
                   vcpu_state=UNIDENTIFIED)
    assert shown(found) == {0: "0-1,4-7", 1: "4", 2: "5"}


def test_a_vcpu_gets_the_cpu_back_that_it_had_to_itself() -> None:
    """The others could float on where they are just as well."""
    all_four = vcpus(0, 1, 6, 7)
    before = decide([MAIN, SIDE], vcpus(0, 1), node()).as_previous()
    before = decide([MAIN, SIDE], all_four, node(), previous=before).as_previous(before)
    assert before.pairs == {0: 4, 1: 5}
    for meanwhile in (
        decide([MAIN, SIDE], all_four, node("0-3,6-15"), previous=before),                   # both CPUs are off
        decide([MAIN, SIDE], all_four, node("0-3,5-15"), previous=before),                   # one of them
        decide([box("main", "4-5"), SIDE], all_four, node(), previous=before),               # no checkpoint
        decide([MAIN, SIDE], all_four, node(), Policy(vcpus=VcpuRule.UNION), before),
    ):
        again = decide([MAIN, SIDE], all_four, node(), previous=meanwhile.as_previous(before))
        assert shown(again) == {0: "4", 1: "5", 6: "0-1", 7: "0-1"}


def test_a_cpu_that_another_vcpu_had_since_is_not_returned_to() -> None:
    before = Previous(CpuSet.parse("4-5"), {}, {VcpuId(0): 4, VcpuId(1): 5})
    placed = decide([MAIN], vcpus(6, 7), node(), previous=before)
    assert shown(placed) == {6: "4", 7: "5"}
    assert placed.as_previous(before).pairs == {6: 4, 7: 5}


def test_whatever_is_said_of_earlier_cpus_no_two_vcpus_get_one() -> None:
    before = Previous(EMPTY, {}, {VcpuId(0): 4, VcpuId(1): 4, VcpuId(2): 15, VcpuId(9): 5})
    assert shown(decide([MAIN, SIDE], vcpus(0, 1, 2), node(), previous=before)) == {0: "5", 1: "4", 2: "0-1"}


def test_off_is_off_for_vcpus_that_cannot_be_distinguished_too() -> None:
    found = decide([MAIN], (), node(), Policy(vcpus=VcpuRule.OFF, emulator=ThreadPolicy.OFF), vcpu_state=UNIDENTIFIED)
    assert (found.verdict, found.reasons, found.cpus_for(ThreadRole.EMULATOR, None)) == (Verdict.OFF, (), None)
