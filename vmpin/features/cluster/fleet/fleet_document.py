"""The nodes of a cluster as JSON, with the member names of NodePinning: `-o json` of status, map and verify.

`version` is 1 as long as members are only added."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vmpin.features.cluster.fleet.fleet_tables import why
from vmpin.features.cluster.fleet.node_fleet import Fleet, FleetNode
from vmpin.features.cluster.fleet.node_record import NodeHealth, PodDetails, PodLine
from vmpin.features.cluster.kube.pod_condition import PinState, timestamp

VERSION = 1


def document_parts(fleet: Fleet) -> Iterator[str]:
    """The document as JSON in parts, a node a line: all of a large cluster at once would take the memory twice."""
    head = {"version": VERSION, "time": timestamp(fleet.time), "unknown": fleet.unknown or fleet.unchecked or None,
            "states": {health.value: count for health, count in fleet.counts.items()}}
    yield f"{json.dumps(head)[:-1]}, \"nodes\": ["
    for place, node in enumerate(fleet.nodes):
        yield f"{',' * bool(place)}\n{json.dumps(node_document(node, fleet.time))}"
    yield "]}\n"


def node_document(node: FleetNode, now: float) -> dict[str, Any]:
    record = node.record
    document: dict[str, Any] = {"node": record.name, "state": node.health.value,
                            "why": None if node.health.current else why(node, now)}
    if node.health in (NodeHealth.MISSING, NodeHealth.UNREADABLE):
        return document
    return {**document, "ready": record.ready, "message": record.message, "version": record.version,
            "trouble": record.trouble, "labels": dict(record.labels), "observedAt": timestamp(record.observed),
            "ageSeconds": int(record.age(now)), "refreshSeconds": record.refresh, "cpus": dict(record.cpus),
            "topology": {"nodes": {str(key): text for key, text in record.layout.nodes.items()},
                         "caches": list(record.layout.caches), "isolated": record.layout.isolated},
            "pinned": record.pinned, "total": record.total, "degraded": record.degraded, "hidden": record.hidden,
            "collisionCount": record.collision_count,
            "collisions": [{"cpu": collision.cpu, "message": collision.what} for collision in record.collisions],
            "pods": [_pod(pod) for pod in record.pods], "cut": dict(record.cut)}


def _pod(pod: PodLine) -> dict[str, Any]:
    return {"namespace": pod.namespace, "pod": pod.pod, "uid": pod.uid, "sandbox": pod.sandbox, "state": pod.state,
            "verdict": pod.verdict, "mask": pod.mask, **({} if pod.details is None else _details(pod.details))}


def _details(details: PodDetails) -> dict[str, Any]:
    return {"handler": details.handler, "reasons": list(details.reasons), "misplaced": details.misplaced,
            "vcpus": {str(vcpu): mask for vcpu, mask in details.vcpus.items()},
            "guest": {"agent": details.agent, "state": details.guest},
            "containers": [container._asdict() for container in details.containers], "putBack": details.put_back}


def verify_document(fleet: Fleet) -> dict[str, Any]:
    """The verdict with all that led to it."""
    pods = [(node.record.name, pod) for node in fleet.nodes for pod in node.record.pods]
    names = {health: [node.record.name for node in fleet.nodes if node.health is health] for health in NodeHealth}
    return {"version": VERSION, "ok": fleet.verdict == 0, "time": timestamp(fleet.time), "nodes": len(fleet.nodes),
            "pods": sum(node.record.total for node in fleet.nodes),
            "misplaced": [_named(node, pod, threads=pod.misplaced) for node, pod in pods if pod.misplaced],
            "collisions": [{"node": node.record.name, "cpu": collision.cpu, "message": collision.what}
                           for node in fleet.nodes for collision in node.record.collisions],
            "unmanaged": [_named(node, pod) for node, pod in pods if pod.state == PinState.UNMANAGED],
            "missing": names[NodeHealth.MISSING], "unreadable": names[NodeHealth.UNREADABLE],
            "stale": names[NodeHealth.STALE], "notReady": names[NodeHealth.NOT_READY],
            "hidden": [node.record.name for node in fleet.nodes if node.record.hidden],
            "unknown": fleet.unknown or fleet.unchecked or None}


def _named(node: str, pod: PodLine, **more: int) -> dict[str, Any]:
    return {"node": node, "namespace": pod.namespace, "pod": pod.pod, "sandbox": pod.sandbox, **more}
