"""Pods as the API server lists and watches them: the few members that the reporter needs of each.

Raw JSON in, values out: a whole pod takes some 10 kB."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vmpin.features.cluster.kube.identifiers import CONDITION, MIRROR, valid_name
from vmpin.features.cluster.kube.reported_node import SandboxPinning
from vmpin.features.cluster.kube.watched_annotations import watched_annotations
from vmpin.named_tuple import NamedTuple


class PodRecord(NamedTuple):
    """`condition` is vmpin's own, None without it; `runtime_uid` the uid by which the kubelet and the runtime have the
    pod, which is another than the API server's for a static one."""

    namespace: str
    name: str
    uid: str
    runtime_uid: str
    condition: Mapping[str, Any] | None = None
    ending: bool = False
    watched: Mapping[str, str] | None = None  #: The annotations that ask for CPUs.

    def owns(self, sandbox: SandboxPinning) -> bool:
        """Whether a sandbox with the pod's `runtime_uid` is the pod's. A static pod's is an annotation, which any pod
        can have with another's uid: its name has to be the runtime's, too."""
        return self.runtime_uid == self.uid or sandbox.pod == (self.namespace, self.name)


def record_of(item: Mapping[str, Any], is_watched: Callable[[str], bool] | None = None) -> PodRecord | None:
    """None for a pod without the members that all pods have.
    :param is_watched: whether an annotation of this key asks for CPUs; None: none is kept."""
    try:
        meta = item["metadata"]
        namespace, name, uid = meta["namespace"], meta["name"], meta["uid"]
        if not (valid_name(namespace) and valid_name(name) and isinstance(uid, str)):
            return None
        conditions = (item.get("status") or {}).get("conditions") or ()
        own = next((dict(condition) for condition in conditions if condition.get("type") == CONDITION), None)
        mirror = (meta.get("annotations") or {}).get(MIRROR)
        phase = (item.get("status") or {}).get("phase")
        return PodRecord(namespace, name, uid, mirror or uid, own,
                         bool(meta.get("deletionTimestamp")) or phase in ("Succeeded", "Failed"),
                         watched_annotations(item, is_watched) if is_watched is not None else None)
    except (KeyError, TypeError, AttributeError):
        return None
