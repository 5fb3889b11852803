"""Nodes, pods and reports for the tests of what the API server is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vmpin.features.cluster.kube.api_request import ApiRequest
from vmpin.features.cluster.kube.cluster_node import ClusterNode
from vmpin.features.cluster.kube.identifiers import CONDITION
from vmpin.features.cluster.kube.pod_record import PodRecord
from vmpin.features.cluster.kube.reported_node import NOTHING, ReportedNode, SandboxPinning

NODE = ClusterNode("node-a", "node-uid", {}, ())


def entry(name: str = "web", **changes: Any) -> dict[str, Any]:
    """A sandbox as a line of `follow` has it: pinned, unless changed."""
    return {"id": f"sandbox-{name}", "pod": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
            "runtime": "nri", "handler": "kata", "vmm": {"type": "qemu", "pid": 7}, "mask": "0-1,4-5",
            "verdict": "pinned", "reasons": [], "drift": None, "suspended": False, "misplaced": 0,
            "vcpus": {"0": "0-1", "1": "4", "2": "5"}, "guest": {"by": "vmpin-agent", "state": "connected"},
            "containers": [{"name": "main", "cpus": "4-5", "exclusive": True, "vcpus": "1-2", "guest": "applied"},
                           {"name": "side", "cpus": "0-1", "exclusive": False, "vcpus": "0", "guest": "applied"}],
            **changes}


def node_part(**changes: Any) -> dict[str, Any]:
    return {"ready": True, "why": "", "version": "0.1.0", "watcher": 42, "online": "0-7", "shared_pool": "0-1",
            "exclusive": "4-5", "housekeeping": "", "trouble": "", "collisions": [],
            "topology": {"cores": 4, "threads_per_core": 2, "caches": ["0-7"], "nodes": {"0": "0-7"}, "isolated": ""},
            **changes}


def line(kind: str = "all", *entries: Mapping[str, Any], gone: tuple[str, ...] = (), time: float = 1000.0,
         **parts: Any) -> bytes:
    return json.dumps({"version": 1, "follow": kind, "time": time, "sandboxes": entries, "gone": gone,
                       **parts}).encode()


def reported(*entries: Mapping[str, Any], time: float = 1000.0, **node: Any) -> ReportedNode:
    return NOTHING.after(line("all", *entries, time=time, node=node_part(**node)))


def sandbox(name: str = "web", **changes: Any) -> SandboxPinning:
    return reported(entry(name, **changes)).sandboxes[f"sandbox-{name}"]


def pod(name: str = "web", condition: Mapping[str, Any] | None = None, **changes: Any) -> PodRecord:
    return PodRecord("default", name, f"uid-{name}", f"uid-{name}", condition)._replace(**changes)


def as_written(record: PodRecord, request: ApiRequest) -> PodRecord:
    """The pod after an apply of its condition."""
    body: Any = request.body
    (condition,) = body["status"].get("conditions") or [None]
    assert condition is None or condition["type"] == CONDITION
    return record._replace(condition=condition)
