"""What a runtime has been asked for and may yet fail: a container's creation, an update of its CPUs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from decided import decide, guests, node, own_cpus, shown, vcpus
from nri_events import C1, C2, POD, after, container, pod
from ruled import claims
from strayed import Spinners, spinners

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import ContainerRecord, DesiredState, reduce
from vmpin.domain.events import ContainerSeen, CpusetSeen, RequestExpired, Source
from vmpin.domain.model import Container, ContainerState
from vmpin.domain.sandbox_placement import Placement, Verdict
from vmpin.host.sysfs import Sysfs
from vmpin.pinning.apply import Outcome
from vmpin.placement.ownership import CpuClaims
from vmpin.reconcile.runtime_waits import CREATION, UPDATE, RuntimeRequests
from vmpin.sources.nri.nri_events import ContainerEvent, NriEvent, Synced
from vmpin.wire.nri_enums import Verb


def event(verb: Verb, time: int, cpus: str | None = "4-5", asked: str = "", state: int = 1) -> ContainerEvent:
    return ContainerEvent(verb, pod(), container(cpus=cpus, state=state), time, CpuSet.parse(asked) or None)


CREATION_EVENTS = (event(Verb.CREATE, 10), event(Verb.POST_CREATE, 11), event(Verb.START, 12),
                   event(Verb.POST_START, 13))
RUNNING = after([event(Verb.POST_START, 10, "2-3")])


def record_of(state: DesiredState) -> ContainerRecord:
    return state.sandboxes[POD].containers[C1]


def claimed(state: DesiredState) -> CpuClaims:
    return claims(state.sandboxes[POD].live(), node("0-15", "0-3"))


# What follows from it


@pytest.mark.parametrize(("events", "pending", "coming", "state"), [
    (CREATION_EVENTS[:1], True, True, ContainerState.CREATED),
    (CREATION_EVENTS[:2], True, True, ContainerState.CREATED),
    (CREATION_EVENTS[:3], False, False, ContainerState.CREATED),
    (CREATION_EVENTS, False, False, ContainerState.RUNNING),
    ((CREATION_EVENTS[0], event(Verb.REMOVE, 11)), False, False, ContainerState.STOPPED),
    ((CREATION_EVENTS[1], event(Verb.STOP, 12)), False, False, ContainerState.STOPPED),
    ((CREATION_EVENTS[1], Synced((pod(),), (container(cpus="4-5", state=1),), 20)), True, True,
     ContainerState.CREATED),
    ((CREATION_EVENTS[1], Synced((pod(),), (container(cpus="4-5", state=1),), 20), event(Verb.START, 21)), False,
     False, ContainerState.CREATED),
    ((CREATION_EVENTS[1], Synced((pod(),), (container(cpus="4-5"),), 20)), False, False, ContainerState.RUNNING),
    ((CREATION_EVENTS[1], Synced((pod(),), (), 20)), False, False, ContainerState.STOPPED),
], ids=["asked", "created", "its task is there", "runs", "failed", "stopped", "listed",
        "listed before its task is there", "listed as running", "not listed"])
def test_a_container_that_is_created_has_its_cpus_from_the_request_on(
        events: tuple[NriEvent, ...], pending: bool, coming: bool, state: ContainerState) -> None:
    found = record_of(after(events))
    assert (found.pending, found.container.creating, found.container.state) == (pending, coming, state)
    assert found.container.cpuset == CpuSet((4, 5))
    mine = claimed(after(events))
    assert mine.exclusive == (() if state is ContainerState.STOPPED else ((C1, CpuSet((4, 5))),))
    assert (mine.creating, mine.pending) == (frozenset({C1} if coming else ()), pending)


def test_a_hook_in_the_middle_of_a_creation_does_not_end_it() -> None:
    """CRI-O runs createRuntime before Kata's vCPUs have come."""
    hooked = ContainerSeen(POD, Container(C1, cpuset=CpuSet((4, 5))), Source.BUNDLE, 11, "/bundle/of/it")
    state = reduce(after(CREATION_EVENTS[:1]), hooked)
    assert record_of(state).container.creating
    assert not record_of(after(CREATION_EVENTS[1:3], state)).pending


def test_what_another_plugin_made_of_the_cpus_counts_when_it_is_created() -> None:
    state = after([event(Verb.CREATE, 10, "4-5"), event(Verb.POST_CREATE, 11, "6-7")])
    assert record_of(state).container.cpuset == CpuSet((6, 7))


def test_kata_has_the_container_before_it_is_started() -> None:
    """Its state lists a container with its CPUs before the vCPUs of it have all come."""
    seen = ContainerSeen(POD, Container(C1, cpuset=CpuSet((4, 5)), state=ContainerState.CREATED), Source.KATA, 12)
    assert record_of(reduce(after(CREATION_EVENTS[:2]), seen)).container.creating
    runs = seen._replace(container=seen.container._replace(state=ContainerState.RUNNING))
    assert not record_of(reduce(after(CREATION_EVENTS[:2]), runs)).pending


@pytest.mark.parametrize(("then", "cpus", "pending"), [
    (None, "0-3", True),
    (event(Verb.POST_UPDATE, 21, "0-1", state=3), "0-1", False),
    (event(Verb.POST_UPDATE, 21, "2-3", state=3), "2-3", False),
    (event(Verb.STOP, 21), None, False),
    (Synced((pod(),), (container(cpus="2-3"),), 21), "2-3", False),
    (event(Verb.UPDATE, 21, "2-3", "2", state=3), "2-3", True),
    (event(Verb.UPDATE, 21, "2-3", "", state=3), "0-3", True),
], ids=["under way", "done", "done otherwise", "stopped", "listed", "asked again", "of other resources"])
def test_while_an_update_is_under_way_a_shared_container_has_its_old_cpus_and_the_new_ones(
        then: NriEvent | None, cpus: str | None, pending: bool) -> None:
    state = after([event(Verb.UPDATE, 20, "2-3", "0-1", state=3), *([] if then is None else [then])], RUNNING)
    found = claimed(state)
    assert [str(each) for _, each in found.shared] == ([] if cpus is None else [cpus])
    assert (found.exclusive, found.pending) == ((), pending)


def test_an_update_to_the_same_cpus_is_none() -> None:
    assert after([event(Verb.UPDATE, 20, "2-3", "2-3", state=3)], RUNNING) == RUNNING
    stopped = after([event(Verb.STOP, 11)], RUNNING)
    assert not record_of(after([event(Verb.UPDATE, 20, None, "4", state=3)], stopped)).pending


@pytest.mark.parametrize("source", [Source.KATA, Source.CGROUP])
def test_an_update_that_others_see_done_is_no_more_under_way(source: Source) -> None:
    state = after([event(Verb.UPDATE, 20, "2-3", "0-1", state=3)], RUNNING)
    assert record_of(reduce(state, CpusetSeen(POD, C1, CpuSet((0, 1)), source, 22))).container.requested_cpuset is None
    again = ContainerSeen(POD, Container(C1, cpuset=CpuSet((0, 1))), source, 22)
    assert record_of(reduce(state, again)).container.requested_cpuset is None


def test_the_owner_of_cpus_is_the_same_while_an_update_is_under_way() -> None:
    """Those of an exclusive container go to others, and others' to it, when it has been done."""
    owner = after([event(Verb.POST_START, 10, "4-5")])
    found = claimed(after([event(Verb.UPDATE, 20, "4-5", "6-7", state=3)], owner))
    assert (found.exclusive, found.pending) == (((C1, CpuSet((4, 5))),), True)


def test_a_request_ends_after_some_time_at_the_latest() -> None:
    """A failed update is followed by nothing; nor is a creation that failed while there was no connection."""
    requests = RuntimeRequests()
    for events, base, limit, left in (
            (CREATION_EVENTS[:1], DesiredState(), CREATION, ContainerState.STOPPED),
            (CREATION_EVENTS[:2], DesiredState(), CREATION, ContainerState.CREATED),
            ((event(Verb.UPDATE, 20, "2-3", "0-1", state=3),), RUNNING, UPDATE, ContainerState.RUNNING)):
        state = after(events, base)
        assert requests.expired(state, 1000.0) == []
        assert requests.expired(state, 999.0 + limit) == []
        assert requests.expired(state, 1000.0 + limit) == [RequestExpired(POD, C1)]
        state = reduce(state, RequestExpired(POD, C1))
        assert (record_of(state).pending, record_of(state).container.state) == (False, left)
        assert requests.expired(state, 2000.0 + limit) == []
        assert reduce(state, RequestExpired(POD, C1)) is state


def test_each_update_has_its_own_time() -> None:
    """The one before was done, and the next one asked for, between two resyncs."""
    requests = RuntimeRequests()
    first = after([event(Verb.UPDATE, 20, "2-3", "0-1", state=3)], RUNNING)
    assert requests.expired(first, 1000.0) == []
    second = after([event(Verb.POST_UPDATE, 21, "0-1", state=3), event(Verb.UPDATE, 22, "0-1", "2", state=3)], first)
    assert requests.expired(second, 1000.0 + UPDATE) == []
    assert requests.expired(second, 1000.0 + 2 * UPDATE) == [RequestExpired(POD, C1)]


def test_a_container_that_is_gone_is_forgotten_with_its_request() -> None:
    requests = RuntimeRequests()
    state = after(CREATION_EVENTS[:1])
    assert requests.expired(state, 1000.0) == []
    assert requests.expired(DesiredState(), 1001.0) == []
    assert requests.expired(state, 1000.0 + CREATION) == []


def test_a_second_try_of_a_creation_ends_the_first() -> None:
    """The runtime reserves a container's name while it creates it: the first one has failed before there is a second.
    """
    again = ContainerEvent(Verb.CREATE, pod(), container(cpus="4-5", state=1)._replace(id=C2), 30)
    state = after([again], after(CREATION_EVENTS[:1]))
    assert (record_of(state).container.state, record_of(state).pending) == (ContainerState.STOPPED, False)
    assert state.sandboxes[POD].containers[C2].pending
    # A late word of the first one does not end the second.
    late = after(CREATION_EVENTS[:1], after([again]))
    assert late.sandboxes[POD].containers[C2].pending
    # Another name is another container.
    other = ContainerEvent(Verb.CREATE, pod(), container(C2, "6", state=1), 30)
    assert record_of(after([other], after(CREATION_EVENTS[:1]))).pending


# The vCPUs that come with a container


def grow(pool: str, *steps: tuple[tuple[Container, ...], tuple[int, ...]]) -> list[Placement]:
    """One placement after the other."""
    made: list[Placement] = []
    for containers, ids in steps:
        made.append(decide(containers, vcpus(*ids), node("0-7", pool),
                           previous=made[-1].as_previous() if made else None))
    return made


def coming(name: str, cpus: str) -> Container:
    return own_cpus(name, cpus)._replace(state=ContainerState.CREATED, creating=True)


def test_each_vcpu_that_comes_gets_a_cpu_of_the_container_that_is_created() -> None:
    """As Kata plugs them in: 7, 6 for the first container, 5, 4 for the second one. The boot vCPU is spare in the
    end, and no vCPU with a CPU of its own is ever moved."""
    a, b = own_cpus("a", "2-3"), own_cpus("b", "4-5")
    made = grow("0-1", ((), (0,)), ((coming("a", "2-3"),), (0,)), ((coming("a", "2-3"),), (0, 7)),
                ((coming("a", "2-3"),), (0, 6, 7)), ((a,), (0, 6, 7)), ((a, coming("b", "4-5")), (0, 6, 7)),
                ((a, coming("b", "4-5")), (0, 5, 6, 7)), ((a, coming("b", "4-5")), (0, 4, 5, 6, 7)),
                ((a, b), (0, 4, 5, 6, 7)))
    assert [shown(each) for each in made] == [
        {0: "0-1"}, {0: "2-3"}, {0: "2-3", 7: "2"}, {0: "2-3", 6: "3", 7: "2"}, {0: "2-3", 6: "3", 7: "2"},
        {0: "2-5", 6: "3", 7: "2"}, {0: "2-5", 5: "4", 6: "3", 7: "2"}, {0: "2-5", 4: "5", 5: "4", 6: "3", 7: "2"},
        {0: "2-5", 4: "5", 5: "4", 6: "3", 7: "2"}]
    assert [str(each.verdict) for each in made] == ["floating", "waiting", "waiting", "pinned", "pinned", "waiting",
                                                    "waiting", "pinned", "pinned"]
    assert guests(made[6]) == {"a": [6, 7], "b": [5]}
    assert made[5].waiting == "waits for the runtime to create b"
    assert made[5].reasons == ("3 vCPUs for 4 exclusive CPUs, while a container is created that more may come with",)
    assert (made[-1].waiting, made[-1].reasons) == ("", ())


def test_the_vcpu_of_a_container_with_one_cpu_is_the_one_that_comes() -> None:
    """Though the boot vCPU floats on that very CPU until then."""
    made = grow("0-1", ((), (0,)), ((coming("a", "2"),), (0,)), ((coming("a", "2"),), (0, 7)),
                ((own_cpus("a", "2"),), (0, 7)))
    assert [[place.pinned for place in each.vcpus] for each in made] == [[False], [False], [False, True],
                                                                        [False, True]]


def test_a_vm_that_has_its_vcpus_already_pins_them_at_once() -> None:
    made = grow("0-1", ((), (0, 1, 2)), ((coming("a", "2-3"),), (0, 1, 2)))
    assert shown(made[-1]) == {0: "2-3", 1: "2", 2: "3"}
    assert made[-1].verdict is Verdict.PINNED


def test_a_container_that_no_vcpu_comes_for_is_judged_when_it_is_started() -> None:
    made = grow("0-1", ((), (0,)), ((coming("a", "2-5"),), (0,)), ((own_cpus("a", "2-5"),), (0,)))
    assert [str(each.verdict) for each in made] == ["floating", "waiting", "degraded"]
    made = grow("0-1", ((), (0, 1)), ((coming("a", "2-3"),), (0, 1)), ((own_cpus("a", "2-3"),), (0, 1)))
    assert [shown(each) for each in made] == [{0: "0-1", 1: "0-1"}, {0: "2-3", 1: "2-3"}, {0: "2", 1: "3"}]


def test_fewer_vcpus_than_the_containers_before_own_stay_shared_out() -> None:
    containers = own_cpus("a", "2-3"), own_cpus("b", "4-5")
    made = grow("0-1", (containers, (0, 1, 2)), ((*containers, coming("c", "6")), (0, 1, 2)))
    assert made[-1].verdict is Verdict.DEGRADED


# Masks


@pytest.fixture
def machine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Spinners]:
    caplog.set_level(logging.INFO, "vmpin")
    with spinners(tmp_path) as made:
        yield made


def test_what_happens_to_masks_while_the_runtime_works_is_no_drift_and_put_right(
        machine: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    vm = machine.vm()
    assert machine.repair(vm) == 0
    for _ in range(10):
        placements = machine.node_state.placement_cache.placements
        placements[vm.sandbox] = placements[vm.sandbox]._replace(
            waiting="waits for the runtime to create b", pending=True)
        machine.move(vm, machine.there)
        assert machine.repair(vm) == 1
        placements[vm.sandbox] = placements[vm.sandbox]._replace(waiting="", pending=False)
        assert machine.repair(vm) == 0
    assert CpuSet(os.sched_getaffinity(vm.vmm.pid)) == machine.here
    assert (machine.node_state.counters.drift, machine.node_state.counters.contentions) == ({}, 0)
    machine.move(vm, machine.there)
    assert machine.repair(vm) == 1
    assert machine.node_state.counters.drift == {"unknown program": 1}


def test_what_a_cgroup_refuses_counts_when_it_lasts(machine: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    """A runtime that reports what happens does so after it has written the cgroup: sources are read again first."""
    vm = machine.vm()
    absent = CpuSet([Sysfs().topology().all_cpus.bits.bit_length()])
    pinner = machine.node_state.pinner
    pinner.grace = 3600.0
    machine.place(vm.sandbox, absent)
    for _ in range(3):
        (result,) = pinner.set_masks(pinner.operations(vm, machine.node_state.placements[vm.sandbox]),
                                     machine.node_state.placements)
        assert result.outcome is Outcome.WAITING
    assert pinner.refused_early(vm.sandbox)
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    machine.place(vm.sandbox, machine.there)  # the report came
    assert machine.repair(vm) == 1
    assert not pinner.refused_early(vm.sandbox)
    machine.place(vm.sandbox, absent)
    machine.repair(vm)
    pinner.grace = 0.0
    machine.repair(vm)
    assert [record.levelno for record in caplog.records if record.levelno > logging.INFO] == [logging.ERROR]
    assert len(pinner.refusals(vm.sandbox)) == 1


def test_an_early_refusal_that_passed_does_not_shorten_the_next_grace(machine: Spinners) -> None:
    """The sources took back what the cgroup refused, and the thread was in its place all the time."""
    vm = machine.vm()
    absent = CpuSet([Sysfs().topology().all_cpus.bits.bit_length()])
    pinner, placements = machine.node_state.pinner, machine.node_state.placements
    pinner.grace = 3600.0
    machine.place(vm.sandbox, machine.there)
    assert machine.repair(vm) == 1
    machine.place(vm.sandbox, absent)
    machine.repair(vm)
    assert pinner.refused_early(vm.sandbox)
    machine.place(vm.sandbox, machine.there)
    assert pinner.operations(vm, placements[vm.sandbox]) == ()
    assert not pinner.refused_early(vm.sandbox)


def test_drift_counts_again_when_a_wait_has_ended_that_may_come_again(machine: Spinners) -> None:
    """A sandbox whose last container has ended may wait until its own end: its cgroup refuses masks or does not."""
    vm = machine.vm()
    absent = CpuSet([Sysfs().topology().all_cpus.bits.bit_length()])
    placements, pinner = machine.node_state.placement_cache.placements, machine.node_state.pinner
    for cpus in (absent, machine.there):
        machine.place(vm.sandbox, cpus)
        placements[vm.sandbox] = placements[vm.sandbox]._replace(waiting="waits for a container, or for its end")
        machine.repair(vm)
        assert pinner.of(vm.sandbox).waits
    assert machine.repair(vm) == 0
    machine.move(vm, machine.here)
    assert machine.repair(vm) == 1
    assert machine.node_state.counters.drift == {"unknown program": 1}
