"""The annotations by which pods ask for CPUs, on their way from reporter to watcher (`allocate.live_annotations`).

The request has them by the pod's uid, whole texts of all pods of the node. A pod whose annotations are too long, or
have no room, is left out: a missing pod means nothing, and an empty object means that the pod has no such annotation.
Both sides bound it, as the watcher does not trust the reporter."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from vmpin.errors import WireError

#: The request's name on the status socket, and its version.
OPERATION, VERSION = "pods", 1
#: Bytes of a request, pods in it, and characters of one pod's keys and values.
MAX_REQUEST, MAX_PODS, MAX_TEXT = 64 << 10, 256, 4096


def watched_annotations(item: Mapping[str, Any], is_watched: Callable[[str], bool]) -> Mapping[str, str] | None:
    """The annotations of a pod (its JSON) whose keys `is_watched` accepts; None where they are too long.
    :raises TypeError, AttributeError: it is no pod."""
    annotations = {key: str(value) for key, value in (item["metadata"].get("annotations") or {}).items()
                   if is_watched(key)}
    return annotations if _length(annotations) <= MAX_TEXT else None


def encode(pods: Mapping[str, Mapping[str, str]]) -> bytes:
    """The request, one line; pods with the shortest annotations first. :param pods: by uid."""
    entries: list[bytes] = []
    left = MAX_REQUEST - 64
    # Unpaired surrogates, which JSON allows, are no UTF-8: so it is ASCII.
    for entry in sorted((f"{json.dumps(uid)}:{json.dumps(pods[uid], separators=(',', ':'))}".encode() for uid in pods),
                        key=lambda entry: (len(entry), entry)):
        left -= len(entry) + 1
        if left < 0 or len(entries) == MAX_PODS:
            break
        entries.append(entry)
    return b'{"op":"%s","version":%d,"pods":{%s}}\n' % (OPERATION.encode(), VERSION, b",".join(entries))


def decode(request: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    """The annotations of pods by uid. :raises WireError: a request that `encode` never writes."""
    pods = request.get("pods")
    if request.get("version") != VERSION or not isinstance(pods, dict) or len(pods) > MAX_PODS:
        raise WireError(OPERATION, f"is no request of version {VERSION} with at most {MAX_PODS} pods")
    for pod in pods.values():
        if not isinstance(pod, dict) or not all(isinstance(value, str) for value in pod.values()):
            raise WireError(OPERATION, "has a pod that is no object of texts")
        if _length(pod) > MAX_TEXT:
            raise WireError(OPERATION, f"has a pod with more than {MAX_TEXT} characters")
    return pods


def _length(pod: Mapping[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in pod.items())
