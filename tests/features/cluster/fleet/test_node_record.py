"""A NodePinning that was read: all that a reporter wrote, bounded and harmless where another hand wrote it."""

from __future__ import annotations

from typing import Any

import pytest
from fleet_given import COLLISION, NOW, in_namespace, pinning, record
from hypothesis import given, settings
from hypothesis import strategies as st
from kube_given import entry

from vmpin.features.cluster.fleet.fleet_views import node_document, node_table, pod_table, remarks
from vmpin.features.cluster.fleet.node_record import (
    LARGEST,
    LONGEST_REFRESH,
    FleetNode,
    NodeHealth,
    fleet_of,
    record_of_pinning,
)


def test_all_that_a_reporter_writes_is_read() -> None:
    labels = {"topology.kubernetes.io/zone": "a", "vmpin.io/pool": "big", "other": "x"}
    node = record("node-1", entry("web", reasons=["why"]), labels=labels)
    assert node.unreadable == ""
    assert (node.name, node.observed, node.refresh, node.ready) == ("node-1", NOW - 10, 300, True)
    assert node.labels == {"topology.kubernetes.io/zone": "a", "vmpin.io/pool": "big"}
    assert node.cpus == {"online": "0-7", "shared": "0-1", "exclusive": "4-5", "housekeeping": ""}
    assert (node.pinned, node.total, node.degraded, node.hidden) == (1, 1, 0, 0)
    assert (node.layout.nodes, node.layout.caches) == ({0: "0-7"}, ("0-7",))
    (pod,) = node.pods
    assert (pod.title, pod.state, pod.mask, pod.good, pod.reason) == ("default/web", "Pinned", "0-1,4-5", True, "why")
    assert not pod.cut
    assert pod.vcpus == {0: "0-1", 1: "4", 2: "5"}
    assert [container.name for container in pod.containers] == ["main", "side"]


@pytest.mark.parametrize(("changes", "health"), [
    ({}, NodeHealth.GOOD), ({"age": 600}, NodeHealth.GOOD), ({"age": 601}, NodeHealth.STALE),
    ({"age": -600}, NodeHealth.GOOD), ({"age": -601}, NodeHealth.STALE), ({"reports": False}, NodeHealth.NOT_READY),
    ({"ready": False, "why": "NRI is away"}, NodeHealth.NOT_READY), ({"age": 601, "reports": False}, NodeHealth.STALE),
    ({"collisions": [COLLISION]}, NodeHealth.COLLISION)])
def test_a_node_is_what_its_object_and_the_time_say(changes: dict[str, Any], health: NodeHealth) -> None:
    assert record("node-1", entry("web"), **changes).health(NOW) is health


@pytest.mark.parametrize(("changes", "health", "good"), [
    ({"verdict": "degraded"}, NodeHealth.DEGRADED, False), ({"verdict": "waiting"}, NodeHealth.GOOD, False),
    ({"misplaced": 1}, NodeHealth.MISPLACED, False), ({"verdict": "degraded", "misplaced": 1}, NodeHealth.MISPLACED,
                                                     False),
    ({"verdict": "floating"}, NodeHealth.GOOD, True), ({"suspended": True}, NodeHealth.GOOD, False)])
def test_a_pod_that_needs_attention_is_kept_for_a_table(changes: dict[str, Any], health: NodeHealth,
                                                        good: bool) -> None:
    node = record("node-1", entry("web", **changes), entry("other"))
    kept = node.attention()
    assert node.health(NOW) is kept.health(NOW) is health
    assert [pod.pod for pod in kept.pods] == ([] if good else ["web"])
    assert (kept.pinned, kept.total) == (node.pinned, node.total)


def test_a_refresh_is_its_own_and_bounded() -> None:
    item = pinning("node-1", age=1000)
    assert record_of_pinning(item).health(NOW) is NodeHealth.STALE
    item["status"]["refreshSeconds"] = 500
    assert record_of_pinning(item).health(NOW) is NodeHealth.GOOD
    item["status"]["refreshSeconds"] = 2_000_000_000
    assert record_of_pinning(item).refresh == LONGEST_REFRESH


def test_a_namespace_has_its_own_counts_and_collisions() -> None:
    node = record("node-1", in_namespace("web", "shop"), in_namespace("db", "shop", verdict="degraded"),
                   in_namespace("x", "other", misplaced=2), collisions=[COLLISION])
    shop, other, none = (node.within(name) for name in ("shop", "other", "none"))
    assert node.within("") is node
    assert (shop.pinned, shop.total, shop.degraded, shop.collision_count) == (0, 2, 1, 1)
    assert (other.pinned, other.total, other.degraded, other.collision_count) == (0, 1, 1, 0)
    assert (none.pinned, none.total, none.health(NOW)) == (0, 0, NodeHealth.GOOD)
    assert other.health(NOW) is NodeHealth.MISPLACED


def test_a_collision_names_pods_and_not_ids() -> None:
    first, second = "a" * 64, "b" * 64
    node = record("node-1", entry("web", id=first), collisions=[
        {"cpu": 4, "sandboxes": [first, second],
         "what": f"exclusive to {first}, but 1 thread of {second} may run there"}])
    assert node.collisions[0].message == "exclusive to default/web, but 1 thread of bbbbbbbbbbbb may run there"


def test_what_was_cut_and_may_hide_a_finding_is_counted() -> None:
    item = pinning("node-1", entry("a", verdict="degraded"), entry("b", verdict="degraded"), entry("c"))
    assert record_of_pinning(item).hidden == 0
    del item["status"]["sandboxes"][2]  # c is in place
    assert record_of_pinning(item).hidden == 0
    del item["status"]["sandboxes"][1]
    assert record_of_pinning(item).hidden == 1
    for key in ("reasons", "misplaced"):
        del item["status"]["sandboxes"][0][key]
    assert record_of_pinning(item).hidden == 2


@pytest.mark.parametrize("change", [
    {"observedAt": "yesterday"}, {"observedAt": "2026-01-01T00:00:00"}, {"observedAt": "9999-12-31T23:59:59Z"},
    {"observedAt": 3}, {"sandboxes": {}}, {"sandboxes": [3]}, {"sandboxes": [{"sandbox": "a"}]}, {"collisions": [{}]},
    {"refreshSeconds": "x"}, {"total": -1}, {"cpus": [3]}, {"topology": {"nodes": {"x": "0"}}}])
def test_an_object_that_makes_no_sense_says_so(change: dict[str, Any]) -> None:
    item = pinning("node-1", entry("web"))
    item["status"] |= change
    node = record_of_pinning(item)
    assert node.name == "node-1"
    assert "this version cannot read it" in node.unreadable
    assert node.health(NOW) is NodeHealth.UNREADABLE


def test_an_object_that_is_too_large_says_so() -> None:
    item = pinning("node-1", entry("web"))
    item["status"]["sandboxes"] *= LARGEST // 400
    assert "larger than any reporter writes it" in record_of_pinning(item).unreadable


@pytest.mark.parametrize("item", [None, {}, {"metadata": {}}, [], {"metadata": None}])
def test_what_is_no_object_is_none(item: Any) -> None:
    assert record_of_pinning(item).unreadable


ODD = "\x1b]0;owned\x07\n\u202e\x9b31m" + "x" * 900


def test_texts_of_another_hand_are_harmless_and_short() -> None:
    item = pinning("node-1", entry("web"))
    for part in (item["status"], item["status"]["sandboxes"][0]):
        for key, value in part.items():
            if isinstance(value, str) and key != "observedAt":
                part[key] = ODD
    item["status"] |= {"collisions": [{"cpu": 1, "sandboxes": [ODD], "message": ODD}], "ready": False}
    item["status"]["sandboxes"][0] |= {"reasons": [ODD], "vcpus": {"0": ODD}, "containers": [{"name": ODD}]}
    node = record_of_pinning(item)
    fleet = fleet_of([node], [], NOW)
    shown = [str(cell) for table in (node_table(fleet, True), pod_table(fleet, True)) for row in table.rows
             for cell in row] + list(remarks(fleet))
    assert len(shown) > 10
    assert all(text.isprintable() and len(text) < 1300 for text in shown)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6)
PATHS = st.lists(st.sampled_from(["status", "sandboxes", "collisions", "topology", "cpus", "cut", "guest", "vcpus",
                                  "containers", "reasons", "observedAt", "refreshSeconds", "total", "misplaced", "0",
                                  "nodes", "caches", "labels", "metadata"]), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(PATHS, JSON)
def test_no_value_anywhere_is_a_failure(path: list[str], value: Any) -> None:
    item: Any = pinning("node-1", entry("web"), collisions=[COLLISION])
    at: Any = item
    for key in path[:-1]:
        inner = at[int(key)] if isinstance(at, list) and key == "0" else at.get(key) if isinstance(at, dict) else None
        if not isinstance(inner, dict | list) or not inner:
            break
        at = inner
    if isinstance(at, dict):
        at[path[-1]] = value
    else:
        at[0] = value
    changed = record_of_pinning(item)
    node = FleetNode(changed, changed.health(NOW))
    assert node_document(node, NOW)["node"]
    assert list(pod_table(fleet_of([changed], [], NOW), True).rows) or not changed.pods
