"""The placement rules, one table for each: exclusive containers, the sandbox mask, and the shared pool."""

from __future__ import annotations

import pytest
from decided import box, decide, node, own_cpus, shown, vcpus

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import Container, ContainerState, ThreadRole, VcpuId
from vmpin.domain.sandbox_placement import Previous, Verdict
from vmpin.placement.ownership import is_exclusive
from vmpin.placement.rules import UNMANAGED
from vmpin.placement.rulings import inferred


@pytest.mark.parametrize(("cpus", "declared", "pool", "exclusive"), [
    ("2-3", True, None, True),       # declared
    ("2-3", True, "0-7", True),      # declared, against the pool
    ("2-3", False, "0-1", False),    # declared shared, though it is disjoint
    ("2-3", None, "0-1,4-7", True),  # disjoint from P
    ("2-3", None, "0-2", False),     # it touches P
    ("2-3", None, None, False),      # P unknown: nothing is inferred
    ("2-3", None, "", False),        # an empty default set is no pool
    ("", None, "0-1", False),        # nothing is inferred of no CPUs
    (None, None, "0-1", False),
    (None, True, "0-1", False),      # nothing to own
])
def test_a_container_is_exclusive_when_declared_or_disjoint_from_a_known_pool(
        cpus: str | None, declared: bool | None, pool: str | None, exclusive: bool) -> None:
    known = None if pool is None else CpuSet.parse(pool)
    (container,) = inferred([box("main", cpus, declared)], known)
    assert is_exclusive(container) is exclusive
    by = {None: "pool", True: "declared"}.get(declared, "") if exclusive else ""
    assert container.ruled_by == by


@pytest.mark.parametrize(("state", "pause", "mask"), [
    (ContainerState.CREATED, False, "2-3,6"),
    (ContainerState.RUNNING, False, "2-3,6"),
    (ContainerState.STOPPED, False, "6"),
    (ContainerState.RUNNING, True, "6"),
])
def test_created_and_running_containers_count_stopped_and_pause_do_not(
        state: ContainerState, pause: bool, mask: str) -> None:
    containers = [own_cpus("main", "2-3")._replace(state=state, pause=pause), box("side", "6")]
    assert str(decide(containers, vcpus(0, 1, 2), node()).mask) == mask


def test_the_cpus_of_a_stopped_container_have_no_owner() -> None:
    stopped = own_cpus("main", "2-3")._replace(state=ContainerState.STOPPED)
    found = decide([box("side", None)], vcpus(0), node("0-3"), others=[[stopped]])
    assert shown(found) == {0: "0-3"}


@pytest.mark.parametrize(("containers", "pool", "others", "mask"), [
    # No container yet: P.
    ([], "0-3", [], "0-3"),
    # P unknown: the online CPUs minus every exclusive one, the sandbox's own too.
    ([box("side", None)], None, [[own_cpus("x", "4-15")]], "0-3"),
    ([own_cpus("main", "2"), box("side", None)], None, [[own_cpus("x", "4-15")]], "0-3"),
    # A container without a cpuset contributes P, as does one with an empty cpuset.
    ([box("side", None)], "0-3", [], "0-3"),
    ([box("side", "")], "0-3", [], "0-3"),
    ([own_cpus("main", "8-9"), box("side", None)], "0-3", [], "0-3,8-9"),
    # The OR of all, cut to what is online.
    ([own_cpus("main", "8-9"), box("side", "1,5"), box("more", "5-6")], None, [], "1,5-6,8-9"),
    ([own_cpus("main", "14-17"), box("side", "1,99")], None, [], "1,14-15"),
    # Nothing of the given pool is online: P is made as if it were unknown.
    ([], "90-91", [[own_cpus("x", "4-15")]], "0-3"),
])
def test_the_mask_is_the_or_of_the_cpusets_and_p_for_containers_without_one(
        containers: list[Container], pool: str | None, others: list[list[Container]], mask: str) -> None:
    found = decide(containers, vcpus(0, 1, 2), node(pool=pool), others=others)
    assert str(found.mask) == mask


def test_what_the_cgroup_of_a_vm_without_containers_refuses_is_waited_for() -> None:
    """Kata leaves the CPUs of a sandbox's last container in its cgroup, alone."""
    on = node(pool="0-1,4-15")
    for containers in ([], [box("pause", None, pause=True)], [box("main", "2-3", state=ContainerState.STOPPED)]):
        found = decide(containers, vcpus(0, 1), on, ended=True)
        assert found.waiting.startswith("waits for a container")
        assert (str(found.mask), found.verdict) == ("0-1,4-15", Verdict.FLOATING)
        # Without one that has ended it is no doing of Kata's.
        assert decide(containers, vcpus(0, 1), on).waiting == ""
    assert decide([box("side", "4-5")], vcpus(0, 1), on, ended=True).waiting == ""


@pytest.mark.parametrize(("pause", "pool", "mask"), [
    ("0-1", "0-15", "0-1"), ("0-1", "4-15", "0-1"), ("0-1,4-5", "4-15", "4-5"), (None, "4-15", "4-15"),
    ("2-3", "4-15", "4-15"), ("20-21", "4-15", "4-15"), ("0-1", "", "")])
def test_a_vm_with_a_pause_container_alone_stays_on_the_cpus_of_that(pause: str | None, pool: str, mask: str) -> None:
    """CRI-O's infra_ctr_cpuset, as OpenShift sets it: Kata's cgroup has no other CPUs while images are pulled. 2-3 are
    another pod's."""
    containers = [box("pause", pause, pause=True)]
    found = decide(containers, vcpus(0, 1), node(pool=pool), others=[[own_cpus("x", "2-3")]])
    assert str(found.mask) == mask
    if mask:
        assert found.verdict is (Verdict.DEGRADED if pause == "2-3" else Verdict.FLOATING)
        assert str(decide([*containers, box("side", "6")], vcpus(0, 1), node(pool=pool)).mask) == "6"


@pytest.mark.parametrize(("containers", "others", "before", "mask", "reason"), [
    # Every CPU went offline.
    ([box("side", "20-21")], [], "3-4", "3-4",
     "none of the sandbox's CPUs is online: the last valid mask 3-4 is kept"),
    ([own_cpus("main", "20-21")], [], "3-4,20", "3-4",
     "none of the sandbox's CPUs is online: the last valid mask 3-4 is kept"),
    ([box("side", "20-21")], [], "", "0-7", "none of the sandbox's CPUs is online: it is kept on the shared pool 0-7"),
    # Every CPU became another's.
    ([box("side", "2-3")], [[own_cpus("x", "2-3")]], "3-4", "3-4",
     "its CPUs 2-3 are other containers' alone: the last valid mask 3-4 is kept"),
    ([box("side", "2-3")], [[own_cpus("x", "2-3")]], "2-3", "0-1,4-7",
     "its CPUs 2-3 are other containers' alone: it is kept on the shared pool 0-1,4-7"),
])
def test_a_mask_of_which_nothing_is_left_is_replaced_and_reported(
        containers: list[Container], others: list[list[Container]], before: str, mask: str, reason: str) -> None:
    found = decide(containers, vcpus(0), node("0-7"), others=others, previous=Previous(CpuSet.parse(before)))
    assert str(found.mask) == mask
    assert found.verdict is Verdict.DEGRADED
    assert reason in found.reasons
    foreign = {cpu for theirs in others for each in theirs for cpu in each.cpuset or EMPTY}
    assert not foreign & found.vcpus[0].cpus.frozen()  # type: ignore[union-attr]


@pytest.mark.parametrize(("containers", "pinned"), [
    ([own_cpus("main", "14-17")], {1: "14", 2: "15"}),
    ([own_cpus("main", "16"), box("side", "1")], {}),  # none of those that it owns is left
    ([own_cpus("main", "14"), own_cpus("more", "15-16")], {1: "14", 2: "15"}),
])
def test_a_vm_of_which_some_owned_cpus_are_offline_is_degraded(containers: list[Container],
                                                              pinned: dict[int, str]) -> None:
    """As after `echo off >/sys/devices/system/cpu/smt/control`: each pod with whole cores has half of its CPUs."""
    found = decide(containers, vcpus(0, 1, 2), node())
    assert {vcpu.id: str(vcpu.cpus) for vcpu in found.vcpus if vcpu.pinned} == pinned
    assert found.verdict is Verdict.DEGRADED
    offline = "16-17" if len(containers) == 1 else "16"
    assert found.reasons == (f"CPUs {offline}, which its containers own, are not online",)


@pytest.mark.parametrize(("containers", "masks", "apart"), [
    ([box("side", "2-3"), box("log", "4")], {0: "0-1,4-7", 1: "0-1,4-7", 2: "0-1,4-7"}, "0-1,4-7"),
    # Not on the CPUs of the VM's exclusive container either.
    ([box("side", "2"), own_cpus("main", "4-5")], {0: "0-1,6-7", 1: "4", 2: "5"}, "0-1,6-7"),
    ([own_cpus("main", "4-5"), box("side", "2-3"), box("log", "4,6")], {0: "0-1,6-7", 1: "4", 2: "5"}, "0-1,6-7"),
])
def test_a_container_of_which_every_cpu_became_anothers_shares_the_pool_beside_the_others_cpus(
        containers: list[Container], masks: dict[int, str], apart: str) -> None:
    found = decide(containers, vcpus(0, 1, 2), node("0-7"), others=[[own_cpus("x", "2-3")]])
    assert shown(found) == masks
    assert str(found.others[ThreadRole.EMULATOR]) == apart
    assert found.verdict is Verdict.DEGRADED
    assert any(reason.startswith("the CPUs of side are other containers' alone: it is kept on the shared pool 0-1,")
               for reason in found.reasons)


@pytest.mark.parametrize(("containers", "pool", "others", "before", "why"), [
    ([box("side", "2-3")], None, [[own_cpus("x", "0-7")]], "2-3", "its CPUs 2-3 are other containers' alone"),
    ([box("side", None)], None, [[own_cpus("x", "0-7")]], "", "the shared pool has no CPU"),
    # An empty pool is no reason to use CPUs that are no pod's: they may be reserved.
    ([box("side", None)], "", [[own_cpus("x", "2-7")]], "", "the shared pool has no CPU"),
    ([box("side", "2-3")], "", [[own_cpus("x", "2-7")]], "3-4", "its CPUs 2-3 are other containers' alone"),
    ([], "", [], "", "the shared pool has no CPU"),
])
def test_a_sandbox_for_which_no_cpu_is_left_is_left_as_it_is(
        containers: list[Container], pool: str | None, others: list[list[Container]], before: str, why: str) -> None:
    found = decide(containers, vcpus(0), node("0-7", pool=pool), others=others,
                   previous=Previous(CpuSet.parse(before)))
    assert (found.verdict, found.mask, shown(found)) == (Verdict.UNMANAGED, EMPTY, {0: "None"})
    assert found.reasons == (f"{why}, and no CPU is left for it: its threads keep the masks they have",)


@pytest.mark.parametrize(("cpuset", "before", "mask"), [
    ("2-7", "", "2-3"), ("2-3", "", "2-3"), (None, "2-4", "2-3"), ("4-5", "2-4", "2-3")])
def test_with_an_empty_pool_a_sandbox_keeps_what_its_cpuset_has_else_what_it_had(cpuset: str | None, before: str,
                                                                                 mask: str) -> None:
    """Between the kubelet's two writes its default set can be empty, with strict reservation of 0-1."""
    found = decide([box("side", cpuset)], vcpus(0), node("0-7", pool=""), others=[[own_cpus("x", "4-7")]],
                   previous=Previous(CpuSet.parse(before)))
    assert shown(found) == {0: mask}


@pytest.mark.parametrize("containers", [
    [], [box("pause", "0-7", pause=True)], [box("gone", "0-1")._replace(state=ContainerState.STOPPED)]],
    ids=["none", "the pause container", "a stopped one"])
def test_a_vm_without_a_container_and_without_a_pool_is_left_as_it_is(containers: list[Container]) -> None:
    found = decide(containers, vcpus(0, 1), node("0-7"), others=[[own_cpus("x", "4-5")]])
    assert found.verdict is Verdict.UNMANAGED
    assert found.reasons == (UNMANAGED,)
    assert found.mask == EMPTY
    assert {place.cpus for place in found.vcpus} == set(found.others.values()) == {None}
    assert found.as_previous() == Previous(EMPTY, {VcpuId(0): (None, None), VcpuId(1): (None, None)})
    # Decided anew from that it is the same; with a pool, or a container, it is managed.
    assert decide(containers, vcpus(0, 1), node("0-7"), previous=found.as_previous()) == found
    assert str(decide(containers, vcpus(0, 1), node("0-7", pool="0-3")).mask) == "0-3"
    assert str(decide([*containers, box("side", "2")], vcpus(0, 1), node("0-7")).mask) == "2"


def test_a_vm_that_has_lost_its_containers_and_has_no_pool_keeps_its_mask() -> None:
    before = decide([own_cpus("main", "4-5"), box("side", "0-1")], vcpus(0, 1, 2), node("0-7")).as_previous()
    found = decide([], vcpus(0, 1, 2), node("0-7"), previous=before)
    assert str(found.mask) == "0-1,4-5"
    assert found.verdict is Verdict.DEGRADED
    assert found.reasons == ("no container of it is known any more, and no shared pool: the last valid mask 0-1,4-5 "
                             "is kept",)
    assert shown(found) == {0: "0-1,4-5", 1: "0-1,4-5", 2: "0-1,4-5"}
