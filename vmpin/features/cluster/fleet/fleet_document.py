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
    for place, each in enumerate(fleet.nodes):
        yield f"{',' * bool(place)}\n{json.dumps(node_document(each, fleet.time))}"
    yield "]}\n"


def node_document(node: FleetNode, now: float) -> dict[str, Any]:
    found = node.record
    made: dict[str, Any] = {"node": found.name, "state": node.health.value,
                            "why": None if node.health.current else why(node, now)}
    if node.health in (NodeHealth.MISSING, NodeHealth.UNREADABLE):
        return made
    return {**made, "ready": found.ready, "message": found.message, "version": found.version,
            "trouble": found.trouble, "labels": dict(found.labels), "observedAt": timestamp(found.observed),
            "ageSeconds": int(found.age(now)), "refreshSeconds": found.refresh, "cpus": dict(found.cpus),
            "topology": {"nodes": {str(key): text for key, text in found.layout.nodes.items()},
                         "caches": list(found.layout.caches), "isolated": found.layout.isolated},
            "pinned": found.pinned, "total": found.total, "degraded": found.degraded, "hidden": found.hidden,
            "collisionCount": found.collision_count,
            "collisions": [{"cpu": each.cpu, "message": each.what} for each in found.collisions],
            "pods": [_pod(each) for each in found.pods], "cut": dict(found.cut)}


def _pod(pod: PodLine) -> dict[str, Any]:
    return {"namespace": pod.namespace, "pod": pod.pod, "uid": pod.uid, "sandbox": pod.sandbox, "state": pod.state,
            "verdict": pod.verdict, "mask": pod.mask, **({} if pod.details is None else _details(pod.details))}


def _details(found: PodDetails) -> dict[str, Any]:
    return {"handler": found.handler, "reasons": list(found.reasons), "misplaced": found.misplaced,
            "vcpus": {str(vcpu): mask for vcpu, mask in found.vcpus.items()},
            "guest": {"agent": found.agent, "state": found.guest},
            "containers": [each._asdict() for each in found.containers], "putBack": found.put_back}


def verify_document(fleet: Fleet) -> dict[str, Any]:
    """The verdict with all that led to it."""
    pods = [(each.record.name, pod) for each in fleet.nodes for pod in each.record.pods]
    names = {health: [each.record.name for each in fleet.nodes if each.health is health] for health in NodeHealth}
    return {"version": VERSION, "ok": fleet.verdict == 0, "time": timestamp(fleet.time), "nodes": len(fleet.nodes),
            "pods": sum(each.record.total for each in fleet.nodes),
            "misplaced": [_named(node, pod, threads=pod.misplaced) for node, pod in pods if pod.misplaced],
            "collisions": [{"node": each.record.name, "cpu": collision.cpu, "message": collision.what}
                           for each in fleet.nodes for collision in each.record.collisions],
            "unmanaged": [_named(node, pod) for node, pod in pods if pod.state == PinState.UNMANAGED],
            "missing": names[NodeHealth.MISSING], "unreadable": names[NodeHealth.UNREADABLE],
            "stale": names[NodeHealth.STALE], "notReady": names[NodeHealth.NOT_READY],
            "hidden": [each.record.name for each in fleet.nodes if each.record.hidden],
            "unknown": fleet.unknown or fleet.unchecked or None}


def _named(node: str, pod: PodLine, **more: int) -> dict[str, Any]:
    return {"node": node, "namespace": pod.namespace, "pod": pod.pod, "sandbox": pod.sandbox, **more}
