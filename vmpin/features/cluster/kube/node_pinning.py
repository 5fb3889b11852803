"""The NodePinning object: all that a node's watcher reports, for `kubectl get nodepinnings` and all nodes at a glance.

Cut to a size, as etcd takes 1.5 MiB and every reader lists all nodes: first the details of sandboxes that are well go,
then their lines, then those of others; what was cut is counted in it. The schema is config/helm/vmpin/crds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from vmpin.features.cluster.kube.api_request import ApiRequest, apply, checked
from vmpin.features.cluster.kube.cluster_node import ClusterNode
from vmpin.features.cluster.kube.identifiers import API_VERSION, GROUP, KIND, PLURAL, label_value
from vmpin.features.cluster.kube.pod_pinning import PinState, pinning_of, timestamp
from vmpin.features.cluster.kube.reported_node import CpuCollision, ReportedNode, SandboxPinning

#: Bytes of the whole object as JSON.
MAX_SIZE = 256 * 1024
#: Characters of a text, and entries of a list, in the node's own part.
_TEXT, _COLLISIONS, _CACHES, _NODES = 512, 64, 256, 128
#: How often it is written at least (seconds): an object that is older than twice this is stale.
REFRESH = 300


def pinning_path(node: str = "") -> str:
    path = f"/apis/{API_VERSION}/{PLURAL}"
    return f"{path}/{checked(node)}" if node else path


def node_pinning(node: ClusterNode, reported: ReportedNode, reporting: bool, most: int = MAX_SIZE,
                 topology: str = "") -> dict[str, Any]:
    """The object, without `observedAt` (see `pinning_update`): equal for equal contents.
    :param reporting: whether the watcher reports now; else `reported` is its last report.
    :param topology: `TopologyAgenda.note`; "" where NodeResourceTopology is off.
    :param most: bytes as JSON, at least 64 kB, which the node's own part never needs."""
    part = reported.node
    pinnings = {sandbox.id: pinning_of(sandbox, part.collisions) for sandbox in reported.sandboxes.values()}
    verdicts = Counter(pinned.state for pinned in pinnings.values())
    good = sum(count for state, count in verdicts.items() if state.good)
    collisions = [_collision(collision) for collision in part.collisions[:_COLLISIONS]]
    while size_of(collisions) > most // 4:
        del collisions[len(collisions) // 2:]
    status: dict[str, Any] = {
        "ready": reporting and part.ready,
        "message": _short(part.why if reporting else "the watcher does not report: this is what it reported last"),
        "version": _short(part.version), "refreshSeconds": REFRESH,
        "cpus": {key: _short(text, 4096) for key, text in (
            ("online", part.online), ("shared", part.shared_pool), ("exclusive", part.exclusive),
            ("housekeeping", part.housekeeping))},
        "topology": _topology(part.topology), "trouble": _short(part.trouble),
        **({"nodeResourceTopology": _short(topology)} if topology else {}),
        "pinned": good, "total": len(pinnings), "summary": f"{good}/{len(pinnings)}",
        "degraded": verdicts[PinState.DEGRADED],
        "collisionCount": len(part.collisions),
        "collisions": collisions, "sandboxes": [],
        "cut": {"sandboxes": 0, "details": 0, "collisions": len(part.collisions) - len(collisions)}}
    pinning = {"apiVersion": API_VERSION, "kind": KIND,
            "metadata": {"name": node.name, "labels": {
                **{key: value for key, value in node.places.items() if label_value(value) == value},
                f"{GROUP}/ready": "true" if status["ready"] else "false"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}]},
            "status": status}
    # 64: the numbers of `cut`, and the time, take some more digits.
    states = {sandbox: pinned.state for sandbox, pinned in pinnings.items()}
    by_need = sorted(reported.sandboxes.values(),
                     key=lambda sandbox: (states[sandbox.id].good, sandbox.pod, sandbox.id))
    _fill(status, by_need, states, most - size_of(pinning) - 64)
    return pinning


def pinning_update(pinning: Mapping[str, Any], time: float) -> ApiRequest:
    """The apply of an object. :param time: when its contents were observed (CLOCK_REALTIME, seconds)."""
    status = {**pinning["status"], "observedAt": timestamp(time)}
    return apply(pinning_path(pinning["metadata"]["name"]), {**pinning, "status": status})


def pinning_withdrawal(node: str) -> ApiRequest:
    return ApiRequest("DELETE", pinning_path(node))


def size_of(value: object) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def _fill(status: dict[str, Any], sandboxes: Iterable[SandboxPinning], states: Mapping[str, PinState],
          room: int) -> None:
    """Add a line for each sandbox, then the details of each, as far as `room` (bytes) allows. :param sandboxes: those
    that need attention first. In the object they have the order of their pods."""
    taken: list[tuple[SandboxPinning, dict[str, Any]]] = []
    cut = status["cut"]
    for sandbox in sandboxes:
        line = _line(sandbox, states[sandbox.id])
        size = size_of(line) + 1
        if size > room:
            cut["sandboxes"] += 1
            continue
        room -= size
        taken.append((sandbox, line))
    for sandbox, line in taken:
        details = _details(sandbox)
        size = size_of(details)
        if size > room:
            cut["details"] += 1
            continue
        room -= size
        line.update(details)
    status["sandboxes"] = [line for _, line in sorted(taken, key=lambda pair: (pair[0].pod, pair[0].id))]


def _line(sandbox: SandboxPinning, state: PinState) -> dict[str, Any]:
    return {"sandbox": sandbox.id, "namespace": sandbox.pod[0], "pod": sandbox.pod[1], "uid": sandbox.uid,
            "state": state.value, "verdict": sandbox.verdict, "mask": sandbox.mask}


def _details(sandbox: SandboxPinning) -> dict[str, Any]:
    return {"handler": sandbox.handler, "reasons": list(sandbox.reasons), "misplaced": sandbox.misplaced,
            "vcpus": {str(vcpu): mask for vcpu, mask in sorted(sandbox.vcpus.items())},
            "guest": {"agent": sandbox.agent, "state": sandbox.guest},
            "containers": [container._asdict() for container in sandbox.containers],
            "putBack": sandbox.repairs.total}


def _collision(collision: CpuCollision) -> dict[str, Any]:
    return {"cpu": collision.cpu, "sandboxes": [_short(sandbox, 128) for sandbox in collision.sandboxes[:4]],
            "message": _short(collision.message, 256)}


def _topology(topology: Mapping[str, Any]) -> dict[str, Any]:
    nodes = topology.get("nodes")
    caches = topology.get("caches")
    return {"cores": _number(topology.get("cores")), "threadsPerCore": _number(topology.get("threads_per_core")),
            "nodes": {_short(key, 16): _short(value, 128) for key, value in list(nodes.items())[:_NODES]}
            if isinstance(nodes, Mapping) else {},
            "caches": [_short(value, 64) for value in caches[:_CACHES]] if isinstance(caches, list) else [],
            "isolated": _short(topology.get("isolated") or "")}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _short(value: object, most: int = _TEXT) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[:most - 1]}…"
