"""NodePinnings as the API server has them, of nodes whose watchers reported what kube_given makes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kube_given import NODE, entry, reported

from vmpin.features.cluster.fleet.node_record import Fleet, NodeRecord, fleet_of, record_of_pinning
from vmpin.features.cluster.kube.node_pinning import node_pinning, pinning_update

NOW = 1_800_000_000.0


def pinning(name: str, *entries: Mapping[str, Any], age: float = 10.0, reports: bool = True,
            labels: Mapping[str, str] | None = None, **node: Any) -> dict[str, Any]:
    """As its reporter wrote it, `age` seconds before NOW."""
    written = node_pinning(NODE._replace(name=name, labels=labels or {}), reported(*entries, **node), reports)
    item: dict[str, Any] = json.loads(json.dumps(pinning_update(written, NOW - age).body))
    return item


def record(name: str, *entries: Mapping[str, Any], **changes: Any) -> NodeRecord:
    return record_of_pinning(pinning(name, *entries, **changes))


def in_namespace(name: str, namespace: str, **changes: Any) -> dict[str, Any]:
    return entry(name, pod={"namespace": namespace, "name": name, "uid": f"uid-{name}"}, **changes)


COLLISION = {"cpu": 4, "sandboxes": ["sandbox-web"], "what": "exclusive to sandbox-web, but others may run there"}


def mixed() -> Fleet:
    """A node in each state."""
    return fleet_of([
        record("good", entry("a"), entry("b", verdict="floating")),
        record("degraded", entry("c", verdict="degraded", reasons=["2 vCPUs"])),
        record("wrong", entry("d", misplaced=3)),
        record("colliding", entry("web"), collisions=[COLLISION]),
        record("away", entry("e"), reports=False),
        record("old", entry("f"), age=700),
        record_of_pinning({"metadata": {"name": "odd"}, "status": {"sandboxes": 3}})], ["good", "gone"], NOW)
