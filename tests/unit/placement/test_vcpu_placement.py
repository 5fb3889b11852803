"""How many vCPUs are pinned, and which vCPU gets which CPU."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from decided import MAIN, SIDE, box, decide, guest, guests, node, own_cpus, shown, vcpus

from vmpin.cpuset import CpuSet
from vmpin.domain.model import Container, ContainerId, Vcpu, VcpuId
from vmpin.domain.policy import Policy, SpareVcpuRule, VcpuRule
from vmpin.domain.sandbox_placement import Previous, Verdict
from vmpin.placement.ownership import Node
from vmpin.placement.vcpus import share


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
           ("no vCPU is left for side: the VM's 2 vCPUs back exclusive CPUs, and it may use every one of them",)),
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
           ("1 vCPU for 2 exclusive CPUs: no one-to-one, each exclusive container has its own share of the vCPUs",)),
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
    ("a guest that reports nothing: ascending", vcpus(0, 1, 2, 3), "4-5,12-13",
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
    ("a CPU that went to no vCPU", {0: "9", 1: "0-1"}, (0, 1), "4", {0: "4", 1: "0-1"}),
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


def test_the_reason_of_a_vm_with_fewer_vcpus_than_claimed_cpus_has_the_remedy() -> None:
    claimed, remedy = MAIN._replace(ruled_by="dra"), (
        "its DRA claims have 2 CPUs, and a claim gives a VM no vCPU: give its containers a CPU limit as well, or the "
        "pod the annotation io.katacontainers.config.hypervisor.default_vcpus")
    assert remedy in decide((claimed,), vcpus(0), node()).reasons
    shared = SIDE._replace(ruled_by="dra")  # its cpuset was stale
    for containers, ids, policy in (((claimed,), (0, 1), Policy()), ((MAIN, shared), (0,), Policy()),
                                    ((claimed,), (0,), Policy(vcpus=VcpuRule.UNION))):
        assert not any("DRA" in reason for reason in decide(containers, vcpus(*ids), node(), policy).reasons)


@pytest.mark.parametrize(("ids", "beside", "has_it"), [
    ((0,), True, True), ((0, 1), True, True), ((0, 1, 2), True, False), ((0,), False, False)])
def test_the_reason_of_a_vm_whose_exclusive_cpus_have_no_quota_has_the_remedy(
        ids: tuple[int, ...], beside: bool, has_it: bool) -> None:
    """Kubernetes 1.33 (DisableCPUQuotaWithExclusiveCPUs); a pod with CPUs 2 and 500m gets 1.5 vCPUs of Kata 4.1."""
    containers = (MAIN._replace(ruled_by="kubelet"), *[SIDE] * beside)
    reasons = decide(containers, vcpus(*ids), node(pool="0-1")).reasons
    assert any("have no CPU quota" in reason and "default_vcpus" in reason for reason in reasons) is has_it
    if has_it:  # not by another authority, as containers then have their quotas
        assert "quota" not in str(decide((MAIN, SIDE), vcpus(*ids), node(pool="0-1")).reasons)
