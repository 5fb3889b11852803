"""All nodes together: their order, the verdict, and what tables and JSON show of them."""

from __future__ import annotations

import json

import pytest
from fleet_given import COLLISION, NOW, mixed, pinning, record
from kube_given import entry

from vmpin.features.cluster.fleet.fleet_views import (
    LISTED,
    document_parts,
    findings,
    misplaced_table,
    node_table,
    overview,
    pod_table,
    remarks,
    verify_document,
)
from vmpin.features.cluster.fleet.node_record import (
    Fleet,
    NodeHealth,
    NodeRecord,
    fleet_of,
    natural_order,
    record_of_pinning,
)


def test_the_most_urgent_come_first() -> None:
    assert [(node.record.name, node.health) for node in mixed().nodes] == [
        ("gone", NodeHealth.MISSING), ("odd", NodeHealth.UNREADABLE), ("old", NodeHealth.STALE),
        ("away", NodeHealth.NOT_READY), ("colliding", NodeHealth.COLLISION), ("wrong", NodeHealth.MISPLACED),
        ("degraded", NodeHealth.DEGRADED), ("good", NodeHealth.GOOD)]


def test_names_are_sorted_by_their_numbers() -> None:
    names = ["node-10", "node-2", "a1b2", "a1b10", "node", "10", "9", "node-1-x"]
    assert sorted(names, key=natural_order) == ["9", "10", "a1b2", "a1b10", "node", "node-1-x", "node-2", "node-10"]


GOOD, DEGRADED = record("good", entry("a")), record("degraded", entry("a", verdict="degraded"))
WRONG, COLLIDING = record("wrong", entry("a", misplaced=1)), record("colliding", entry("web"), collisions=[COLLISION])


@pytest.mark.parametrize(("fleet", "verdict", "last"), [
    (fleet_of([], [], NOW), 0, "no node has a NodePinning: nothing was compared"),
    (fleet_of([GOOD, DEGRADED], ["good"], NOW), 0, "all threads of 2 pods in VMs on 2 nodes are on their CPUs"),
    (fleet_of([GOOD], [], NOW, unchecked="no DaemonSet"), 0,
     "all threads of 1 pod in VMs on 1 node are on their CPUs"),
    (fleet_of([GOOD], [], NOW, unknown="forbidden"), 3, None),
    (fleet_of([GOOD, WRONG], [], NOW), 1, "1 thread of 1 pod is misplaced"),
    (fleet_of([GOOD, COLLIDING], [], NOW), 1, None),
    (fleet_of([GOOD], ["gone"], NOW), 3, "1 of 2 nodes cannot be judged"),
    (fleet_of([record("a", age=700)], [], NOW), 3, "1 of 1 node cannot be judged"),
    (fleet_of([record("a", reports=False), WRONG], [], NOW), 3, "1 thread of 1 pod is misplaced"),
    (fleet_of([GOOD._replace(lost=1)], [], NOW), 3, "1 of 1 node cannot be judged"),
    (fleet_of([record("a", entry("a", verdict="unmanaged"))], [], NOW), 3, "1 of 1 node cannot be judged"),
    (fleet_of([record("a", entry("a", verdict="unmanaged"), entry("b"))], [], NOW), 0,
     "all threads of 2 pods in VMs on 1 node are on their CPUs")])
def test_the_verdict_is_that_of_all(fleet: Fleet, verdict: int, last: str | None) -> None:
    assert fleet.verdict == verdict
    assert next(reversed([*findings(fleet)]), None) == last
    assert verify_document(fleet)["ok"] == (verdict == 0)


@pytest.mark.parametrize(("vcpus", "own", "shown"), [
    ({"0": "0-1", "1": "4", "2": "5"}, "4-5", "2/3 1:1"), ({"0": "4", "1": "4"}, "4", "1/2 1:1"),
    ({"0": "7", "1": "7"}, "", "0/2 1:1")], ids=["apart", "all on the only CPU", "a shared pool of one CPU"])
def test_vcpus_that_float_on_one_cpu_have_none_of_their_own(vcpus: dict[str, str], own: str, shown: str) -> None:
    containers = [{"name": "main", "cpus": own or "7", "exclusive": bool(own), "vcpus": "1", "guest": "applied"}]
    fleet = fleet_of([record("a", entry("a", vcpus=vcpus, containers=containers))], [], NOW)
    assert [row[4] for row in pod_table(fleet, wide=True).rows] == [shown]


def test_a_table_has_a_line_for_each_node() -> None:
    fleet = mixed()
    assert overview(fleet) == ("8 nodes: 1 missing, 1 unreadable, 1 stale, 1 not ready, 1 collision, 1 misplaced, "
                               "1 degraded, 1 ok; 4 of 7 pods in VMs are in place")
    plain, wide = node_table(fleet, False), node_table(fleet, True)
    assert {len(row) for row in plain.rows} == {len(plain.columns)}
    assert {len(row) for row in wide.rows} == {len(wide.columns)}
    rows = {str(row[0]): row for row in plain.rows}
    assert rows["good"] == ["good", "-", "ok", "2/2", 0, 0, "0-1", "4-5", "10s"]
    assert rows["gone"] == ["gone", "-", "missing", *["-"] * 6]
    assert rows["old"][-1] == "11m"


def test_pods_that_need_attention_are_listed_with_the_reason() -> None:
    rows = {row[1]: row for row in pod_table(mixed(), False).rows}
    assert rows.keys() == {"default/c", "default/d", "default/web"}
    assert rows["default/c"] == ["degraded", "default/c", "PinningDegraded", "2 vCPUs"]
    assert rows["default/d"][-1] == "3 threads are misplaced"
    assert misplaced_table(mixed()).rows == [["wrong", "default/d", "PinningDegraded", "0-1,4-5", 3]]
    assert len(pod_table(mixed(), True).rows) == 7


def test_lists_end_and_say_how_many_are_left_out() -> None:
    fleet = fleet_of([record("a", *(entry(f"p{number}", verdict="degraded") for number in range(LISTED + 7)))],
                     [f"gone-{number}" for number in range(LISTED + 3)], NOW)
    assert (len(pod_table(fleet, False).rows), pod_table(fleet, False).left) == (LISTED, 7)
    assert len(pod_table(fleet, True).rows) == LISTED + 7
    sentences = list(remarks(fleet))
    assert len([line for line in sentences if line.startswith("gone-")]) == LISTED
    assert "… and 3 more like the last one" in sentences


def test_remarks_say_why() -> None:
    sentences = "\n".join(remarks(mixed()))
    for text in ("gone is missing: it has no NodePinning", "odd is unreadable: its NodePinning cannot be shown",
                 "old is stale: last observed 11m ago; it is due every 5m",
                 "away is not ready: the watcher does not report",
                 "COLLISION on CPU 4 of colliding: exclusive to sandbox-web"):
        assert text in sentences
    assert "11m from now: clocks differ" in "\n".join(remarks(fleet_of([record("a", age=-700)], [], NOW)))
    assert "which nodes should report is not known: x" in list(remarks(fleet_of([], [], NOW, unknown="x")))
    assert "missing nodes are not known: x" in list(remarks(fleet_of([], [], NOW, unchecked="x")))
    assert list(remarks(fleet_of([GOOD], ["good"], NOW))) == []


def test_an_object_that_was_cut_is_remarked_on() -> None:
    item = pinning("a", entry("x", verdict="degraded"), entry("y"))
    item["status"]["sandboxes"] = []
    item["status"]["cut"]["sandboxes"] = 2
    (sentence,) = remarks(fleet_of([record_of_pinning(item)], [], NOW))
    assert sentence == ("a: its NodePinning was cut to its size: 2 pods are not in it, and of 1 pod not in "
                    "place the threads are not known (vmpin verify on the node)")


def test_json_has_everything_of_every_node() -> None:
    text = "".join(document_parts(mixed()))
    document = json.loads(text)
    assert (document["version"], document["time"], document["unknown"]) == (1, "2027-01-15T08:00:00Z", None)
    assert document["states"]["missing"] == 1
    nodes = {listed["node"]: listed for listed in document["nodes"]}
    assert nodes["gone"] == {"node": "gone", "state": "missing", "why": "it has no NodePinning"}
    good = nodes["good"]
    assert (good["ageSeconds"], good["why"], good["pinned"], good["total"]) == (10, None, 2, 2)
    assert [listed["pod"] for listed in good["pods"]] == ["a", "b"]
    written = pinning("good", entry("a"))["status"]["sandboxes"][0]
    assert good["pods"][0] == written
    assert nodes["colliding"]["collisions"][0]["cpu"] == 4
    assert len(text.splitlines()) == 2 + len(nodes) - 1
    assert json.loads("".join(document_parts(fleet_of([], [], NOW))))["nodes"] == []


def test_json_of_verify_names_what_led_to_the_verdict() -> None:
    document = verify_document(mixed())
    assert document["ok"] is False
    assert [document[key] for key in ("missing", "unreadable", "stale", "notReady")] == [
        ["gone"], ["odd"], ["old"], ["away"]]
    assert document["misplaced"] == [{"node": "wrong", "namespace": "default", "pod": "d", "sandbox": "sandbox-d",
                                   "threads": 3}]
    assert document["collisions"][0]["node"] == "colliding"


def test_a_node_without_pods_is_well() -> None:
    assert fleet_of([record("a")], ["a"], NOW).nodes[0].health is NodeHealth.GOOD
    assert NodeRecord("x").hidden == 0
