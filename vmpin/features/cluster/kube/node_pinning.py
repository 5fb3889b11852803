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


def node_pinning(node: ClusterNode, reported: ReportedNode, reports: bool, most: int = MAX_SIZE,
                 topology: str = "") -> dict[str, Any]:
    """The object, without `observedAt` (see `dated`): equal for equal contents.
    :param reports: whether the watcher reports; False: this is what it reported last.
    :param topology: what is written of the node's NodeResourceTopology, or why nothing is; "" where it is off.
    :param most: bytes as JSON, at least 64 kB, which the node's own part never needs."""
    found = reported.node
    entries = {each.id: pinning_of(each, found.collisions) for each in reported.sandboxes.values()}
    verdicts = Counter(entry.state for entry in entries.values())
    good = sum(count for state, count in verdicts.items() if state.good)
    collisions = [_collision(each) for each in found.collisions[:_COLLISIONS]]
    while size_of(collisions) > most // 4:
        del collisions[len(collisions) // 2:]
    status: dict[str, Any] = {
        "ready": reports and found.ready,
        "message": _short(found.why if reports else "the watcher does not report: this is what it reported last"),
        "version": _short(found.version), "refreshSeconds": REFRESH,
        "cpus": {key: _short(text, 4096) for key, text in (
            ("online", found.online), ("shared", found.shared_pool), ("exclusive", found.exclusive),
            ("housekeeping", found.housekeeping))},
        "topology": _topology(found.topology), "trouble": _short(found.trouble),
        **({"nodeResourceTopology": _short(topology)} if topology else {}),
        "pinned": good, "total": len(entries), "summary": f"{good}/{len(entries)}",
        "degraded": verdicts[PinState.DEGRADED],
        "collisionCount": len(found.collisions),
        "collisions": collisions, "sandboxes": [],
        "cut": {"sandboxes": 0, "details": 0, "collisions": len(found.collisions) - len(collisions)}}
    made = {"apiVersion": API_VERSION, "kind": KIND,
            "metadata": {"name": node.name, "labels": {
                **{key: value for key, value in node.places.items() if label_value(value) == value},
                f"{GROUP}/ready": "true" if status["ready"] else "false"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}]},
            "status": status}
    # The numbers of what is cut, and the time, take some more digits.
    states = {sandbox: entry.state for sandbox, entry in entries.items()}
    _fill(status, sorted(reported.sandboxes.values(), key=lambda each: (states[each.id].good, each.pod, each.id)),
          states, most - size_of(made) - 64)
    return made


def dated(made: Mapping[str, Any], time: float) -> ApiRequest:
    """The apply of an object. :param time: when its contents were observed (CLOCK_REALTIME, seconds)."""
    status = {**made["status"], "observedAt": timestamp(time)}
    return apply(pinning_path(made["metadata"]["name"]), {**made, "status": status})


def pinning_withdrawal(node: str) -> ApiRequest:
    return ApiRequest("DELETE", pinning_path(node))


def size_of(value: object) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def _fill(status: dict[str, Any], sandboxes: Iterable[SandboxPinning], states: Mapping[str, PinState],
          room: int) -> None:
    """Put in every sandbox in short, then the details of as many as there is room for; those that need attention come
    first in both. The order in the object is that of their pods."""
    taken: list[tuple[SandboxPinning, dict[str, Any]]] = []
    cut = status["cut"]
    for each in sandboxes:
        line = _line(each, states[each.id])
        size = size_of(line) + 1
        if size > room:
            cut["sandboxes"] += 1
            continue
        room -= size
        taken.append((each, line))
    for each, line in taken:
        details = _details(each)
        size = size_of(details)
        if size > room:
            cut["details"] += 1
            continue
        room -= size
        line.update(details)
    status["sandboxes"] = [line for _, line in sorted(taken, key=lambda pair: (pair[0].pod, pair[0].id))]


def _line(found: SandboxPinning, state: PinState) -> dict[str, Any]:
    return {"sandbox": found.id, "namespace": found.pod[0], "pod": found.pod[1], "uid": found.uid,
            "state": state.value, "verdict": found.verdict, "mask": found.mask}


def _details(found: SandboxPinning) -> dict[str, Any]:
    return {"handler": found.handler, "reasons": list(found.reasons), "misplaced": found.misplaced,
            "vcpus": {str(vcpu): mask for vcpu, mask in sorted(found.vcpus.items())},
            "guest": {"agent": found.agent, "state": found.guest},
            "containers": [{"name": each.name, "cpus": each.cpus, "exclusive": each.exclusive, "vcpus": each.vcpus,
                            "guest": each.guest} for each in found.containers],
            "putBack": found.repairs.total}


def _collision(found: CpuCollision) -> dict[str, Any]:
    return {"cpu": found.cpu, "sandboxes": [_short(each, 128) for each in found.sandboxes[:4]],
            "message": _short(found.what, 256)}


def _topology(found: Mapping[str, Any]) -> dict[str, Any]:
    nodes = found.get("nodes")
    caches = found.get("caches")
    return {"cores": _number(found.get("cores")), "threadsPerCore": _number(found.get("threads_per_core")),
            "nodes": {_short(key, 16): _short(value, 128) for key, value in list(nodes.items())[:_NODES]}
            if isinstance(nodes, Mapping) else {},
            "caches": [_short(value, 64) for value in caches[:_CACHES]] if isinstance(caches, list) else [],
            "isolated": _short(found.get("isolated") or "")}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _short(value: object, most: int = _TEXT) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[:most - 1]}…"
