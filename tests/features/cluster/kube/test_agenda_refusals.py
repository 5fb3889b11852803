"""What the agenda does with writes that the API server refuses or fails at."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from agenda_cluster import TAINTED, Cluster
from kube_given import NODE, entry, pod

from vmpin.features.cluster.kube import agenda as timing
from vmpin.features.cluster.kube.agenda import WriteChoice
from vmpin.features.cluster.kube.api_request import FIRST, LONGEST


@pytest.mark.parametrize("status", [404, 409, 422])
def test_a_refused_condition_is_not_tried_again_before_the_pod_changes(status: int) -> None:
    cluster = Cluster(WriteChoice(events=False, labels=False))
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
    sentences = []
    for _ in range(3):
        cluster.agenda.observe(cluster.reported, True, tuple(cluster.pods.values()), cluster.now, cluster.now)
        for write in cluster.agenda.due(cluster.node, cluster.now, cluster.now):
            status = 403 if write.kind == kind else 200
            if status == 200:
                cluster.take(write)
            sentences.append(cluster.agenda.done(write, status, cluster.now))
        cluster.now += 5
    (text,) = [sentence for sentence in sentences if sentence]
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
    cluster = Cluster(WriteChoice(events=False, labels=False))
    cluster.put(pod())
    cluster.report(entry())
    cluster.status = 403
    assert 8 <= sum(cluster.kinds(1.0)["condition"] for _ in range(int(2 * LONGEST))) <= 10


def test_without_the_crd_the_rest_goes_on() -> None:
    cluster = Cluster()
    cluster.report()
    cluster.agenda.observe(cluster.reported, True, (), 0.0, 0.0)
    sentences = [cluster.agenda.done(write, 404 if write.kind == "pinning" else 200, 0.0)
            for write in cluster.agenda.due(NODE, 0.0, 0.0)]
    assert [sentence for sentence in sentences if sentence] == [
        "PATCH /apis/vmpin.io/v1alpha1/nodepinnings/node-a: there is no such resource: is the CRD installed?; "
        "tried again after 2 s, later after up to 300 s"]


def _two_namespaces() -> tuple[Cluster, dict[str, Any]]:
    """A node with a pod in each of two namespaces, `default` and `other`."""
    cluster = Cluster(WriteChoice())
    other = entry("b", pod={"namespace": "other", "name": "b", "uid": "uid-b"})
    cluster.put(pod("a"), pod("b", namespace="other"))
    cluster.report(entry("a"), other)
    return cluster, other


def _written(cluster: Cluster, status: dict[str, int], times: int = 1) -> Counter[tuple[str, str]]:
    """Writes by kind and namespace. :param status: of pods' objects by namespace, else 200."""
    writes: Counter[tuple[str, str]] = Counter()
    for _ in range(times):
        cluster.agenda.observe(cluster.reported, True, tuple(cluster.pods.values()), cluster.now, cluster.now)
        for write in cluster.agenda.due(cluster.node, cluster.now, cluster.now):
            namespace = write.pod.namespace if write.pod is not None else ""
            writes[write.kind, namespace] += 1
            code = status.get(namespace, 200)
            if code == 500:
                cluster.agenda.put_off(write, cluster.now)
                break  # the round ends, and another follows
            if code == 200:
                cluster.take(write)
            cluster.agenda.done(write, code, cluster.now)
        cluster.now += 1
    return writes


def test_what_is_forbidden_in_one_namespace_goes_on_in_others() -> None:
    """A quota, a namespace that ends, another admission plugin."""
    cluster, other = _two_namespaces()
    kinds = ("condition", "event")
    writes = _written(cluster, {"default": 403})
    assert {kind: writes[kind, "default"] for kind in kinds} == {kind: writes[kind, "other"] for kind in kinds} == (
        dict.fromkeys(kinds, 1))
    # What waits for its namespace wakes nothing before that is asked again.
    assert cluster.agenda.next_due(cluster.now) >= 0.9
    cluster.report(entry("a", verdict="floating", mask="0"), {**other, "verdict": "floating", "mask": "0"})
    writes = _written(cluster, {"default": 403})
    assert [writes[kind, "other"] for kind in kinds] == [1, 1]
    cluster.now += 300
    writes = _written(cluster, {})
    assert writes["condition", "default"] == 1
    assert writes["event", "default"] == 2


def test_an_object_at_which_the_api_server_fails_holds_up_no_other() -> None:
    """500: as with an admission webhook that does not answer."""
    cluster, _ = _two_namespaces()
    writes = _written(cluster, {"default": 500}, 6)
    assert [writes[kind, "other"] for kind in ("condition", "event")] == [1, 1]
    assert [writes[kind, "default"] for kind in ("condition", "event")] == [1, 1]
    assert writes["pinning", ""] == 1
    assert cluster.agenda.next_due(cluster.now) <= timing.SETTLING
    cluster.now += timing.SETTLING
    writes = _written(cluster, {})
    assert [writes[kind, "default"] for kind in ("condition", "event")] == [1, 1]


def test_the_nodes_objects_are_tried_ever_less_often_while_they_are_refused() -> None:
    """As by an older CRD, or by the policies where tokens name no node."""
    cluster = Cluster(WriteChoice(startup_taint="vmpin.io/starting"), TAINTED)
    cluster.report()
    tried: Counter[str] = Counter()
    sentences = []
    while cluster.now < 3600:
        cluster.agenda.observe(cluster.reported, True, (), cluster.now, cluster.now)
        for write in cluster.agenda.due(cluster.node, cluster.now, cluster.now):
            tried[write.kind] += 1
            sentences.append(cluster.agenda.done(write, 422, cluster.now))
        cluster.now += max(0.5, cluster.agenda.next_due(cluster.now))
    assert all(12 <= tried[kind] <= 20 for kind in ("taint", "labels", "pinning")), tried
    assert len([text for text in sentences if text]) == 3


def test_a_refused_condition_is_tried_again_in_the_end() -> None:
    cluster = Cluster(WriteChoice(events=False, labels=False))
    cluster.put(pod())
    cluster.report(entry())
    cluster.status = 409
    assert cluster.kinds()["condition"] == 1
    cluster.status = 200
    assert cluster.kinds(60)["condition"] == 0
    assert 0 < cluster.agenda.next_due(cluster.now) <= LONGEST
    assert cluster.kinds(LONGEST)["condition"] == 1
