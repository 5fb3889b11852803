"""What is written when: nothing without a change, each kind at its pace, and nothing for a watcher that is updated."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kube_given import NODE, as_written, entry, line, node_part, pod, reported

from vmpin.kube import agenda as timing
from vmpin.kube.agenda import Agenda, Wanted, Write
from vmpin.kube.cluster_node import ClusterNode
from vmpin.kube.node_pinning import REFRESH
from vmpin.kube.node_topology import TopologyMode
from vmpin.kube.pod_record import PodRecord, Pods
from vmpin.kube.refusals import FIRST, LONGEST
from vmpin.kube.reported_node import NOTHING, ReportedNode

TAINTED = NODE._replace(taints=({"key": "vmpin.io/starting", "effect": "NoSchedule"},))


class Cluster:
    """An API server that does as it is asked, as far as the agenda can see; and the agenda, with both clocks."""

    def __init__(self, wanted: Wanted | None = None, node: ClusterNode = NODE) -> None:
        self.node, self.now = node, 0.0
        self.wanted = wanted or Wanted()
        self.agenda = Agenda(self.wanted, "x", 0.0)
        self.pods: dict[str, PodRecord] = {}
        self.reported, self.reports = NOTHING, False
        self.status = 200

    def report(self, *entries: dict[str, Any], **node: Any) -> None:
        self.reported, self.reports = reported(*entries, time=1000.0 + self.now, **node), True

    def put(self, *pods: PodRecord) -> None:
        self.pods |= {each.uid: each for each in pods}

    def step(self, seconds: float = 0.0) -> list[Write]:
        """What is written now."""
        self.now += seconds
        self.agenda.observe(self.reported, self.reports, Pods(self.pods.values()), self.now, 1000.0 + self.now)
        writes = []
        for write in self.agenda.due(self.node, self.now, 1000.0 + self.now):
            writes.append(write)
            if self.status == 200:
                self._take(write)
            reads = write.request.method == "GET"  # of a topology: there is none
            self.agenda.done(write, 404 if reads else self.status, self.now)
        return writes

    def _take(self, write: Write) -> None:
        body: Any = write.request.body
        if write.pod is not None and write.kind in ("condition", "annotation"):
            self.put(as_written(self.pods[write.pod.uid], write.request))
        elif write.kind == "labels":
            self.node = self.node._replace(labels={**self.node.labels, **body["metadata"]["labels"]})
        elif write.kind == "taint":
            self.node = self.node._replace(taints=())

    def kinds(self, seconds: float = 0.0) -> Counter[str]:
        return Counter(write.kind for write in self.step(seconds))


def events(writes: list[Write]) -> list[str]:
    return [write.what.event.reason.value for write in writes if write.kind == "event"]


def test_the_first_report_writes_all_and_the_next_nothing() -> None:
    cluster = Cluster(Wanted(startup_taint="vmpin.io/starting"), TAINTED)
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
    cluster = Cluster(Wanted(startup_taint="vmpin.io/starting"), TAINTED)
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
    assert cluster.agenda.next_due(cluster.now) <= timing.UNSETTLED_AFTER
    cluster.report(entry())
    assert cluster.kinds(timing.UNSETTLED_AFTER / 2) == {"condition": 1, "event": 1}
    cluster.report(entry(verdict="waiting", reasons=["waits"]))
    assert cluster.kinds(1) == {}
    assert "condition" in cluster.kinds(timing.UNSETTLED_AFTER)
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
    thief = pod("thief", uid="uid-thief", runtime_uid="uid-web")
    static = pod("static", uid="uid-of-the-api-server", runtime_uid="uid-static")
    cluster.put(pod("web"), thief, static)
    cluster.report(entry("web"), entry("static"))
    assert [write.pod.name for write in cluster.step() if write.kind == "condition" and write.pod is not None] == [
        "web", "static"]


@pytest.mark.parametrize("status", [404, 409, 422])
def test_a_refused_condition_is_not_tried_again_before_the_pod_changes(status: int) -> None:
    cluster = Cluster(Wanted(events=False, labels=False))
    cluster.put(pod())
    cluster.report(entry())
    cluster.status = status
    assert cluster.kinds()["condition"] == 1
    assert cluster.kinds(60)["condition"] == 0
    cluster.put(pod()._replace(condition={"status": "Unknown"}))
    cluster.status = 200
    assert cluster.kinds(1)["condition"] == 1


@pytest.mark.parametrize("kind", ["labels", "condition", "event", "pinning"])
def test_what_is_forbidden_is_tried_again_later_and_said_once(kind: str) -> None:
    cluster = Cluster()
    cluster.put(pod("a"), pod("b"))
    cluster.report(entry("a"), entry("b"))
    said = []
    for _ in range(3):
        cluster.agenda.observe(cluster.reported, True, Pods(cluster.pods.values()), cluster.now, cluster.now)
        for write in cluster.agenda.due(cluster.node, cluster.now, cluster.now):
            status = 403 if write.kind == kind else 200
            if status == 200:
                cluster._take(write)
            said.append(cluster.agenda.done(write, status, cluster.now))
        cluster.now += 5
    (text,) = [each for each in said if each]
    assert "not permitted" in text
    cluster.report(entry("a", verdict="floating"), entry("b"))
    assert kind in cluster.kinds(LONGEST)


def test_after_a_moment_in_which_all_is_forbidden_nothing_is_missing() -> None:
    """An API server that has just been started has not read its roles yet."""
    cluster = Cluster()
    cluster.put(pod())
    cluster.report(entry())
    cluster.status = 403
    cluster.step()
    cluster.status = 200
    assert cluster.kinds(FIRST) == {"labels": 1, "condition": 1, "event": 1, "pinning": 1}


def test_what_stays_forbidden_is_tried_at_growing_pauses() -> None:
    cluster = Cluster(Wanted(events=False, labels=False))
    cluster.put(pod())
    cluster.report(entry())
    cluster.status = 403
    assert 8 <= sum(cluster.kinds(1.0)["condition"] for _ in range(int(2 * LONGEST))) <= 10


def test_without_the_crd_the_rest_goes_on() -> None:
    cluster = Cluster()
    cluster.report()
    cluster.agenda.observe(cluster.reported, True, Pods(), 0.0, 0.0)
    said = [cluster.agenda.done(write, 404 if write.kind == "pinning" else 200, 0.0)
            for write in cluster.agenda.due(NODE, 0.0, 0.0)]
    assert [each for each in said if each] == [
        "PATCH /apis/vmpin.io/v1alpha1/nodepinnings/node-a: there is no such resource: is the CRD installed?; "
        "tried again after 2 s, later after up to 300 s"]


def _two_namespaces() -> tuple[Cluster, dict[str, Any]]:
    """A node with a pod in each of two namespaces, `default` and `other`."""
    cluster = Cluster(Wanted(annotations=True))
    other = entry("b", pod={"namespace": "other", "name": "b", "uid": "uid-b"})
    cluster.put(pod("a"), pod("b", namespace="other"))
    cluster.report(entry("a"), other)
    return cluster, other


def _written(cluster: Cluster, status: dict[str, int], times: int = 1) -> Counter[tuple[str, str]]:
    """Writes by kind and namespace. :param status: of pods' objects by namespace, else 200."""
    found: Counter[tuple[str, str]] = Counter()
    for _ in range(times):
        cluster.agenda.observe(cluster.reported, True, Pods(cluster.pods.values()), cluster.now, cluster.now)
        for write in cluster.agenda.due(cluster.node, cluster.now, cluster.now):
            namespace = write.pod.namespace if write.pod is not None else ""
            found[write.kind, namespace] += 1
            code = status.get(namespace, 200)
            if code == 500:
                cluster.agenda.put_off(write, cluster.now)
                break  # the round ends, and another follows
            if code == 200:
                cluster._take(write)
            cluster.agenda.done(write, code, cluster.now)
        cluster.now += 1
    return found


def test_what_is_forbidden_in_one_namespace_goes_on_in_others() -> None:
    """A quota, a namespace that ends, another admission plugin."""
    cluster, other = _two_namespaces()
    kinds = ("condition", "annotation", "event")
    found = _written(cluster, {"default": 403})
    assert {kind: found[kind, "default"] for kind in kinds} == {kind: found[kind, "other"] for kind in kinds} == (
        dict.fromkeys(kinds, 1))
    # What waits for its namespace wakes nothing before that is asked again.
    assert cluster.agenda.next_due(cluster.now) >= 0.9
    cluster.report(entry("a", verdict="floating", mask="0"), {**other, "verdict": "floating", "mask": "0"})
    found = _written(cluster, {"default": 403})
    assert [found[kind, "other"] for kind in kinds] == [1, 1, 1]
    cluster.now += 300
    found = _written(cluster, {})
    assert found["condition", "default"] == found["annotation", "default"] == 1
    assert found["event", "default"] == 2


def test_an_object_at_which_the_api_server_fails_holds_up_no_other() -> None:
    """500: as with an admission webhook that does not answer."""
    cluster, _ = _two_namespaces()
    found = _written(cluster, {"default": 500}, 6)
    assert [found[kind, "other"] for kind in ("condition", "annotation", "event")] == [1, 1, 1]
    assert [found[kind, "default"] for kind in ("condition", "annotation", "event")] == [1, 1, 1]
    assert found["pinning", ""] == 1
    assert cluster.agenda.next_due(cluster.now) <= timing.SETTLING
    cluster.now += timing.SETTLING
    found = _written(cluster, {})
    assert [found[kind, "default"] for kind in ("condition", "annotation", "event")] == [1, 1, 1]


def test_the_nodes_objects_are_tried_ever_less_often_while_they_are_refused() -> None:
    """As by an older CRD, or by the policies where tokens name no node."""
    cluster = Cluster(Wanted(startup_taint="vmpin.io/starting"), TAINTED)
    cluster.report()
    tried: Counter[str] = Counter()
    said = []
    while cluster.now < 3600:
        cluster.agenda.observe(cluster.reported, True, Pods(), cluster.now, cluster.now)
        for write in cluster.agenda.due(cluster.node, cluster.now, cluster.now):
            tried[write.kind] += 1
            said.append(cluster.agenda.done(write, 422, cluster.now))
        cluster.now += max(0.5, cluster.agenda.next_due(cluster.now))
    assert all(12 <= tried[kind] <= 20 for kind in ("taint", "labels", "pinning")), tried
    assert len([text for text in said if text]) == 3


def test_a_refused_condition_is_tried_again_in_the_end() -> None:
    cluster = Cluster(Wanted(events=False, labels=False))
    cluster.put(pod())
    cluster.report(entry())
    cluster.status = 409
    assert cluster.kinds()["condition"] == 1
    cluster.status = 200
    assert cluster.kinds(60)["condition"] == 0
    assert 0 < cluster.agenda.next_due(cluster.now) <= LONGEST
    assert cluster.kinds(LONGEST)["condition"] == 1


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_sandboxes_of_a_pod_the_one_that_runs_counts(order: int) -> None:
    cluster = Cluster()
    cluster.put(pod())
    cluster.report(*[entry(), entry(id="sandbox-former", vmm=None, verdict="waiting")][::order])
    (condition,) = [write for write in cluster.step(60) if write.kind == "condition"]
    assert condition.what.state.value == "Pinned"


def test_an_event_that_has_expired_is_made_again() -> None:
    cluster = Cluster(Wanted(conditions=False, labels=False))
    cluster.put(pod())
    for verdict in ("pinned", "degraded", "pinned", "degraded"):
        cluster.report(entry(verdict=verdict))
        cluster.agenda.observe(cluster.reported, True, Pods(cluster.pods.values()), cluster.now, cluster.now)
    methods = []
    for write in cluster.agenda.due(NODE, cluster.now, cluster.now):
        if write.kind == "event":
            methods.append(write.request.method)
            cluster.agenda.done(write, 404 if write.request.method == "PATCH" else 201, cluster.now)
        else:
            cluster.agenda.done(write, 200, cluster.now)
    assert methods == ["POST", "POST", "POST", "PATCH", "POST"]


def test_many_pods_are_written_at_a_pace() -> None:
    cluster = Cluster(Wanted(events=False))
    names = [f"pod-{number}" for number in range(110)]
    cluster.put(*map(pod, names))
    cluster.report(*map(entry, names))
    assert cluster.kinds()["condition"] == timing.WRITE_BURST
    assert 0 < cluster.agenda.next_due(cluster.now) <= 2 * timing.WRITE_SECONDS
    written = timing.WRITE_BURST
    while written < 110:
        found = cluster.kinds(1.0)["condition"]
        assert 0 < found <= timing.WRITE_BURST
        written += found
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
    found: ReportedNode = reported(entry())
    cluster = Cluster()
    cluster.put(pod())
    cluster.reported, cluster.reports = found, True
    cluster.step()
    for second in range(20):
        cluster.reported = cluster.reported.after(line("change", time=2000.0 + second))
        assert cluster.kinds(10) == {}
    cluster.reported = cluster.reported.after(line("change", node=node_part(shared_pool="0-3")))
    assert cluster.kinds(10) == {"pinning": 1}


# What is off unless it is asked for.

def test_annotations_follow_the_sandbox_and_go_with_it() -> None:
    cluster = Cluster(Wanted(annotations=True))
    cluster.put(pod("web"), pod("runc"), pod("own", annotations={"vmpin.io/cpus": "9"}))
    cluster.report(entry("web"))
    assert cluster.kinds()["annotation"] == 1
    assert cluster.pods["uid-web"].annotations["vmpin.io/cpus"] == "0-1,4-5"
    cluster.report(entry("web", mask="0-1,4", vcpus={"0": "0-1", "1": "4"}))
    assert cluster.kinds(timing.UNSETTLED_AFTER)["annotation"] == 2, "also that one which no sandbox gave"
    assert cluster.pods["uid-web"].annotations == {"vmpin.io/cpus": "0-1,4", "vmpin.io/vcpus": '{"0":"0-1","1":"4"}'}
    assert (cluster.pods["uid-own"].annotations, cluster.pods["uid-own"].condition) == ({}, None)
    cluster.reports = False
    assert "annotation" not in cluster.kinds(timing.AWAY_AFTER), "the masks stay"
    cluster.report()
    cluster.step()
    assert cluster.kinds(timing.UNSETTLED_AFTER)["annotation"] == 1
    assert cluster.pods["uid-web"].annotations == {}
    assert cluster.kinds(timing.SETTLING) == {}


def test_an_annotation_that_is_refused_is_not_sent_again_for_the_same_pod() -> None:
    cluster = Cluster(Wanted(annotations=True, events=False, labels=False))
    cluster.put(pod())
    cluster.report(entry())
    cluster.status = 409
    assert cluster.kinds()["annotation"] == 1
    cluster.status = 200
    assert "annotation" not in cluster.kinds(timing.SETTLING)
    cluster.put(pod(condition={"type": "other"}))
    assert cluster.kinds()["annotation"] == 1


def test_the_topology_is_written_and_the_object_shows_it() -> None:
    cluster = Cluster(Wanted(topology=TopologyMode.OWN, conditions=False, labels=False))
    assert cluster.kinds() == {}
    cluster.report()
    writes = cluster.step()
    assert [(write.kind, write.request.method) for write in writes] == [
        ("topology", "GET"), ("topology", "PATCH"), ("pinning", "PATCH")]
    body: Any = writes[-1].request.body
    assert body["status"]["nodeResourceTopology"] == "own zones"
    cluster.reports = False
    assert "topology" not in cluster.kinds(REFRESH)
