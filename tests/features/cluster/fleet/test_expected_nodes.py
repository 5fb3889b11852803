"""Which nodes a DaemonSet's pods come to, as its controller decides it."""

from __future__ import annotations

from typing import Any

import pytest

from vmpin.features.cluster.fleet.expected_nodes import placement_of


def daemon_set(**spec: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": spec}}}


def node(*taints: dict[str, str], **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "node-1", "labels": labels}, "spec": {"taints": list(taints)}}


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


TAINT = {"key": "a", "value": "b", "effect": "NoSchedule"}


@pytest.mark.parametrize(("spec", "found", "chosen"), [
    ({}, node(), True),
    ({"nodeSelector": {"kata": "true"}}, node(kata="true"), True),
    ({"nodeSelector": {"kata": "true"}}, node(kata="false"), False),
    ({"nodeSelector": {"kata": "true", "x": "y"}}, node(kata="true"), False),
    ({}, node(TAINT), False),
    ({}, node({**TAINT, "effect": "PreferNoSchedule"}), True),
    ({}, node({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}), True),
    ({}, node({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}), True),
    ({"tolerations": [{"operator": "Exists"}]}, node(TAINT), True),
    ({"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute"}]}, node(TAINT), False),
    ({"tolerations": [{"key": "a", "value": "b"}]}, node(TAINT), True),
    ({"tolerations": [{"key": "a", "value": "c"}]}, node(TAINT), False),
    ({"tolerations": [{"key": "c", "operator": "Exists"}]}, node(TAINT), False),
    ({"tolerations": [{"key": "a", "operator": "Exists"}]}, node(TAINT, {"key": "c", "effect": "NoExecute"}), False),
    ({"affinity": affinity(expression("x", "In", "1", "2"))}, node(x="2"), True),
    ({"affinity": affinity(expression("x", "In", "1", "2"))}, node(), False),
    ({"affinity": affinity(expression("x", "NotIn", "1"))}, node(), True),
    ({"affinity": affinity(expression("x", "Exists"))}, node(), False),
    ({"affinity": affinity(expression("x", "DoesNotExist"))}, node(), True),
    ({"affinity": affinity(expression("x", "Gt", "4"))}, node(x="5"), True),
    ({"affinity": affinity(expression("x", "Lt", "4"))}, node(x="5"), False),
    ({"affinity": affinity(expression("x", "Gt", "4"))}, node(x="many"), False),
    ({"affinity": affinity(expression("x", "Exists"), expression("y", "Exists"))}, node(y=""), True),
    ({"affinity": affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]})},
     node(), True),
    ({"affinity": affinity({})}, node(), False),
    ({"affinity": affinity()}, node(), False),
    ({"affinity": affinity(expression("x", "Near", "4"))}, node(x="5"), False),
    ({}, {}, False)])
def test_a_node_is_chosen_or_not(spec: dict[str, Any], found: dict[str, Any], chosen: bool) -> None:
    assert placement_of(daemon_set(**spec)).chooses(found) is chosen


def test_its_node_selector_is_one_of_the_api_server() -> None:
    assert placement_of(daemon_set(nodeSelector={"b/c": "true", "a": ""})).selector == "a=,b/c=true"


@pytest.mark.parametrize("item", [{}, {"spec": 3}, {"spec": {"template": {"spec": {"nodeSelector": 3}}}}])
def test_what_is_no_daemon_set_is_refused(item: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is no DaemonSet"):
        placement_of(item)
