"""Where a process goes that has just begun, and the account of births."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruled import claims, ruled

from vmpin.cpuset import CpuSet
from vmpin.domain.counters import NewbornCounts
from vmpin.domain.desired_state import ContainerRecord, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId, ThreadRole
from vmpin.domain.policy import Policy, ThreadPolicy
from vmpin.domain.sandbox_placement import Previous
from vmpin.domain.topology import Topology
from vmpin.placement.ownership import Node, Ownership, ownership
from vmpin.placement.rules import place_before_vm
from vmpin.procevents.latency import leaves_sandbox

MINE, OTHER = SandboxId("mine"), SandboxId("other")
EIGHT = Topology.build(CpuSet.parse("0-7"))
NODE = Node(EIGHT, CpuSet.parse("0-1"), CpuSet.parse("7"))
POOL, NO_POOL = ruled(None, pool=NODE.shared_pool), ruled(None)


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def state(*texts: str | None, sandbox: SandboxId = MINE, held: bool = False) -> SandboxState:
    """A sandbox with containers of these cpusets."""
    return SandboxState(sandbox, containers={
        ContainerId(f"c{number}"): ContainerRecord(Container(ContainerId(f"c{number}"),
                                                             cpuset=None if text is None else
                                                   cpus(text), state=ContainerState.CREATED), Source.BUNDLE, 1)
        for number, text in enumerate(texts)}, suspended=held)


def own(*sandboxes: SandboxState, node: Node = NODE) -> Ownership:
    return ownership({each.id: claims(each.live(), node) for each in sandboxes}, node)


@pytest.mark.parametrize(("known", "expected"), [
    (None, "0-1"),  # no source reported it: the shared pool
    (state(), "0-1"),
    (state(None), "0-1"),
    (state("2-3"), "2-3"),
    (state("2-3", "0-1"), "0-3"),
    (state("2-3", None), "0-3"),
])
def test_it_goes_where_its_sandbox_is_as_far_as_that_is_known(known: SandboxState | None, expected: str) -> None:
    """A VMM, whose threads may be vCPUs, on all of the sandbox's CPUs; its helpers on those that are not exclusive, if
    there are such."""
    there = own(known) if known else own()
    found = place_before_vm(MINE, known, NODE, there, Policy(), POOL)
    assert found is not None
    assert (found.mask, found.cpus_for(ThreadRole.EMULATOR, None)) == (cpus(expected), cpus(expected))
    apart = cpus(expected) & cpus("0-1") or cpus(expected)
    assert {found.cpus_for(role, None) for role in (ThreadRole.VIRTIOFSD, ThreadRole.SHIM)} == {apart}


def test_a_sandbox_out_of_our_hands_is_left_alone() -> None:
    held = state("2", held=True)
    assert place_before_vm(MINE, held, NODE, own(held), Policy(), POOL) is None


@pytest.mark.parametrize(("rule", "shim", "emulator"), [
    (ThreadPolicy.HOUSEKEEPING, "7", "2"), (cpus("5"), "5", "2"), (ThreadPolicy.OFF, None, "2"), (ThreadPolicy.SHARED,
                                                                                                  "0-1", "2")])
def test_a_helper_goes_by_its_policy_and_a_vmm_is_kept_where_its_vcpus_may_be(
        rule: ThreadPolicy | CpuSet, shim: str | None, emulator: str) -> None:
    """The first threads of a VMM may turn out to be anything."""
    known = state("2")
    found = place_before_vm(MINE, known, NODE, own(known), Policy(shim=rule, emulator=rule), POOL)
    assert found is not None
    assert found.cpus_for(ThreadRole.SHIM, None) == (None if shim is None else cpus(shim))
    assert found.cpus_for(ThreadRole.EMULATOR, None) == cpus(emulator)


def test_what_others_own_is_none_of_its_cpus() -> None:
    other = state("0-3", sandbox=OTHER)
    node = Node(EIGHT, None)
    exclusive = own(other, node=Node(EIGHT, cpus("7")))
    mine = state(None)
    there = ownership({**exclusive.claims, **own(mine, node=node).claims}, node)
    found = place_before_vm(MINE, mine, node, there, Policy(), NO_POOL)
    assert found is not None
    assert found.mask == cpus("4-7")


@pytest.mark.parametrize("known", [None, state()])
def test_where_neither_a_container_nor_a_pool_is_known_it_is_left_as_it_is(known: SandboxState | None) -> None:
    node = Node(EIGHT, None)
    there = ownership({}, node)
    assert place_before_vm(MINE, known, node, there, Policy(), NO_POOL) is None
    # Once it was managed, it stays where it was.
    found = place_before_vm(MINE, known, node, there, Policy(), NO_POOL, previous=Previous(cpus("2-3")))
    assert found is not None
    assert found.mask == cpus("2-3")


@given(st.lists(st.none() | st.frozensets(st.integers(0, 7), min_size=1).map(CpuSet), max_size=4),
       st.lists(st.frozensets(st.integers(2, 7), min_size=1).map(CpuSet), max_size=3),
       st.sampled_from(ThreadPolicy) | st.just(CpuSet((5, 6))), st.frozensets(st.integers(0, 9)).map(CpuSet))
def test_it_is_never_put_on_what_is_another_containers_alone(
        mine: list[CpuSet | None], theirs: list[CpuSet], rule: ThreadPolicy | CpuSet, last: CpuSet) -> None:
    known = state(*(None if each is None else str(each) for each in mine))
    other = state(*map(str, theirs), sandbox=OTHER)
    there = own(known, other)
    foreign = there.foreign(MINE)
    found = place_before_vm(MINE, known, NODE, there, Policy(emulator=rule, shim=rule, virtiofsd=rule), POOL,
                          previous=Previous(last))
    assert found is not None
    for role in (ThreadRole.EMULATOR, ThreadRole.SHIM, ThreadRole.VIRTIOFSD):
        where = found.cpus_for(role, None)
        assert where is None or (where and where <= EIGHT.online)
        assert where is None or where.isdisjoint(foreign)


@pytest.mark.parametrize(("mask", "sandbox", "wanted", "outside"), [
    ("0", "0-1", "0-1", False), ("0-1", "0-1", None, False), ("0-2", "0-1", "0-1", True), ("7", "0-1", "7", False),
    ("0,7", "0-1", "7", False), ("6-7", "0-1", "7", True), ("", "0-1", "0", False)])
def test_outside_is_where_neither_the_sandbox_nor_the_role_is(mask: str, sandbox: str, wanted: str | None,
                                                              outside: bool) -> None:
    assert leaves_sandbox(cpus(mask), cpus(sandbox), None if wanted is None else cpus(wanted)) is outside


def test_the_account_adds_up() -> None:
    account = NewbornCounts()
    account.reported, account.born_inside, account.ended = 5, 2, 1
    assert account.data()["placed_ms"] == {"mean": None, "max": 0.0}
    account.outside.add(0.002)
    account.outside.add(0.0005)
    account.placed.add(0.001)
    account.placed.add(0.004)
    assert account.data() == {"reported": 5, "inside": 2, "ended": 1, "outside": 2,
                              "outside_ms": {"sum": 2.5, "max": 2.0}, "placed": 2,
                              "placed_ms": {"mean": 2.5, "max": 4.0}}
