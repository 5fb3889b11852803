"""Which CPUs a runtime has reported for certain, and which of its lists' may be old."""

from __future__ import annotations

import pytest

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.sources.nri.cpuset_reports import NriCpusetReports
from vmpin.sources.nri.nri_events import ContainerEvent, Disconnected, NriContainer, NriEvent, Synced
from vmpin.wire.nri_enums import Verb

APP = ContainerId("app")


def container(cpus: str) -> NriContainer:
    return NriContainer(APP, SandboxId("pod"), "app", 3, CpuSet.parse(cpus) or None, {}, 0, "")


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
