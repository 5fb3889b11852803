"""NodePinning: all of it where that is small, never larger than allowed, and valid by its own schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kube_given import NODE, entry, node_part, reported

from vmpin.features.cluster.kube.identifiers import API_VERSION
from vmpin.features.cluster.kube.node_pinning import MAX_SIZE, node_pinning, pinning_update, pinning_withdrawal
from vmpin.features.cluster.kube.reported_node import NOTHING, ReportedNode
from vmpin.install import data_files

CRD = yaml.safe_load(data_files.path("config/helm/vmpin/crds/nodepinnings.yaml").read_text())
(VERSION,) = CRD["spec"]["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]


def check(value: Any, schema: dict[str, Any], where: str = "status") -> None:
    """As the API server checks it, and no member that it would drop."""
    kinds: dict[str, type[Any]] = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    assert isinstance(value, kinds[schema["type"]]), where
    if schema["type"] == "object":
        assert set(schema.get("required", ())) <= value.keys(), where
        for key, member in value.items():
            inner = schema.get("additionalProperties") or schema.get("properties", {}).get(key)
            assert inner is not None, f"{where}.{key} is not in the schema"
            check(member, inner, f"{where}.{key}")
    elif schema["type"] == "array":
        assert len(value) <= schema["maxItems"], where
        for number, member in enumerate(value):
            check(member, schema["items"], f"{where}[{number}]")
    elif schema["type"] == "string" and "maxLength" in schema:
        assert len(value) <= schema["maxLength"], where
    elif schema["type"] == "integer":
        assert value >= schema.get("minimum", value), where


def sent(report: ReportedNode, reports: bool = True) -> Any:
    body: Any = pinning_update(node_pinning(NODE, report, reports, topology="own zones"), report.time).body
    return body


def test_all_of_a_small_node_is_in_it() -> None:
    collision = {"cpu": 4, "sandboxes": ["sandbox-web", "sandbox-x"], "what": "exclusive to both"}
    pinning = sent(reported(entry("web"), entry("idle", verdict="floating"), entry("bad", verdict="degraded"),
                          collisions=[collision]))
    check(pinning["status"], SCHEMA)
    status = pinning["status"]
    assert (pinning["apiVersion"], pinning["kind"]) == (API_VERSION, "NodePinning")
    assert [sandbox["pod"] for sandbox in status["sandboxes"]] == ["bad", "idle", "web"]
    assert {sandbox["pod"]: sandbox["state"] for sandbox in status["sandboxes"]} == {
        "bad": "PinningDegraded", "idle": "NoExclusiveCPUs", "web": "CPUCollision"}
    assert (status["summary"], status["degraded"], status["collisionCount"]) == ("1/3", 1, 1)
    assert status["cut"] == {"sandboxes": 0, "details": 0, "collisions": 0}
    assert status["observedAt"] == "1970-01-01T00:16:40Z"
    assert status["sandboxes"][2]["vcpus"] == {"0": "0-1", "1": "4", "2": "5"}
    assert status["sandboxes"][2]["guest"] == {"agent": "vmpin-agent", "state": "connected"}


def test_every_member_of_the_schema_is_written() -> None:
    """So neither is there a column without contents."""
    pinning = sent(reported(entry("web"), collisions=[{"cpu": 4, "sandboxes": ["a"], "what": "b"}]))

    def members(schema: dict[str, Any]) -> set[str]:
        inner = schema.get("items", schema)
        return {name for key, member in inner.get("properties", {}).items() for name in (key, *members(member))}

    def written(value: Any) -> set[str]:
        if isinstance(value, list):
            return {name for member in value for name in written(member)}
        if not isinstance(value, dict):
            return set()
        return {name for key, member in value.items() for name in (key, *written(member))}

    assert members(SCHEMA) - written(pinning["status"]) == set()
    for column in VERSION["additionalPrinterColumns"]:
        value: Any = pinning
        for key in column["jsonPath"].strip(".").split("."):
            value = value[key]


def test_it_is_the_nodes_and_has_the_nodes_place() -> None:
    labels = {"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r", "kubernetes.io/hostname": "n",
              "eks.amazonaws.com/nodegroup": "big"}
    meta = node_pinning(NODE._replace(labels=labels), reported(), True)["metadata"]
    assert meta == {"name": "node-a", "labels": {
        "topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "r", "eks.amazonaws.com/nodegroup": "big",
        "vmpin.io/ready": "true"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-uid"}]}


def test_without_a_watcher_it_says_so() -> None:
    pinning = sent(reported(entry()), reports=False)
    assert (pinning["status"]["ready"], pinning["status"]["message"]) == (
        False, "the watcher does not report: this is what it reported last")
    assert pinning["metadata"]["labels"]["vmpin.io/ready"] == "false"


def test_the_same_report_makes_the_same_object_whatever_the_time() -> None:
    first, second = reported(entry("a"), entry("b"), time=1.0), reported(entry("b"), entry("a"), time=2.0)
    assert node_pinning(NODE, first, True) == node_pinning(NODE, second, True)


TEXTS = st.text(max_size=600)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["pinned", "floating", "degraded", "waiting"]), TEXTS, st.integers(0, 60)),
                max_size=80, unique_by=lambda pod: pod[1]),
       st.integers(0, 300), TEXTS, st.integers(100_000, MAX_SIZE))
def test_it_is_never_larger_than_allowed_and_counts_what_was_cut(
        given_: list[tuple[str, str, int]], collisions: int, text: str, most: int) -> None:
    entries = [entry(str(number), verdict=verdict, reasons=[name] * 16,
                     vcpus={str(vcpu): "0-1" for vcpu in range(vcpus)})
               for number, (verdict, name, vcpus) in enumerate(given_)]
    report = reported(*entries, why=text, trouble=text, version=text,
                     collisions=[{"cpu": cpu, "sandboxes": [text] * 9, "what": text} for cpu in range(collisions)])
    pinning = node_pinning(NODE, report, True, most)
    body: Any = pinning_update(pinning, report.time).body
    assert len(json.dumps(body, separators=(",", ":"))) <= most
    check(body["status"], SCHEMA)
    status = pinning["status"]
    assert len(status["sandboxes"]) + status["cut"]["sandboxes"] == len(entries)
    detailed = [sandbox for sandbox in status["sandboxes"] if "reasons" in sandbox]
    assert len(detailed) + status["cut"]["details"] == len(status["sandboxes"])
    assert len(status["collisions"]) + status["cut"]["collisions"] == min(collisions, 256)
    assert node_pinning(NODE, report, True, most) == pinning


def test_what_is_well_is_cut_first() -> None:
    many = [entry(f"good-{number:04}", reasons=["x" * 500] * 16) for number in range(900)]
    bad = [entry(f"bad-{number}", verdict="degraded", reasons=["y" * 500] * 4) for number in range(5)]
    status = node_pinning(NODE, reported(*many, *bad), True)["status"]
    assert status["cut"]["details"] > 0
    kept = {sandbox["pod"]: "reasons" in sandbox for sandbox in status["sandboxes"]}
    assert all(kept[f"bad-{number}"] for number in range(5))
    assert len(kept) + status["cut"]["sandboxes"] == 905


def test_a_node_without_a_valid_topology_is_shown_without() -> None:
    report = NOTHING.after(json.dumps({"version": 1, "follow": "all", "time": 1.0, "gone": [], "sandboxes": [],
                                      "node": node_part(topology={"nodes": 3, "caches": "x", "cores": "y"})}).encode())
    check(sent(report)["status"], SCHEMA)


@pytest.mark.parametrize("name", ["", "../secrets", "a/b", "A", "a?x"])
def test_no_name_leads_to_another_path(name: str) -> None:
    if not name:
        assert pinning_withdrawal("a").path == "/apis/vmpin.io/v1alpha1/nodepinnings/a"
        return
    with pytest.raises(ValueError, match="is no name"):
        pinning_withdrawal(name)
