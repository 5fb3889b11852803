"""What is written when: nothing without a change, each kind at its pace, and nothing for a watcher that is updated."""

from __future__ import annotations

from typing import Any

import pytest
from agenda_cluster import TAINTED, Cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from kube_given import NODE, entry, line, node_part, pod, reported

from vmpin.features.cluster.kube import agenda as timing
from vmpin.features.cluster.kube.agenda import Agenda, Write, WriteChoice
from vmpin.features.cluster.kube.node_pinning import REFRESH
from vmpin.features.cluster.kube.reported_node import ReportedNode


def events(writes: list[Write]) -> list[str]:
    return [write.content.notice.reason.value for write in writes if write.kind == "event"]


def test_the_first_report_writes_all_and_the_next_nothing() -> None:
    cluster = Cluster(WriteChoice(startup_taint="vmpin.io/starting"), TAINTED)
    cluster.put(pod("web"), pod("runc"))
    assert cluster.step() == []
    cluster.report(entry("web"))
    writes = cluster.step()
    assert [write.kind for write in writes] == ["taint", "labels", "condition", "event", "pinning"]
    assert events(writes) == ["Pinned"]
    for _ in range(50):
        cluster.report(entry("web"))
        assert cluster.step(5) == []
    assert cluster.kinds(REFRESH) == {"pinning": 1}


def test_the_taint_stays_until_the_watcher_is_ready() -> None:
    cluster = Cluster(WriteChoice(startup_taint="vmpin.io/starting"), TAINTED)
    cluster.report(ready=False, why="nri: not connected")
    assert cluster.kinds() == {"labels": 1, "pinning": 1}
    cluster.report()
    assert "taint" in cluster.kinds(timing.NODE_PAUSE)
    assert cluster.node.taints == ()


def test_a_change_is_one_condition_one_event_and_one_object_in_ten_seconds() -> None:
    cluster = Cluster()
    cluster.put(pod())
    cluster.report(entry())
    cluster.step()
    cluster.report(entry(verdict="degraded", reasons=["1 of 9 threads are misplaced"]))
    writes = cluster.step(1)
    assert [write.kind for write in writes] == ["condition", "event"]
    assert events(writes) == ["PinningDegraded"]
    assert cluster.kinds(timing.NODE_PAUSE) == {"pinning": 1}
    cluster.report(entry())
    writes = cluster.step(1)
    assert events(writes) == ["PinRestored"]
    assert (cluster.pods["uid-web"].condition or {})["status"] == "True"


def test_a_reporter_that_is_started_again_repeats_nothing_but_the_object() -> None:
    cluster = Cluster()
    cluster.put(pod("a"), pod("b"))
    cluster.report(entry("a"), entry("b", verdict="degraded", reasons=["why"]))
    cluster.step()
    cluster.agenda = Agenda(cluster.wanted, "y", cluster.now)
    assert cluster.kinds(1) == {"pinning": 1}


def test_a_watcher_that_is_updated_changes_nothing_and_one_that_stays_away_is_shown() -> None:
    cluster = Cluster()
    cluster.put(pod())
    cluster.report(entry())
    cluster.step()
    cluster.reports = False
    for _ in range(5):
        assert cluster.kinds(timing.AWAY_AFTER / 6) == {}
    assert 0 < cluster.agenda.next_due(cluster.now) <= timing.AWAY_AFTER / 6
    cluster.report(entry())
    assert cluster.kinds(1) == {}
    cluster.reports = False
    cluster.step()
    assert cluster.kinds(timing.AWAY_AFTER) == {"labels": 1, "condition": 1, "pinning": 1}
    assert (cluster.pods["uid-web"].condition or {})["reason"] == "WatcherAway"
    assert cluster.node.labels["vmpin.io/ready"] == "false"
    cluster.report(entry())
    writes = cluster.step(timing.NODE_PAUSE)
    assert sorted(write.kind for write in writes) == ["condition", "labels", "pinning"]
    assert events(writes) == []


def test_without_any_report_nothing_is_written_but_that_the_watcher_is_away() -> None:
    cluster = Cluster()
    cluster.put(pod("new"), pod("old", {"type": "vmpin.io/CPUsPinned", "status": "True", "reason": "Pinned"}))
    assert cluster.kinds(1) == {}
    assert cluster.kinds(timing.AWAY_AFTER) == {"condition": 1}
    assert (cluster.pods["uid-old"].condition or {})["reason"] == "WatcherAway"
    assert cluster.pods["uid-new"].condition is None


def test_a_state_that_does_not_last_is_not_written_at_once() -> None:
    cluster = Cluster()
    cluster.put(pod())
    cluster.report(entry(verdict="waiting", reasons=["waits"]))
    assert cluster.kinds() == {"labels": 1, "pinning": 1}
    assert cluster.agenda.next_due(cluster.now) <= timing.PASSING_AFTER
    cluster.report(entry())
    assert cluster.kinds(timing.PASSING_AFTER / 2) == {"condition": 1, "event": 1}
    cluster.report(entry(verdict="waiting", reasons=["waits"]))
    assert cluster.kinds(1) == {}
    assert "condition" in cluster.kinds(timing.PASSING_AFTER)
    assert (cluster.pods["uid-web"].condition or {})["status"] == "Unknown"


def test_a_pod_of_the_same_name_with_another_uid_is_another() -> None:
    cluster = Cluster()
    cluster.put(pod())
    cluster.report(entry())
    cluster.step()
    cluster.pods.clear()
    cluster.put(pod(uid="uid-2", runtime_uid="uid-2"))
    assert cluster.kinds(1) == {}  # the watcher has the old one
    cluster.report(entry(pod={"namespace": "default", "name": "web", "uid": "uid-2"}))
    (condition,) = [write for write in cluster.step(1) if write.kind == "condition"]
    body: Any = condition.request.body
    assert body["metadata"]["uid"] == "uid-2"


def test_a_pod_that_names_another_as_its_original_is_not_taken_for_it() -> None:
    cluster = Cluster()
    intruder = pod("intruder", uid="uid-intruder", runtime_uid="uid-web")
    static = pod("static", uid="uid-of-the-api-server", runtime_uid="uid-static")
    cluster.put(pod("web"), intruder, static)
    cluster.report(entry("web"), entry("static"))
    assert [write.pod.name for write in cluster.step() if write.kind == "condition" and write.pod is not None] == [
        "web", "static"]


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_sandboxes_of_a_pod_the_one_that_runs_counts(order: int) -> None:
    cluster = Cluster()
    cluster.put(pod())
    cluster.report(*[entry(), entry(id="sandbox-former", vmm=None, verdict="waiting")][::order])
    (condition,) = [write for write in cluster.step(60) if write.kind == "condition"]
    assert condition.content.state.value == "Pinned"


def test_an_event_that_has_expired_is_made_again() -> None:
    cluster = Cluster(WriteChoice(conditions=False, labels=False))
    cluster.put(pod())
    for verdict in ("pinned", "degraded", "pinned", "degraded"):
        cluster.report(entry(verdict=verdict))
        cluster.agenda.observe(cluster.reported, True, tuple(cluster.pods.values()), cluster.now, cluster.now)
    methods = []
    for write in cluster.agenda.due(NODE, cluster.now, cluster.now):
        if write.kind == "event":
            methods.append(write.request.method)
            cluster.agenda.done(write, 404 if write.request.method == "PATCH" else 201, cluster.now)
        else:
            cluster.agenda.done(write, 200, cluster.now)
    assert methods == ["POST", "POST", "POST", "PATCH", "POST"]


def test_many_pods_are_written_at_a_pace() -> None:
    cluster = Cluster(WriteChoice(events=False))
    names = [f"pod-{number}" for number in range(110)]
    cluster.put(*map(pod, names))
    cluster.report(*map(entry, names))
    assert cluster.kinds()["condition"] == timing.WRITE_BURST
    assert 0 < cluster.agenda.next_due(cluster.now) <= 2 * timing.WRITE_SECONDS
    written = timing.WRITE_BURST
    while written < 110:
        count = cluster.kinds(1.0)["condition"]
        assert 0 < count <= timing.WRITE_BURST
        written += count
    assert cluster.kinds(1.0) == {}


STATES = st.sampled_from([
    {}, {"verdict": "floating"}, {"verdict": "degraded", "reasons": ["a"]}, {"verdict": "degraded", "reasons": ["b"]},
    {"verdict": "waiting"}, {"verdict": "off", "suspended": True}, {"verdict": "unmanaged"}, None])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 40), st.booleans(), STATES, STATES), min_size=1, max_size=30))
def test_whatever_happens_it_comes_to_rest_and_shows_what_is_so(
        steps: list[tuple[float, bool, dict[str, Any] | None, dict[str, Any] | None]]) -> None:
    cluster = Cluster()
    cluster.put(pod("a"), pod("b"))
    wrote = 0.0
    for pause, reports, *states in steps:
        if reports:
            cluster.report(*(entry(name, **changes) for name, changes in zip("ab", states, strict=True)
                             if changes is not None))
        else:
            cluster.reports = False
        kinds = cluster.kinds(pause)
        if kinds["pinning"]:
            assert wrote == 0.0 or cluster.now - wrote >= timing.NODE_PAUSE
            wrote = cluster.now
    for _ in range(12):  # past the refresh, and not until the next one
        cluster.step(30)
    assert cluster.kinds(1) == {}
    for name, changes in zip("ab", steps[-1][2:], strict=True):
        condition = cluster.pods[f"uid-{name}"].condition
        if not steps[-1][1]:
            assert condition is None or condition["reason"] == "WatcherAway"
        elif changes is not None:
            verdict = changes.get("verdict", "pinned")
            assert (condition or {})["status"] == {"pinned": "True", "floating": "True", "waiting": "Unknown"}.get(
                str(verdict), "False")


def test_a_change_of_time_alone_is_no_change() -> None:
    report: ReportedNode = reported(entry())
    cluster = Cluster()
    cluster.put(pod())
    cluster.reported, cluster.reports = report, True
    cluster.step()
    for second in range(20):
        cluster.reported = cluster.reported.after(line("change", time=2000.0 + second))
        assert cluster.kinds(10) == {}
    cluster.reported = cluster.reported.after(line("change", node=node_part(shared_pool="0-3")))
    assert cluster.kinds(10) == {"pinning": 1}


def test_the_topology_is_written_and_the_object_shows_it() -> None:
    cluster = Cluster(WriteChoice(topology=True, conditions=False, labels=False))
    assert cluster.kinds() == {}
    cluster.report()
    writes = cluster.step()
    assert [(write.kind, write.request.method) for write in writes] == [
        ("topology", "GET"), ("topology", "PATCH"), ("pinning", "PATCH")]
    body: Any = writes[-1].request.body
    assert body["status"]["nodeResourceTopology"] == "own zones"
    cluster.reports = False
    assert "topology" not in cluster.kinds(REFRESH)


def counted(cluster: Cluster) -> tuple[str, list[str]]:
    """The summary of the NodePinning that is written after a while, and its pods."""
    (write,) = [write for write in cluster.step(REFRESH) if write.kind == "pinning"]
    status = write.content["status"]
    return status["summary"], [sandbox["uid"] for sandbox in status["sandboxes"]]


def test_a_sandbox_of_a_deleted_pod_is_not_counted_under_the_name_of_the_next() -> None:
    """The kubelet removes an ended sandbox some time after its pod."""
    cluster = Cluster()
    cluster.put(pod(), pod("done", ending=True))
    again = {"pod": {"namespace": "default", "name": "web", "uid": "uid-web"}, "vmm": None}
    old = {"pod": {"namespace": "default", "name": "web", "uid": "uid-old"}, "vmm": None}
    cluster.report(entry(), {**entry("old"), **old}, {**entry("again"), **again}, {**entry("done"), "vmm": None})
    assert counted(cluster) == ("1/1", ["uid-web"])


def test_a_pod_that_is_there_and_has_no_vm_is_counted() -> None:
    cluster = Cluster()
    cluster.put(pod())
    cluster.report({**entry(), "vmm": None}, {**entry("other"), "vmm": None, "pod": None})
    assert counted(cluster) == ("0/2", ["", "uid-web"])
    cluster.report(entry(), entry("other"))
    cluster.pods.clear()  # as where the watch is behind: a VM that runs is counted
    assert counted(cluster)[0] == "2/2"


def test_a_refused_change_of_an_annotation_is_an_event_of_its_pod_once() -> None:
    """The pod need not be in a VM."""
    refused = {"uid": "uid-web", "container": "main", "why": "vmpin: 8 CPUs are asked for, and 2 are free"}
    cluster = Cluster()
    cluster.put(pod(), pod("other"))
    cluster.report(features={"allocator": {"why": "", "refused": [{**refused, "why": "of an earlier reporter"}]}})
    assert events(cluster.step()) == []
    cluster.report(features={"allocator": {"why": "", "refused": [{**refused, "uid": "uid-gone"}, refused]}})
    (write,) = [write for write in cluster.step(1) if write.kind == "event"]
    assert write.pod is not None
    event = write.content.notice
    assert (write.pod.name, event.reason.value, event.reason.type) == ("web", "CPUsRefused", "Warning")
    assert event.message == "container main: vmpin: 8 CPUs are asked for, and 2 are free"
    cluster.report(allocator={"why": "", "refused": [refused]}, version="0.1.1")
    assert events(cluster.step(1)) == []
