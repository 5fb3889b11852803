"""A pod's texts at the API server, for people: the pod's author may have chosen them.

The reporter hands it to the watcher in one request for all pods in VMs, and `vmpin status` and `explain` show it. It
decides nothing: nothing that places, pins or keeps a state imports this (tests/unit/test_floors.py). Both sides bound
it, as the watcher does not trust the reporter."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from vmpin.bounded import whole
from vmpin.domain.terminal import excerpt
from vmpin.errors import WireError

#: The request's name on the status socket, and its version.
OPERATION, VERSION = "pods", 1
#: Bytes of a request, and pods in it.
MAX_REQUEST, MAX_PODS = 128 << 10, 256
MAX_ANNOTATIONS = 24
#: Characters of names, of an annotation's key, and of texts.
_NAME, _KEY, _LONG = 64, 128, 256
#: Of the kubelet, while a pod's resources are being changed in place (k8s.io/api core/v1: PodConditionType).
_RESIZES = ("PodResizePending", "PodResizeInProgress")
#: Has the pod's whole specification, with its environment: long, and possibly secret.
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class PodResize(NamedTuple):
    """A condition of a pod while its resources are being changed: `reason` is Deferred, Infeasible or Error."""

    type: str
    reason: str
    message: str
    since: str


class UntrustedPod(NamedTuple):
    """All of it printable and bounded. `qos` is its QoS class; `more_annotations` counts those that were cut off."""

    qos: str
    runtime_class: str
    resizes: tuple[PodResize, ...]
    annotations: Mapping[str, str]
    more_annotations: int

    def data(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {**self._asdict(), "resizes": [resize._asdict() for resize in self.resizes],
                "annotations": dict(self.annotations)}


def untrusted_pod(item: Mapping[str, Any]) -> UntrustedPod:
    """Read a pod from its JSON at the API server. :raises TypeError, AttributeError: it is no pod."""
    annotations = item["metadata"].get("annotations") or {}
    spec, status = item.get("spec") or {}, item.get("status") or {}
    return _pod({
        "qos": status.get("qosClass"), "runtime_class": spec.get("runtimeClassName"), "more_annotations": 0,
        "annotations": {key: annotations[key] for key in sorted(annotations) if key != _APPLIED},
        "resizes": [{"type": condition["type"], "reason": condition.get("reason"),
                     "message": condition.get("message"), "since": condition.get("lastTransitionTime")}
                    for condition in status.get("conditions") or ()
                    if condition.get("type") in _RESIZES and condition.get("status") != "False"]})


def _pod(entry: Mapping[str, Any]) -> UntrustedPod:
    annotations = entry["annotations"]
    kept = {excerpt(key, _KEY): excerpt(text, _LONG) for key, text in list(annotations.items())[:MAX_ANNOTATIONS]}
    return UntrustedPod(
        excerpt(entry["qos"], _NAME), excerpt(entry["runtime_class"], _NAME),
        tuple(PodResize(excerpt(resize["type"], _NAME), excerpt(resize["reason"], _NAME),
                        excerpt(resize["message"], _LONG), excerpt(resize["since"], _NAME))
              for resize in entry["resizes"][:len(_RESIZES)]),
        kept, min((whole(entry["more_annotations"], 10**6) or 0) + len(annotations) - len(kept), 10**6))


def encode(pods: Mapping[str, UntrustedPod], member: bytes = b"") -> bytes:
    """The request, one line of at most MAX_REQUEST bytes. Where not everything has room, each pod gets its share: its
    annotations are left out from the last on. :param pods: by the uid that the runtime has.
    :param member: another member of the request (watched_annotations)."""
    chosen = sorted(pods.items())[:MAX_PODS]
    left, entries = MAX_REQUEST - 64 - len(member), []
    for place, (uid, pod) in enumerate(chosen):
        entry = _entry(uid, pod, left // (len(chosen) - place))
        if len(entry) < left:
            entries.append(entry)
            left -= len(entry) + 1
    return b'{"op":"%s","version":%d,"pods":[%s]%s}\n' % (OPERATION.encode(), VERSION, b",".join(entries), member)


def _entry(uid: str, pod: UntrustedPod, share: int) -> bytes:
    annotations: dict[str, str] = {}
    more = pod.more_annotations
    used = len(_json({"uid": uid, **pod._replace(annotations={}, more_annotations=10**6).data()}))
    for key, value in pod.annotations.items():
        used += len(_json({key: value}))
        if used <= share:
            annotations[key] = value
        else:
            more += 1
    return _json({"uid": uid, **pod._replace(annotations=annotations, more_annotations=more).data()})


def _json(data: object) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


def decode(request: Mapping[str, Any]) -> dict[str, UntrustedPod]:
    """The pods of a request by uid, bounded whatever the sender wrote. :raises WireError: it is malformed."""
    try:
        if request["version"] != VERSION:
            raise WireError(OPERATION, f"version {excerpt(request['version'], _NAME)} is not {VERSION}")
        entries = request["pods"]
        if len(entries) > MAX_PODS:
            raise WireError(OPERATION, f"more than {MAX_PODS} pods")
        return {excerpt(entry["uid"], _NAME): _pod(entry) for entry in entries}
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as err:
        raise WireError(OPERATION, f"malformed request: {type(err).__name__}") from err


def untrusted_sentences(pod: Mapping[str, Any] | None) -> Iterable[str]:
    """Describe `data` for people; each text is quoted, as it may be made to look like a sentence of vmpin's."""
    if not pod:
        return
    yield (f"Untrusted, from the pod's object at the API server; no mask depends on it: QoS class "
           f"{_quoted(pod['qos'])}, runtime class {_quoted(pod['runtime_class'])}.")
    for resize in pod["resizes"]:
        yield (f"Untrusted: condition {_quoted(resize['type'])} since {_quoted(resize['since'])}, reason "
               f"{_quoted(resize['reason'])}: {_quoted(resize['message'])}.")
    annotations = [f"{_quoted(key)}={_quoted(value)}" for key, value in pod["annotations"].items()]
    if more := pod["more_annotations"]:
        annotations.append(f"and {more} that are left out" if annotations else f"({more}), all left out")
    if annotations:
        yield f"Untrusted: annotations {', '.join(annotations)}."


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
