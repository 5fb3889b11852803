"""Which CPUs a runtime has reported for certain, and which of its lists' may be old."""

from __future__ import annotations

import itertools

import pytest

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.sources.nri.nri_events import ContainerEvent, Disconnected, NriContainer, NriEvent, NriPod, PodEvent, Synced
from vmpin.sources.nri.nri_reports import NEAR, PAUSE, NriCpusetReports, Relist
from vmpin.wire.nri_enums import CREATED, RUNNING, Verb

APP = ContainerId("app")


def container(cpus: str) -> NriContainer:
    return NriContainer(APP, SandboxId("pod"), "app", 3, CpuSet.parse(cpus) or None, {}, 0)


def listed(cpus: str | None, runtime: int = 7) -> Synced:
    return Synced((), () if cpus is None else (container(cpus),), 0, runtime=runtime)


def happened(verb: Verb, cpus: str = "") -> ContainerEvent:
    return ContainerEvent(verb, None, container(cpus), 0)


@pytest.mark.parametrize(("what", "events", "cpus"), [
    ("a list alone", [listed("2-3")], None),
    ("the same list again", [listed("2-3"), Disconnected(), listed("2-3")], None),
    ("what happened since", [listed("2-3"), happened(Verb.POST_UPDATE, "4-5")], "4-5"),
    ("its creation", [listed(None), happened(Verb.POST_CREATE, "4-5"), happened(Verb.POST_START, "4-5")], "4-5"),
    ("its start, when it was there before", [listed("2-3"), happened(Verb.POST_START, "2-3")], None),
    ("an update of something else",
     [listed("2-3"), happened(Verb.POST_UPDATE, "4-5"), happened(Verb.POST_UPDATE)], "4-5"),
    ("over a gap", [listed("2-3"), happened(Verb.POST_UPDATE, "4-5"), Disconnected(), listed("4-5")], "4-5"),
    ("an update in the gap", [listed("2-3"), happened(Verb.POST_UPDATE, "4-5"), Disconnected(), listed("6-7")], "6-7"),
    ("one that brings back what there was",
     [listed("2-3"), happened(Verb.POST_UPDATE, "4-5"), Disconnected(), listed("2-3")], "2-3"),
    ("what another plugin changed", [listed("2-3"), Disconnected(), listed("6-7")], "6-7"),
    ("and changed back", [listed("2-3"), Disconnected(), listed("6-7"), Disconnected(), listed("2-3")], "2-3"),
    ("created in a gap", [listed(None), Disconnected(), listed("6-7")], "6-7"),
    ("a restart of the runtime",
     [listed("2-3"), happened(Verb.POST_UPDATE, "4-5"), Disconnected(), listed("2-3", runtime=8)], None),
    ("whose process is not known",
     [listed("2-3", runtime=0), happened(Verb.POST_UPDATE, "4-5"), Disconnected(), listed("4-5", runtime=0)], None),
    ("its end", [listed(None), happened(Verb.POST_CREATE, "4-5"), happened(Verb.STOP)], None),
    ("an end in a gap", [listed(None), happened(Verb.POST_CREATE, "4-5"), Disconnected(), listed(None)], None),
])
def test_what_is_certain(what: str, events: list[NriEvent], cpus: str | None) -> None:
    reports = NriCpusetReports()
    for event in events:
        last = reports.take(event)
    assert reports.cpus == ({} if cpus is None else {APP: CpuSet.parse(cpus)}), what
    if isinstance(last, Synced):
        assert last.current == reports.cpus.keys()


@pytest.mark.parametrize("events", [
    [listed("2-3")], [listed("2-3"), happened(Verb.POST_UPDATE, "4-5"), Disconnected(), listed("2-3", runtime=8)]])
def test_lists_of_a_runtime_that_stores_updates_are_right_and_no_reason_to_repair(events: list[NriEvent]) -> None:
    reports = NriCpusetReports()
    for event in events:
        last = reports.take(event._replace(stored=True) if isinstance(event, Synced) else event)
    assert isinstance(last, Synced)
    assert last.current == {APP}
    assert reports.cpus == {}


VM, OTHER = SandboxId("vm"), SandboxId("other")


def update(sandbox: SandboxId = VM) -> ContainerEvent:
    return ContainerEvent(Verb.POST_UPDATE, None, NriContainer(ContainerId("c"), sandbox, "c", 3, None, {}, 0), 0)


@pytest.mark.parametrize(("reported", "due"), [
    ([], True), ([(VM, 100 - 2 * NEAR)], True), ([(OTHER, 100)], True), ([(VM, 100 + 2 * NEAR)], False),
    ([(VM, 100 - NEAR / 2)], False), ([(VM, 100)], False), ([(VM, 100 + NEAR / 2)], False)])
def test_a_write_that_no_report_explains_is_looked_into(reported: list[tuple[SandboxId, float]], due: bool) -> None:
    relist = Relist()
    for sandbox, at in reported:
        relist.take([update(sandbox)], at)
    relist.written([VM], 100)
    assert not relist.due(100 + NEAR / 2)  # it may yet be reported
    assert relist.due(100 + 2 * NEAR) is due
    assert not relist.due(100 + PAUSE + 9 * NEAR)


def test_lists_are_far_between() -> None:
    relist = Relist()
    lists = []
    for now in range(1000):
        relist.written([VM], now)
        if relist.due(now):
            lists.append(now)
    assert len(lists) > 2
    assert all(later - earlier >= PAUSE for earlier, later in itertools.pairwise(lists))


def test_a_write_within_the_pause_is_not_lost() -> None:
    relist = Relist()
    relist.written([VM], 0)
    assert relist.due(NEAR)
    relist.written([OTHER], NEAR + 1)
    assert not relist.due(PAUSE)
    assert relist.due(NEAR + PAUSE)


def call(verb: Verb, sandbox: SandboxId = VM, container: str = "new") -> ContainerEvent:
    return ContainerEvent(verb, None, NriContainer(ContainerId(container), sandbox, "c", 0, None, {}, 0), 0)


@pytest.mark.parametrize("after", [15, 26, 100, 3600])
@pytest.mark.parametrize("reports", [[Verb.CREATE], [Verb.CREATE, Verb.POST_CREATE],
                                     [Verb.CREATE, Verb.POST_CREATE, Verb.START]])
def test_a_container_that_has_not_started_explains_a_write_however_long_it_takes(after: int,
                                                                                 reports: list[Verb]) -> None:
    relist = Relist()
    for verb in reports:
        relist.take([call(verb)], 0)
    relist.written([VM], after)
    assert not any(relist.due(after + later) for later in range(100))
    relist.take([call(Verb.POST_START)], after + 100)
    assert not any(relist.due(after + 100 + later) for later in range(100))
    relist.written([VM], after + 200 + NEAR)  # of a container that runs
    assert relist.due(after + 200 + 2 * NEAR)


@pytest.mark.parametrize("end", [
    call(Verb.POST_START), call(Verb.STOP), call(Verb.REMOVE),
    PodEvent(Verb.REMOVE_POD, NriPod(VM, "", "", "", "", 0, {}, ""), 0), Synced((), (), 0)])
def test_a_container_that_has_started_or_ended_explains_no_later_write(end: object) -> None:
    relist = Relist()
    relist.take([call(Verb.CREATE)], 0)
    relist.take([end], 1)  # type: ignore[list-item]
    relist.written([VM], 100)
    assert relist.due(100 + NEAR)


def test_containers_of_other_sandboxes_and_those_that_run_explain_nothing() -> None:
    relist = Relist()
    relist.take([call(Verb.CREATE, OTHER), call(Verb.CREATE), call(Verb.CREATE, container="second"),
                 call(Verb.POST_START)], 0)
    relist.written([VM], 100)
    assert not relist.due(200)  # the second one has not started yet
    relist.take([call(Verb.REMOVE, container="second")], 201)
    relist.written([VM], 300)
    assert relist.due(300 + NEAR)


@pytest.mark.parametrize(("state", "due"), [(CREATED, False), (RUNNING, True)])
def test_a_container_that_is_listed_before_its_start_explains_a_write(state: int, due: bool) -> None:
    relist = Relist()
    relist.take([Synced((), (call(Verb.CREATE).container._replace(state=state),), 0)], 0)
    relist.written([VM], 100)
    assert relist.due(100 + NEAR) is due


def test_a_container_that_joined_others_is_followed_by_one_list_when_all_have_started() -> None:
    """Another plugin may have changed the others in its answer to the creation."""
    relist = Relist()
    relist.take([call(Verb.CREATE), call(Verb.POST_START), call(Verb.CREATE, container="third")], 100)
    relist.joined([VM])
    assert not relist.due(101)
    relist.take([call(Verb.POST_START, container="third")], 102)
    assert [relist.due(102 + later) for later in range(2)] == [True, False]
    relist.joined([VM])
    relist.take([Synced((), (), 0)], 110)
    assert not relist.due(110 + PAUSE)


def test_a_pod_that_has_ended_needs_no_list() -> None:
    """Where no list can be requested, as by a plugin that the runtime started, none would end the wait for it."""
    relist = Relist()
    relist.joined([VM])
    relist.take([PodEvent(Verb.STOP_POD, NriPod(VM, "web", "default", "u", "", 0, {}, ""), 0)], 100)
    assert not relist.due(101)
