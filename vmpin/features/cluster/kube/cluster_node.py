"""The Node object of the API server: its labels that are vmpin's, and the startup taint that vmpin removes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vmpin.features.cluster.kube.api_request import JSON_PATCH, ApiRequest, apply, node_path
from vmpin.features.cluster.kube.identifiers import LABEL_READY, LABEL_VERSION, POOLS, REGION, ZONE, label_value
from vmpin.features.cluster.kube.reported_node import NodePart
from vmpin.named_tuple import NamedTuple


class ClusterNode(NamedTuple):
    """The members of a Node that the reporter needs."""

    name: str
    uid: str
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, Any], ...]

    @property
    def places(self) -> dict[str, str]:
        """Return the node's zone, region and pool, as labels of objects about it."""
        return {key: self.labels[key] for key in (ZONE, REGION, *POOLS) if self.labels.get(key)}


def node_of(item: Mapping[str, Any]) -> ClusterNode:
    """Read a Node from its JSON. :raises ValueError: for what is no Node."""
    try:
        meta, spec = item["metadata"], item.get("spec") or {}
        return ClusterNode(meta["name"], meta["uid"], {str(key): str(value) for key, value in (
            meta.get("labels") or {}).items()}, tuple(spec.get("taints") or ()))
    except (KeyError, TypeError, AttributeError) as err:
        raise ValueError(f"is no Node: {err!r}") from err


def label_update(node: ClusterNode, report: NodePart, reporting: bool) -> ApiRequest | None:
    """The apply of vmpin's labels of the node; None where the node has them already.
    :param reporting: whether the watcher reports now: else it is not ready."""
    wanted = {LABEL_READY: "true" if reporting and report.ready else "false",
              **({LABEL_VERSION: version} if (version := label_value(report.version)) else {})}
    if {key: node.labels.get(key) for key in (LABEL_READY, LABEL_VERSION)} == {LABEL_VERSION: None, **wanted}:
        return None
    return _applied(node, {"labels": wanted})


def label_withdrawal(node: ClusterNode) -> ApiRequest | None:
    """An apply without vmpin's labels, which removes them; None for a node without them."""
    return _applied(node, {}) if {LABEL_READY, LABEL_VERSION} & node.labels.keys() else None


def _applied(node: ClusterNode, meta: Mapping[str, Any]) -> ApiRequest:
    return apply(node_path(node.name), {"apiVersion": "v1", "kind": "Node",
                                        "metadata": {"name": node.name, "uid": node.uid, **meta}})


def taint_removal(node: ClusterNode, key: str) -> ApiRequest | None:
    """The JSON patch that removes the taints with this key; None without one. The taints are one atomic list: each is
    tested to be still where it was, and the API server refuses the patch (422) if another program changed the list.
    :param key: "" for none."""
    places = [(place, taint) for place, taint in enumerate(node.taints) if key and taint.get("key") == key]
    if not places:
        return None
    # From the end, as a removal moves all that follow it.
    steps: list[dict[str, object]] = []
    for place, taint in reversed(places):
        path = f"/spec/taints/{place}"
        steps += [{"op": "test", "path": path, "value": dict(taint)}, {"op": "remove", "path": path}]
    return ApiRequest("PATCH", node_path(node.name), steps, JSON_PATCH)
