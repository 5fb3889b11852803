"""The placement rules, one table for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from decided import box, decide, guest, guests, node, own_cpus, shown, vcpus

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId, ThreadRole, Vcpu, VcpuId
from vmpin.placement.ownership import Collision, Node, claims_of, find_collisions, is_exclusive, ownership
from vmpin.placement.policy import Policy, SpareVcpuRule, ThreadPolicy, VcpuRule
from vmpin.placement.rules import UNMANAGED, VCPUS_UNIDENTIFIED, Verdict
from vmpin.placement.vcpus import Previous, share

# --- exclusive or shared ---------------------------------------------------------------------------------------------

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
    assert is_exclusive(box("main", cpus, declared), known) is exclusive


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


# --- S and P ---------------------------------------------------------------------------------------------------------

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
    # Nothing of the told pool is online: P is made as if it were unknown.
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
    # And there is no other.
    ([box("side", "2-3")], [[own_cpus("x", "0-7")]], "2-3", "0-7",
     "its CPUs 2-3 are other containers' alone, and no CPU is left for it: it may run on every online CPU"),
    ([box("side", None)], [[own_cpus("x", "0-7")]], "", "0-7",
     "the shared pool has no CPU, and no CPU is left for it: it may run on every online CPU"),
])
def test_a_mask_of_which_nothing_is_left_is_replaced_and_reported(
        containers: list[Container], others: list[list[Container]], before: str, mask: str, reason: str) -> None:
    found = decide(containers, vcpus(0), node("0-7"), others=others, previous=Previous(CpuSet.parse(before)))
    assert str(found.mask) == mask
    assert found.verdict is Verdict.DEGRADED
    assert reason in found.reasons
    foreign = {cpu for theirs in others for each in theirs for cpu in each.cpuset or EMPTY}
    if foreign != set(range(8)):
        assert not foreign & found.vcpus[0].cpus.frozen()  # type: ignore[union-attr]


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


# --- how many vCPUs for how many CPUs --------------------------------------------------------------------------------

@dataclass(frozen=True)
class Counts:
    """`on` None is a node with CPUs 0-1 as its pool and CPU 0 for housekeeping."""

    what: str
    containers: tuple[Container, ...]
    ids: tuple[int, ...]
    policy: Policy
    expect: dict[int, str]
    inside: dict[str, list[int]]
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    on: Node | None = None


MAIN, SIDE = own_cpus("main", "4-5"), box("side", "0-1")
SHARED, HOUSE = Policy(spare_vcpus=SpareVcpuRule.SHARED), Policy(spare_vcpus=SpareVcpuRule.HOUSEKEEPING)

COUNTS = [
    Counts("e=0: every vCPU floats on S", (SIDE,), (0, 1, 2), Policy(),
           {0: "0-1", 1: "0-1", 2: "0-1"}, {"side": [0, 1, 2]}, Verdict.FLOATING),
    Counts("e=0 and no container at all", (), (0,), Policy(), {0: "0-1"}, {}, Verdict.FLOATING),
    Counts("no vCPU and nothing exclusive", (SIDE,), (), Policy(), {}, {"side": []}, Verdict.FLOATING),
    Counts("n=e: one-to-one", (MAIN,), (0, 1), Policy(), {0: "4", 1: "5"}, {"main": [0, 1]}, Verdict.PINNED),
    Counts("n>e: the spare vCPU on S-E", (MAIN, SIDE), (0, 1, 2), Policy(),
           {0: "0-1", 1: "4", 2: "5"}, {"main": [1, 2], "side": [0]}, Verdict.PINNED),
    Counts("n>e, S-E empty: on S", (MAIN,), (0, 1, 2, 3), Policy(),
           {0: "4-5", 1: "4-5", 2: "4", 3: "5"}, {"main": [2, 3]}, Verdict.PINNED),
    Counts("n>e, S-E empty, spare on P", (MAIN,), (0, 1, 2), SHARED,
           {0: "0-1", 1: "4", 2: "5"}, {"main": [1, 2]}, Verdict.PINNED),
    Counts("n>e, S-E empty, spare on H", (MAIN,), (0, 1, 2), HOUSE,
           {0: "0", 1: "4", 2: "5"}, {"main": [1, 2]}, Verdict.PINNED),
    Counts("the spare policy is not asked where there is an S-E", (MAIN, box("side", "1")), (0, 1, 2), HOUSE,
           {0: "1", 1: "4", 2: "5"}, {"main": [1, 2], "side": [0]}, Verdict.PINNED),
    Counts("spare on H, but there is none", (MAIN,), (0, 1, 2), HOUSE,
           {0: "4-5", 1: "4", 2: "5"}, {"main": [1, 2]}, Verdict.PINNED,
           ("spare_vcpus: housekeeping: no housekeeping CPU can be used; the sandbox mask is used",),
           node(pool="0-1")),
    Counts("spare on P, but everything is exclusive", (MAIN,), (0, 1, 2), SHARED,
           {0: "4-5", 1: "4", 2: "5"}, {"main": [1, 2]}, Verdict.PINNED,
           ("spare_vcpus: shared: no CPU is in the shared pool; the sandbox mask is used",), node("4-5")),
    Counts("H is partly the sandbox's own: the rest of it", (MAIN,), (0, 1, 2), HOUSE,
           {0: "6", 1: "4", 2: "5"}, {"main": [1, 2]}, Verdict.PINNED, (), node(pool="0-1", housekeeping="5-6")),
    Counts("no spare vCPU for a shared container", (MAIN, SIDE), (0, 1), Policy(),
           {0: "4", 1: "5"}, {"main": [0, 1], "side": [0, 1]}, Verdict.DEGRADED,
           ("no vCPU is left for side: all 2 vCPUs back exclusive CPUs, and it may use every one of them",)),
    Counts("two exclusive containers", (MAIN, own_cpus("more", "8")), (0, 1, 2), Policy(),
           {0: "4", 1: "5", 2: "8"}, {"main": [0, 1], "more": [2]}, Verdict.PINNED),
    Counts("no vCPU for exclusive CPUs", (MAIN,), (), Policy(), {}, {"main": []}, Verdict.DEGRADED,
           ("no vCPU for 2 exclusive CPUs",)),
    Counts("0<n<e: shares, one kept for the shared", (own_cpus("a", "4-9"), own_cpus("b", "10-11"), SIDE),
           (0, 1, 2, 3, 4, 5), Policy(),
           {0: "0-1", 1: "4-9", 2: "4-9", 3: "4-9", 4: "4-9", 5: "10-11"},
           {"a": [1, 2, 3, 4], "b": [5], "side": [0]}, Verdict.DEGRADED,
           ("6 vCPUs for 8 exclusive CPUs: no one-to-one, each exclusive container has its own share of the vCPUs",)),
    Counts("0<n<e without shared containers: all vCPUs are shared out", (own_cpus("a", "4-6"), own_cpus("b", "7")),
           (0, 1, 2), Policy(), {0: "4-6", 1: "4-6", 2: "7"}, {"a": [0, 1], "b": [2]}, Verdict.DEGRADED,
           ("3 vCPUs for 4 exclusive CPUs: no one-to-one, each exclusive container has its own share of the vCPUs",)),
    Counts("fewer vCPUs than groups: all on S", (own_cpus("a", "4-6"), own_cpus("b", "7"), SIDE), (0, 1), Policy(),
           {0: "0-1,4-7", 1: "0-1,4-7"}, {"a": [0, 1], "b": [0, 1], "side": [0, 1]}, Verdict.DEGRADED,
           ("2 vCPUs for 4 exclusive CPUs, fewer than the 3 groups of containers to keep apart: every vCPU floats on "
            "the sandbox mask",)),
    Counts("one vCPU for one container with two CPUs", (MAIN,), (0,), Policy(), {0: "4-5"}, {"main": [0]},
           Verdict.DEGRADED,
           ("1 vCPUs for 2 exclusive CPUs: no one-to-one, each exclusive container has its own share of the vCPUs",)),
    Counts("union: every vCPU on S", (MAIN, SIDE), (0, 1, 2), Policy(vcpus=VcpuRule.UNION),
           {0: "0-1,4-5", 1: "0-1,4-5", 2: "0-1,4-5"}, {"main": [0, 1, 2], "side": [0, 1, 2]}, Verdict.FLOATING),
    Counts("off: left alone", (MAIN, SIDE), (0, 1), Policy(vcpus=VcpuRule.OFF),
           {0: "None", 1: "None"}, {"main": [0, 1], "side": [0, 1]}, Verdict.OFF),
]


@pytest.mark.parametrize("case", COUNTS, ids=lambda case: case.what)
def test_the_counts_decide_which_vcpus_are_pinned_and_which_float(case: Counts) -> None:
    on = case.on or node(pool="0-1", housekeeping="0")
    found = decide(case.containers, vcpus(*case.ids), on, case.policy)
    assert shown(found) == case.expect
    assert guests(found) == case.inside
    assert (found.verdict, found.reasons) == (case.verdict, case.reasons)


@pytest.mark.parametrize(("count", "weights", "expect"), [
    (5, [6, 2], [4, 1]),
    (3, [1, 1, 1], [1, 1, 1]),
    (4, [3, 3, 1], [2, 1, 1]),       # 1.5 and 1.5 of three: the first of equals gets the remainder
    (4, [10, 1, 1], [2, 1, 1]),      # at least one each
    (10, [7, 5, 3], [5, 3, 2]),      # 4.67, 3.33, 2.0: the larger remainder
    (7, [5, 5], [4, 3]),
    (2, [100, 1], [1, 1]),
    (1, [9], [1]),
    (0, [], []),
])
def test_shares_are_by_largest_remainder_with_at_least_one_each(
        count: int, weights: list[int], expect: list[int]) -> None:
    named = {ContainerId(f"c{at}"): weight for at, weight in enumerate(weights)}
    assert list(share(count, named).values()) == expect


# --- which vCPU for which CPU ----------------------------------------------------------------------------------------

@pytest.mark.parametrize(("what", "cpus", "mine", "on", "expect"), [
    ("spare are the lowest ids, ascending id to ascending CPU", vcpus(0, 1, 2, 3), "9,4", node(),
     {0: "0-3", 1: "0-3", 2: "4", 3: "9"}),
    ("ids with holes, in any order", vcpus(7, 0, 6, 1), "4-6", node(), {0: "0-3", 1: "4", 6: "5", 7: "6"}),
    ("siblings onto siblings", guest((0, 0, None), (1, 0, None), (2, 1, None), (3, 1, None)), "4,6,12,14",
     node(cores=["4,12", "6,14"]), {0: "4", 1: "12", 2: "6", 3: "14"}),
    ("siblings with interleaved ids", guest((0, 0, None), (1, 1, None), (2, 0, None), (3, 1, None)), "4,6,12,14",
     node(cores=["4,12", "6,14"]), {0: "4", 2: "12", 1: "6", 3: "14"}),
    ("a single goes where no siblings are broken", guest((0, 0, None), (1, 1, None), (2, 1, None)), "4-6",
     node(cores=["4", "5,6"]), {0: "4", 1: "5", 2: "6"}),
    ("a guest node onto a host node", guest((0, None, 0), (1, None, 0), (2, None, 1), (3, None, 1)), "4,9,5,8",
     node(nodes=["0-7", "8-15"]), {0: "4", 1: "5", 2: "8", 3: "9"}),
    ("the bigger guest node onto the host node that holds it",
     guest((0, None, 0), (1, None, 1), (2, None, 1)), "4,8-9", node(nodes=["0-7", "8-15"]),
     {0: "4", 1: "8", 2: "9"}),
    ("interleaved guest nodes", guest((0, None, 0), (1, None, 1), (2, None, 0), (3, None, 1)), "4-5,8-9",
     node(nodes=["0-7", "8-15"]), {0: "4", 2: "5", 1: "8", 3: "9"}),
    ("nodes and siblings at once",
     guest((0, 0, 0), (1, 0, 0), (2, 1, 0), (3, 1, 0), (4, 0, 1), (5, 0, 1), (6, 1, 1), (7, 1, 1)), "4-7,12-15",
     node(cores=["4,12", "5,13", "6,14", "7,15"], nodes=["4-5,12-13", "6-7,14-15"]),
     {0: "4", 1: "12", 2: "5", 3: "13", 4: "6", 5: "14", 6: "7", 7: "15"}),
    ("a guest that tells nothing: ascending", vcpus(0, 1, 2, 3), "4-5,12-13",
     node(cores=["4,12", "5,13"], nodes=["0-7", "8-15"]), {0: "4", 1: "5", 2: "12", 3: "13"}),
    ("siblings where the host has none left: ascending", guest((0, 0, None), (1, 0, None)), "4-5",
     node(cores=["4,12", "5,13"]), {0: "4", 1: "5"}),
])
def test_among_equals_siblings_nodes_then_ascending(
        what: str, cpus: tuple[Vcpu, ...], mine: str, on: Node, expect: dict[int, str]) -> None:
    found = decide([own_cpus("main", mine), box("side", "0-3")], cpus, on)
    assert shown(found) == expect, what


@pytest.mark.parametrize(("what", "before", "ids", "mine", "expect"), [
    ("every pair holds, in whatever order", {0: "5", 1: "4"}, (0, 1), "4-5", {0: "5", 1: "4"}),
    ("a new CPU: the others stay", {0: "0-1", 1: "0-1", 2: "5"}, (0, 1, 2), "4-5", {0: "0-1", 1: "4", 2: "5"}),
    ("a CPU less: the others stay", {0: "4", 1: "5", 2: "6"}, (0, 1, 2), "4,6", {0: "4", 1: "0-1", 2: "6"}),
    ("another CPU instead", {0: "0-1", 1: "4", 2: "5"}, (0, 1, 2), "4,6", {0: "0-1", 1: "4", 2: "6"}),
    ("a new vCPU floats", {0: "4", 1: "5"}, (0, 1, 7), "4-5", {0: "4", 1: "5", 7: "0-1"}),
    ("a vCPU less: its CPU goes to who has to move anyway, or floats", {0: "0-1", 1: "4", 2: "5"}, (0, 2), "4-5",
     {0: "4", 2: "5"}),
    ("a new vCPU takes the CPU, so the floating one need not move", {0: "0-1", 1: "4"}, (0, 1, 2), "4-5",
     {0: "0-1", 1: "4", 2: "5"}),
    ("two that claim one CPU: one of them moves", {0: "4", 1: "4"}, (0, 1), "4-5", {0: "5", 1: "4"}),
    ("from a mask of its own to one-to-one", {0: "4-5", 1: "4-5"}, (0, 1), "4-5", {0: "4", 1: "5"}),
    ("a CPU that went to nobody", {0: "9", 1: "0-1"}, (0, 1), "4", {0: "4", 1: "0-1"}),
])
def test_previous_pairs_stay_and_few_vcpus_move(
        what: str, before: dict[int, str], ids: tuple[int, ...], mine: str, expect: dict[int, str]) -> None:
    previous = Previous(CpuSet.parse("0-15"), {
        VcpuId(number): (CpuSet.parse(cpus), None) for number, cpus in before.items()})
    found = decide([own_cpus("main", mine), box("side", "0-1")], vcpus(*ids), node(), previous=previous)
    assert shown(found) == expect, what


def test_a_vcpu_alone_on_its_cpu_keeps_it_though_others_float_on_that_one_cpu() -> None:
    on, containers = node(), [own_cpus("main", "5")]
    first = decide(containers, vcpus(0), on)
    second = decide(containers, vcpus(0, 1, 2), on, previous=first.as_previous())
    assert guests(second) == {"main": [0]}
    assert decide(containers, vcpus(0, 1, 2), on, previous=second.as_previous()) == second


@pytest.mark.parametrize(("what", "before", "ids", "expect"), [
    ("who floated with the shared goes on floating",
     {1: ("0-1", None), 2: ("4-6", "a"), 3: ("7-8", "b")}, (0, 1, 2, 3),
     {0: "4-6", 1: "0-1", 2: "4-6", 3: "7-8"}),
    ("a container with a new name and the same CPUs",
     {0: ("7-8", "b"), 1: ("4-6", "old"), 2: ("4-6", "old"), 3: ("0-1", None)}, (0, 1, 2, 3),
     {0: "7-8", 1: "4-6", 2: "4-6", 3: "0-1"}),
    ("a container with other CPUs keeps its vCPUs",
     {0: ("9-11", "a"), 1: ("9-11", "a"), 2: ("7-8", "b"), 3: ("0-1", None)}, (0, 1, 2, 3),
     {0: "4-6", 1: "4-6", 2: "7-8", 3: "0-1"}),
])
def test_shares_stay_with_their_vcpus(
        what: str, before: dict[int, tuple[str, str | None]], ids: tuple[int, ...], expect: dict[int, str]) -> None:
    previous = Previous(CpuSet.parse("0-15"), {
        VcpuId(number): (CpuSet.parse(cpus), None if name is None else ContainerId(name))
        for number, (cpus, name) in before.items()})
    containers = [own_cpus("a", "4-6"), own_cpus("b", "7-8"), box("side", "0-1")]
    assert shown(decide(containers, vcpus(*ids), node(), previous=previous)) == expect, what


# --- containers in the guest -----------------------------------------------------------------------------------------

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


# --- other threads ---------------------------------------------------------------------------------------------------

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


def test_vcpus_that_cannot_be_distinguished_degrade_and_every_thread_is_on_the_mask() -> None:
    policy = Policy(iothreads=ThreadPolicy.HOUSEKEEPING, vhost=ThreadPolicy.OFF, emulator=CpuSet.parse("9"),
                    virtiofsd=CpuSet.parse("9"))
    found = decide([MAIN, SIDE], vcpus(0), node(housekeeping="7"), policy, identified=False)
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
    found = decide(containers, vcpus(), node(), identified=False, pending=True)
    assert (found.verdict, found.reasons) == (Verdict.WAITING, (VCPUS_UNIDENTIFIED,))
    # Where threads go is the same.
    late = decide(containers, vcpus(), node(), identified=False)
    assert late.verdict is Verdict.DEGRADED
    assert (late.mask, late.others, late.vcpus) == (found.mask, found.others, found.vcpus)
    # What else is wrong is said.
    lost = decide([box("side", "20-21")], vcpus(), node("0-7"), identified=False, pending=True)
    assert lost.verdict is Verdict.DEGRADED


def test_while_a_vcpu_is_unidentified_those_with_a_place_keep_it() -> None:
    """0, 1 and 7 are placed when 6 is plugged in, which nobody can tell before it has run."""
    first = decide([MAIN, SIDE], vcpus(0, 1, 7), node())
    assert shown(first) == {0: "0-1", 1: "4", 7: "5"}
    found = decide([MAIN, SIDE], vcpus(0, 1, 7), node(), previous=first.as_previous(), identified=False)
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
    found = decide([MAIN, SIDE], vcpus(0, 1, 2, 3, 4), node(), previous=before, identified=False)
    assert shown(found) == {0: "0-1", 1: "5", 2: "0-1", 3: "0-1", 4: "0-1"}
    # Nobody has a place of its own: it may be theirs.
    before = Previous(before.mask, {VcpuId(4): before.vcpus[VcpuId(4)]})
    assert shown(decide([MAIN, SIDE], vcpus(4), node(), previous=before, identified=False)) == {4: "0-1,4-5"}


def test_while_a_vcpu_is_unidentified_a_container_without_one_is_not_shut_out() -> None:
    """The new one's CPUs are left to the vCPUs that have no place."""
    first = decide([MAIN, SIDE], vcpus(0, 1, 2), node())
    assert shown(first) == {0: "0-1", 1: "4", 2: "5"}
    found = decide([MAIN, SIDE, own_cpus("new", "6-7")], vcpus(0, 1, 2), node(), previous=first.as_previous(),
                   identified=False)
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
    found = decide([MAIN], (), node(), Policy(vcpus=VcpuRule.OFF, emulator=ThreadPolicy.OFF), identified=False)
    assert (found.verdict, found.reasons, found.cpus_for(ThreadRole.EMULATOR, None)) == (Verdict.OFF, (), None)


# --- collisions ------------------------------------------------------------------------------------------------------

def test_foreign_exclusive_cpus_are_never_given() -> None:
    """Not by S, not by P, not by H, not by a list."""
    on = node("0-7", pool="0-5", housekeeping="4-5")
    policy = Policy(spare_vcpus=SpareVcpuRule.HOUSEKEEPING, iothreads=ThreadPolicy.SHARED,
                    vhost=ThreadPolicy.HOUSEKEEPING,
                    emulator=CpuSet.parse("1,4"))
    found = decide([box("side", "0-5")], vcpus(0, 1), on, policy, others=[[own_cpus("x", "4")], [own_cpus("y", "5")]])
    assert str(found.mask) == "0-5"
    assert shown(found) == {0: "0-3", 1: "0-3"}
    assert {role: str(cpus) for role, cpus in found.others.items()} == {
        ThreadRole.IOTHREAD: "0-3", ThreadRole.VHOST: "0-3", ThreadRole.EMULATOR: "1", ThreadRole.KVM: "1",
        ThreadRole.VIRTIOFSD: "0-3", ThreadRole.SHIM: "0-3"}


def of(*sandboxes: Sequence[Container], on: Node | None = None) -> list[Collision]:
    on = on or node()
    return find_collisions(ownership({SandboxId(f"pod-{at}"): claims_of(containers, on)
                                for at, containers in enumerate(sandboxes)}, on))


def test_nothing_is_contested_on_a_node_that_agrees_with_itself() -> None:
    assert of([own_cpus("a", "4-5"), box("s", "0-1")], [own_cpus("b", "6-7"), box("s", "0-1")], [box("c", None)]) == []


def test_a_cpu_of_two_sandboxes_is_reported_with_both() -> None:
    assert of([own_cpus("a", "4-5")], [own_cpus("b", "5-6")]) == [
        Collision(5, (SandboxId("pod-0"), SandboxId("pod-1")), "exclusive to a of pod-0 and b of pod-1")]


def test_cpus_that_containers_of_one_pod_share_are_that_pods_and_no_collision() -> None:
    """Kubelet 1.36 with pod-level resources lists several containers with the same CPUs, and every one an init
    container's with those of the next."""
    assert of([own_cpus("a", "4-5"), own_cpus("b", "5")], [own_cpus("c", "6")]) == []


def test_two_sandboxes_of_one_pod_do_not_collide() -> None:
    """The kubelet makes a pod's sandbox anew, and the one before has not ended yet: both are listed with the same."""
    on = node()
    both = {SandboxId("old"): claims_of([own_cpus("a", "4-5")], on),
            SandboxId("new"): claims_of([own_cpus("b", "4-5")], on)}
    assert find_collisions(ownership(both, on, dict.fromkeys(both, "uid-1"))) == []
    assert [each.cpu for each in find_collisions(ownership(both, on, {SandboxId("old"): "uid-1"}))] == [4, 5]


def test_a_shared_cpuset_that_reaches_anothers_cpus_is_reported() -> None:
    assert of([own_cpus("a", "4-5")], [box("s", "0-4")]) == [
        Collision(4, (SandboxId("pod-0"), SandboxId("pod-1")),
                  "exclusive to a of pod-0, but in the shared cpuset of s of pod-1, whose VM is kept off it")]


def test_collisions_come_by_cpu_and_offline_cpus_do_not_collide() -> None:
    found = of([own_cpus("a", "4-6,20")], [own_cpus("b", "4-6,20")])
    assert [collision.cpu for collision in found] == [4, 5, 6]


def test_a_contested_cpu_is_pinned_for_both_and_the_rest_of_either_is_untouched() -> None:
    mine, theirs = [own_cpus("a", "4-5")], [own_cpus("b", "5-6")]
    found = decide(mine, vcpus(0, 1), node(), others=[theirs])
    assert shown(found) == {0: "4", 1: "5"}
