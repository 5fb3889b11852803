"""Reading a cluster: which requests are made, page by page, and what an answer that is an error turns into."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fleet_given import NOW, pinning
from kube_given import entry

from vmpin.errors import UsageError, VmpinError
from vmpin.features.cluster.cluster_errors import AnswerTooLong, ClusterError
from vmpin.features.cluster.fleet.fleet_reading import (
    LARGEST_PAGE,
    PAGES,
    check_selector,
    placement_of,
    read_fleet,
)
from vmpin.features.cluster.fleet.node_record import Fleet, NodeHealth
from vmpin.features.cluster.kube.api_request import ApiRequest

PINNINGS, NODES = "/apis/vmpin.io/v1alpha1/nodepinnings", "/api/v1/nodes"
DAEMON_SETS = "/apis/apps/v1/daemonsets"
REPORTER = {"spec": {"template": {"spec": {"nodeSelector": {"kata": "true"}}}}}


class Lists:
    """Answers list requests from lists of objects, in pages as they are asked for; an error in place of a list is
    raised. `requests` has what was asked."""

    def __init__(self, **lists: Any) -> None:
        self._lists = {PINNINGS: lists.get("pinnings", []), NODES: lists.get("nodes", []),
                       DAEMON_SETS: lists.get("daemon_sets", [])}
        self.requests: list[tuple[str, dict[str, str]]] = []

    def send(self, request: ApiRequest, most: int) -> Any:
        query = dict(request.query)
        self.requests.append((request.path, query))
        items = self._lists[request.path]
        if isinstance(items, Exception):
            raise items
        begin = int(query.get("continue", 0))
        end = begin + int(query["limit"])
        page = {"items": items[begin:end], "metadata": {"continue": str(end) if end < len(items) else ""}}
        if len(json.dumps(page)) > most:
            raise AnswerTooLong("too long")
        return page

    def fleet(self, **choice: str) -> Fleet:
        return read_fleet(self.send, lambda: NOW, lambda record: record, **choice)


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"kata": "true", **labels}}}


def test_nodes_that_the_reporters_daemon_set_chooses_are_expected() -> None:
    lists = Lists(pinnings=[pinning("a")], daemon_sets=[REPORTER],
                  nodes=[node("a"), node("b"), {"metadata": {"name": "c"}}])
    fleet = lists.fleet()
    assert [(node.record.name, node.health) for node in fleet.nodes] == [("b", NodeHealth.MISSING),
                                                                        ("a", NodeHealth.GOOD)]
    assert [path for path, _ in lists.requests] == [DAEMON_SETS, NODES, PINNINGS]
    assert lists.requests[0][1]["labelSelector"] == "app.kubernetes.io/name=vmpin,app.kubernetes.io/component=reporter"
    assert lists.requests[1][1]["labelSelector"] == "kata=true"
    assert "labelSelector" not in lists.requests[2][1]


def test_one_node_takes_one_list_and_no_other_right() -> None:
    lists = Lists(pinnings=[pinning("a")])
    assert lists.fleet(node="a").nodes[0].health is NodeHealth.GOOD
    assert lists.requests == [(PINNINGS, {"fieldSelector": "metadata.name=a", "limit": str(PAGES[0])})]
    assert Lists().fleet(node="b").nodes[0].health is NodeHealth.MISSING


def test_a_selector_is_for_nodes_and_their_objects() -> None:
    lists = Lists(daemon_sets=[REPORTER])
    lists.fleet(selector="topology.kubernetes.io/zone=a")
    assert [query["labelSelector"] for _, query in lists.requests[1:]] == [
        "kata=true,topology.kubernetes.io/zone=a", "topology.kubernetes.io/zone=a"]


@pytest.mark.parametrize("selector", [
    "topology.kubernetes.io/zone=a", "topology.kubernetes.io/zone in (a, b),vmpin.io/ready!=true", "!vmpin.io/pool",
    "vmpin.io/pool", "vmpin.io/pool notin (x),  topology.kubernetes.io/region==r"])
def test_a_selector_of_labels_that_objects_have_is_taken(selector: str) -> None:
    check_selector(selector)


@pytest.mark.parametrize("selector", [
    "zone=a", "vmpin.io/pool=a,kubernetes.io/arch in (a,b)", ",", "=", "vmpin.io/pool,"])
def test_a_selector_of_other_labels_is_refused(selector: str) -> None:
    with pytest.raises(UsageError, match="is about a label that NodePinnings do not have") as caught:
        Lists().fleet(selector=selector)
    assert "topology.kubernetes.io/zone" in caught.value.hint


def test_without_a_daemon_set_nothing_is_expected() -> None:
    fleet = Lists(pinnings=[pinning("a")]).fleet()
    assert (fleet.unknown, fleet.unchecked) == ("", "there is no DaemonSet of the reporter")
    assert fleet.verdict == 0


@pytest.mark.parametrize(("lists", "rule"), [
    ({"daemon_sets": ClusterError("no", 403)}, '{apiGroups: ["apps"], resources: [daemonsets], verbs: [list]}'),
    ({"daemon_sets": [REPORTER], "nodes": ClusterError("no", 403)},
     '{apiGroups: [""], resources: [nodes], verbs: [list]}')])
def test_a_right_that_is_missing_is_named_and_the_rest_is_shown(lists: dict[str, Any], rule: str) -> None:
    fleet = Lists(pinnings=[pinning("a")], **lists).fleet()
    assert [node.record.name for node in fleet.nodes] == ["a"]
    assert rule in fleet.unknown
    assert fleet.verdict == 3


@pytest.mark.parametrize(("error", "selector", "text", "hint"), [
    (ClusterError("x", 404), "", "vmpin's chart is not installed in this cluster", "docs/kubernetes.md"),
    (ClusterError("forbidden", 403), "", "forbidden",
     '{apiGroups: ["vmpin.io"], resources: [nodepinnings], verbs: [list]}'),
    (ClusterError("x", 401), "", "x", "log in again"), (ClusterError("away"), "", "away", "--context"),
    (ClusterError("x", 503), "", "x", "try again in 5 s"), (ClusterError("x", 429, 7.0), "", "x", "try again in 7 s"),
    (ClusterError("x", 410), "", "x", ""),
    (ClusterError("unable to parse", 400), "vmpin.io/pool in a", "unable to parse", "e.g. -l ")])
def test_an_error_says_what_to_do(error: ClusterError, selector: str, text: str, hint: str) -> None:
    with pytest.raises(VmpinError, match=text) as caught:
        Lists(pinnings=error).fleet(selector=selector)
    assert isinstance(caught.value, UsageError) == bool(selector)
    assert hint in caught.value.hint
    assert bool(hint) == bool(caught.value.hint)


def test_an_error_of_nodes_that_is_no_missing_right_is_one() -> None:
    with pytest.raises(ClusterError, match="away"):
        Lists(daemon_sets=ClusterError("away")).fleet()


def test_pages_are_followed_to_their_end() -> None:
    lists = Lists(pinnings=[pinning(f"node-{number}") for number in range(2 * PAGES[0] + 1)])
    assert len(lists.fleet().nodes) == 2 * PAGES[0] + 1
    assert [query.get("continue") for path, query in lists.requests if path == PINNINGS] == [
        None, str(PAGES[0]), str(2 * PAGES[0])]


def test_large_objects_come_in_smaller_pages_and_the_others_are_shown() -> None:
    huge = pinning("huge", entry("web"))
    huge["status"]["sandboxes"] *= LARGEST_PAGE // 3 // 600
    lists = Lists(pinnings=[pinning("a"), {**huge}, {**huge}, {**huge}, {**huge}, pinning("z")])
    fleet = lists.fleet()
    states = [node.health for node in fleet.nodes]
    assert (states.count(NodeHealth.UNREADABLE), states.count(NodeHealth.GOOD)) == (4, 2)
    assert {int(query["limit"]) for path, query in lists.requests if path == PINNINGS} == set(PAGES)


def test_one_object_that_is_larger_than_a_page_is_an_error() -> None:
    huge = pinning("huge", entry("web"))
    huge["status"]["sandboxes"] *= LARGEST_PAGE // 300
    with pytest.raises(ClusterError, match="too long"):
        Lists(pinnings=[huge]).fleet()


@pytest.mark.parametrize("answer", [{}, {"items": 3, "metadata": {}}, {"items": [], "metadata": 3}, []])
def test_an_answer_that_is_no_list_is_an_error(answer: Any) -> None:
    with pytest.raises(ClusterError, match="the answer is no list"):
        read_fleet(lambda request, most: answer, lambda: NOW, lambda record: record, "a")


def daemon_set(**spec: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": spec}}}


def labelled_node(*taints: dict[str, str], **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "node-1", "labels": labels}, "spec": {"taints": list(taints)}}


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


TAINT = {"key": "a", "value": "b", "effect": "NoSchedule"}


@pytest.mark.parametrize(("spec", "item", "chosen"), [
    ({}, labelled_node(), True),
    ({"nodeSelector": {"kata": "true"}}, labelled_node(kata="true"), True),
    ({"nodeSelector": {"kata": "true"}}, labelled_node(kata="false"), False),
    ({"nodeSelector": {"kata": "true", "x": "y"}}, labelled_node(kata="true"), False),
    ({}, labelled_node(TAINT), False),
    ({}, labelled_node({**TAINT, "effect": "PreferNoSchedule"}), True),
    ({}, labelled_node({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}), True),
    ({}, labelled_node({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}), True),
    ({"tolerations": [{"operator": "Exists"}]}, labelled_node(TAINT), True),
    ({"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute"}]}, labelled_node(TAINT), False),
    ({"tolerations": [{"key": "a", "value": "b"}]}, labelled_node(TAINT), True),
    ({"tolerations": [{"key": "a", "value": "c"}]}, labelled_node(TAINT), False),
    ({"tolerations": [{"key": "c", "operator": "Exists"}]}, labelled_node(TAINT), False),
    ({"tolerations": [{"key": "a", "operator": "Exists"}]},
     labelled_node(TAINT, {"key": "c", "effect": "NoExecute"}), False),
    ({"affinity": affinity(expression("x", "In", "1", "2"))}, labelled_node(x="2"), True),
    ({"affinity": affinity(expression("x", "In", "1", "2"))}, labelled_node(), False),
    ({"affinity": affinity(expression("x", "NotIn", "1"))}, labelled_node(), True),
    ({"affinity": affinity(expression("x", "Exists"))}, labelled_node(), False),
    ({"affinity": affinity(expression("x", "DoesNotExist"))}, labelled_node(), True),
    ({"affinity": affinity(expression("x", "Gt", "4"))}, labelled_node(x="5"), True),
    ({"affinity": affinity(expression("x", "Lt", "4"))}, labelled_node(x="5"), False),
    ({"affinity": affinity(expression("x", "Gt", "4"))}, labelled_node(x="many"), False),
    ({"affinity": affinity(expression("x", "Exists"), expression("y", "Exists"))}, labelled_node(y=""), True),
    ({"affinity": affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]})},
     labelled_node(), True),
    ({"affinity": affinity({})}, labelled_node(), False),
    ({"affinity": affinity()}, labelled_node(), False),
    ({"affinity": affinity(expression("x", "Near", "4"))}, labelled_node(x="5"), False),
    ({}, {}, False)])
def test_a_node_is_chosen_or_not(spec: dict[str, Any], item: dict[str, Any], chosen: bool) -> None:
    assert placement_of(daemon_set(**spec)).chooses(item) is chosen


def test_its_node_selector_is_one_of_the_api_server() -> None:
    assert placement_of(daemon_set(nodeSelector={"b/c": "true", "a": ""})).selector == "a=,b/c=true"


@pytest.mark.parametrize("item", [{}, {"spec": 3}, {"spec": {"template": {"spec": {"nodeSelector": 3}}}}])
def test_what_is_no_daemon_set_is_refused(item: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is no DaemonSet"):
        placement_of(item)
