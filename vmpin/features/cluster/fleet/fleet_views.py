"""The nodes of a cluster for their readers: tables and remarks (`vmpin status`, `vmpin verify`), and JSON with the
member names of NodePinning (`-o json` of status, map and verify)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from vmpin.domain.terminal import human_age, number_of, printable
from vmpin.features.cluster.fleet.node_record import Fleet, FleetNode, NodeHealth, PodLine
from vmpin.features.cluster.kube.identifiers import POOLS, REGION, ZONE
from vmpin.features.cluster.kube.pod_pinning import PinState, backed_cpus, timestamp
from vmpin.named_tuple import NamedTuple

#: The version of the documents: 1 as long as members are only added.
VERSION = 1
#: The most pods, and remarks of a kind, that are shown: a large cluster would fill many screens.
LISTED = 100
STYLES = {NodeHealth.MISSING: "red", NodeHealth.UNREADABLE: "red", NodeHealth.STALE: "red",
          NodeHealth.NOT_READY: "yellow", NodeHealth.COLLISION: "red", NodeHealth.MISPLACED: "red",
          NodeHealth.DEGRADED: "yellow", NodeHealth.GOOD: "green", "Pinned": "green", "NoExclusiveCPUs": "cyan"}
_REPORTERS = "vmpin's pods there: kubectl get pods -A -o wide -l app.kubernetes.io/name=vmpin"


class TextTable(NamedTuple):
    """`left` is the number of rows that were left out."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    left: int = 0


def overview(fleet: Fleet) -> str:
    nodes = ", ".join(f"{count} {health}" for health, count in fleet.counts.items())
    pinned, total = (sum(getattr(node.record, key) for node in fleet.nodes) for key in ("pinned", "total"))
    many = number_of(len(fleet.nodes), "node")
    pods = f"{pinned} of {number_of(total, 'pod')} in VMs {'is' if total == 1 else 'are'} in place"
    return f"{many}{': ' * bool(nodes)}{nodes}; {pods}"


def node_table(fleet: Fleet, wide: bool) -> TextTable:
    columns = ["NODE", "ZONE", "STATE", "PINNED", "DEGRADED", "COLLISIONS", "SHARED", "EXCLUSIVE", "OBSERVED",
               *(("REGION", "POOL", "VERSION") if wide else ())]
    return TextTable(columns, [_node_row(node, fleet.time, wide) for node in fleet.nodes])


def _node_row(node: FleetNode, now: float, wide: bool) -> list[object]:
    record = node.record
    read = node.health not in (NodeHealth.MISSING, NodeHealth.UNREADABLE)
    cells: list[object] = [f"{record.pinned}/{record.total}", record.degraded, record.collision_count,
                           record.cpus.get("shared") or "none", record.cpus.get("exclusive") or "none",
                           human_age(record.age(now))] if read else ["-"] * 6
    pool = next((record.labels[key] for key in POOLS if key in record.labels), "-")
    more = (record.labels.get(REGION, "-"), pool, record.version or "-") if wide else ()
    return [record.name, record.labels.get(ZONE, "-"), node.health.value, *cells, *more]


def pod_table(fleet: Fleet, wide: bool) -> TextTable:
    """The pods that need attention; with `wide` all, with more columns."""
    pods = [(node.record.name, pod) for node in fleet.nodes for pod in node.record.pods if wide or not pod.good]
    if wide:
        return TextTable(["NODE", "POD", "STATE", "MASK", "VCPUS", "GUEST", "REASON"], [
            [node, pod.title, pod.state, pod.mask or "-", *_inside(pod), pod.reason or "-"] for node, pod in pods])
    return TextTable(["NODE", "POD", "STATE", "REASON"], [
        [node, pod.title, pod.state, pod.reason or "-"] for node, pod in pods[:LISTED]], max(0, len(pods) - LISTED))


def misplaced_table(fleet: Fleet) -> TextTable:
    pods = [(node.record.name, pod) for node in fleet.nodes for pod in node.record.pods if pod.misplaced]
    return TextTable(["NODE", "POD", "STATE", "MASK", "THREADS MISPLACED"], [
        [node, pod.title, pod.state, pod.mask or "-", pod.misplaced] for node, pod in pods[:LISTED]],
        max(0, len(pods) - LISTED))


def _inside(pod: PodLine) -> tuple[str, str]:
    """How many vCPUs have a CPU of their own; the state of the guest."""
    if pod.cut:
        return "-", "-"
    alone = backed_cpus(pod.vcpus.values(), pod.containers)
    return f"{len(alone)}/{len(pod.vcpus)} 1:1", ": ".join(filter(None, (pod.agent, pod.guest))) or "-"


def remarks(fleet: Fleet) -> Iterator[str]:
    """Sentences about what needs attention, LISTED at most of a kind."""
    yield from _limited([f"{node.record.name} is {node.health}: {why(node, fleet.time)}" for node in fleet.nodes
                         if not node.health.current])
    if any(not node.health.current for node in fleet.nodes):
        yield _REPORTERS
    yield from _limited([f"COLLISION on CPU {collision.cpu} of {node.record.name}: {collision.message}"
                         for node in fleet.nodes for collision in node.record.collisions])
    yield from _limited([f"{node.record.name}: its NodePinning was cut to its size: {_cut(node)}"
                         for node in fleet.nodes if node.record.hidden or node.record.cut.get("sandboxes")])
    yield from _limited([f"{node.record.name}: the kubelet's checkpoint cannot be used: {node.record.trouble}"
                         for node in fleet.nodes if node.record.trouble])
    if fleet.unknown:
        yield printable(f"which nodes should report is not known: {fleet.unknown}")
    elif fleet.unchecked:
        yield f"missing nodes are not known: {fleet.unchecked}"


def _cut(node: FleetNode) -> str:
    pods, hidden = node.record.cut.get("sandboxes", 0), node.record.hidden
    unknown = [f"of {number_of(hidden, 'pod')} not in place the threads are not known (vmpin verify on the node)"]
    return ", and ".join([*[f"{number_of(pods, 'pod is')} not in it"] * bool(pods), *unknown * bool(hidden)])


def _limited(lines: Sequence[str]) -> Iterator[str]:
    yield from map(printable, islice(lines, LISTED))
    if len(lines) > LISTED:
        yield f"… and {len(lines) - LISTED} more like the last one"


def why(node: FleetNode, now: float) -> str:
    """Why a node's present state is unknown."""
    record = node.record
    if node.health is NodeHealth.MISSING:
        return "it has no NodePinning"
    if node.health is NodeHealth.UNREADABLE:
        return f"its NodePinning cannot be shown: {record.unreadable}"
    if node.health is NodeHealth.NOT_READY:
        return record.message or "its watcher is not ready"
    age = record.age(now)
    when = f"{human_age(age)} ago" if age >= 0 else f"{human_age(-age)} from now: clocks differ"
    return f"last observed {when}; it is due every {human_age(record.refresh)}"


def findings(fleet: Fleet) -> Iterator[str]:
    """Yield the sentences that `vmpin verify` ends with."""
    pods = sum(node.record.total for node in fleet.nodes)
    current = sum(node.judged for node in fleet.nodes)
    wrong = [pod for node in fleet.nodes for pod in node.record.pods if pod.misplaced]
    unmanaged = sum(pod.state == PinState.UNMANAGED for node in fleet.nodes for pod in node.record.pods)
    if unmanaged:
        yield (f"{number_of(unmanaged, 'pod is')} unmanaged: their threads keep their masks (on the node: `vmpin "
               "status POD --explain`)")
    if not fleet.nodes:
        yield "no node has a NodePinning: nothing was compared"
        return
    if current < len(fleet.nodes):
        yield f"{len(fleet.nodes) - current} of {number_of(len(fleet.nodes), 'node')} cannot be judged"
    if wrong:
        threads = sum(pod.misplaced for pod in wrong)
        many = f"{number_of(threads, 'thread')} of {number_of(len(wrong), 'pod')}"
        yield f"{many} {'is' if threads == 1 else 'are'} misplaced"
    elif fleet.verdict == 0:
        where = number_of(len(fleet.nodes), "node")
        yield f"all threads of {number_of(pods, 'pod')} in VMs on {where} are on their CPUs"


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
            "collisions": [{"cpu": collision.cpu, "message": collision.message} for collision in record.collisions],
            "pods": [_pod(pod) for pod in record.pods], "cut": dict(record.cut)}


def _pod(pod: PodLine) -> dict[str, Any]:
    line = {"namespace": pod.namespace, "pod": pod.pod, "uid": pod.uid, "sandbox": pod.sandbox, "state": pod.state,
            "verdict": pod.verdict, "mask": pod.mask}
    return line if pod.cut else {
        **line, "handler": pod.handler, "reasons": list(pod.reasons), "misplaced": pod.misplaced,
        "vcpus": {str(vcpu): mask for vcpu, mask in pod.vcpus.items()},
        "guest": {"agent": pod.agent, "state": pod.guest},
        "containers": [container._asdict() for container in pod.containers], "putBack": pod.put_back}


def verify_document(fleet: Fleet) -> dict[str, Any]:
    """The verdict of `vmpin verify` with its evidence."""
    pods = [(node.record.name, pod) for node in fleet.nodes for pod in node.record.pods]
    names = {health: [node.record.name for node in fleet.nodes if node.health is health] for health in NodeHealth}
    return {"version": VERSION, "ok": fleet.verdict == 0, "time": timestamp(fleet.time), "nodes": len(fleet.nodes),
            "pods": sum(node.record.total for node in fleet.nodes),
            "misplaced": [_named(node, pod, threads=pod.misplaced) for node, pod in pods if pod.misplaced],
            "collisions": [{"node": node.record.name, "cpu": collision.cpu, "message": collision.message}
                           for node in fleet.nodes for collision in node.record.collisions],
            "unmanaged": [_named(node, pod) for node, pod in pods if pod.state == PinState.UNMANAGED],
            "missing": names[NodeHealth.MISSING], "unreadable": names[NodeHealth.UNREADABLE],
            "stale": names[NodeHealth.STALE], "notReady": names[NodeHealth.NOT_READY],
            "hidden": [node.record.name for node in fleet.nodes if node.record.hidden],
            "unknown": fleet.unknown or fleet.unchecked or None}


def _named(node: str, pod: PodLine, **more: int) -> dict[str, Any]:
    return {"node": node, "namespace": pod.namespace, "pod": pod.pod, "sandbox": pod.sandbox, **more}
