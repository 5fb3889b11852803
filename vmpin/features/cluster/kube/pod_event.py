"""Events of pods as objects of the core API (v1), which `kubectl describe pod` shows."""

from __future__ import annotations

from vmpin.features.cluster.kube.api_request import MERGE_PATCH, ApiRequest, checked
from vmpin.features.cluster.kube.event_limits import Recorded
from vmpin.features.cluster.kube.identifiers import MANAGER
from vmpin.features.cluster.kube.pod_condition import timestamp
from vmpin.features.cluster.kube.pod_record import PodRecord

#: As the API server limits it (api core validation): 1,024 bytes.
MAX_MESSAGE = 1024


def event_request(pod: PodRecord, recorded: Recorded, node: str, clock: float, create: bool) -> ApiRequest:
    """Create the object, or raise the count of the one that is there.
    :param clock: CLOCK_REALTIME, seconds."""
    path = f"/api/v1/namespaces/{checked(pod.namespace)}/events"
    message, last = _cut(recorded.event.message), timestamp(clock)
    if not create:
        return ApiRequest("PATCH", f"{path}/{checked(recorded.name)}",
                          {"count": recorded.times, "lastTimestamp": last, "message": message}, MERGE_PATCH)
    return ApiRequest("POST", path, {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": checked(recorded.name), "namespace": pod.namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name,
                           "uid": pod.uid},
        "reason": recorded.event.reason.value, "message": message, "type": recorded.event.reason.type,
        "source": {"component": MANAGER, "host": checked(node)}, "reportingComponent": f"vmpin.io/{MANAGER}",
        "reportingInstance": node, "firstTimestamp": timestamp(recorded.first), "lastTimestamp": last,
        "count": recorded.times})


def _cut(text: str) -> str:
    raw = text.encode()
    return text if len(raw) <= MAX_MESSAGE else raw[:MAX_MESSAGE - 3].decode("utf-8", "ignore") + "…"
