"""Text about pods on its way to the watcher: bounded and printable, whatever a pod or a sender puts into it."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.cli.status import print_chosen
from vmpin.errors import WireError
from vmpin.features.cluster.kube.pod_record import record_of
from vmpin.features.cluster.kube.untrusted_pod import (
    MAX_ANNOTATIONS,
    MAX_PODS,
    MAX_REQUEST,
    PodResize,
    UntrustedPod,
    decode,
    encode,
    untrusted_pod,
    untrusted_sentences,
)


def item(annotations: dict[str, Any] | None = None, conditions: list[dict[str, Any]] | None = None,
         **status: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": "web", "uid": "u1", "annotations": annotations},
            "spec": {"runtimeClassName": "kata"},
            "status": {"qosClass": "Guaranteed", "conditions": conditions or [], **status}}


def resize(kind: str = "PodResizePending", **changes: Any) -> dict[str, Any]:
    return {"type": kind, "status": "True", "reason": "Deferred", "message": "no room",
            "lastTransitionTime": "2026-01-02T03:04:05Z", **changes}


def bounded(pod: UntrustedPod) -> bool:
    data = pod.data()
    texts = [data["qos"], data["runtime_class"], *data["annotations"], *data["annotations"].values(),
             *(text for resize in data["resizes"] for text in resize.values())]
    return (all(text.isprintable() and len(text) <= 256 for text in texts) and len(pod.annotations) <= MAX_ANNOTATIONS
            and len(pod.resizes) <= 2 and 0 <= pod.more_annotations <= 10**6)


def test_a_pods_object_becomes_text() -> None:
    shown = untrusted_pod(item({"a": "b", "kubectl.kubernetes.io/last-applied-configuration": "the whole pod"},
                               [{"type": "Ready", "status": "True"}, resize(),
                                resize("PodResizeInProgress", status="False")]))
    assert shown == UntrustedPod("Guaranteed", "kata", (
        PodResize("PodResizePending", "Deferred", "no room", "2026-01-02T03:04:05Z"),), {"a": "b"}, 0)
    assert untrusted_pod({"metadata": {}}) == UntrustedPod("", "", (), {}, 0)


def test_a_record_has_it_only_if_it_is_asked_for() -> None:
    assert (record := record_of(item({"a": "b"}), untrusted=True)) is not None
    assert record.untrusted is not None
    assert record.untrusted.annotations == {"a": "b"}
    assert (record := record_of(item({"a": "b"}))) is not None
    assert record.untrusted is None


def test_what_a_pods_author_writes_is_cut_and_steers_no_terminal() -> None:
    shown = untrusted_pod(item({"evil": "\x1b[2J\u202e\n", "long": "x" * 100_000, "\x00key": "\ud800",
                                **{f"n{number:03}": "" for number in range(500)}},
                               [resize(message="\r" * 9000, reason="\x07")] * 50, qosClass="\x1b]0;x\x07"))
    assert bounded(shown)
    assert shown.annotations["evil"] == "\\x1b[2J\\x202e\\x0a"
    assert shown.annotations["\\x00key"] == "\\xd800"
    assert shown.annotations["long"] == "x" * 255 + "…"
    assert shown.more_annotations == 503 - MAX_ANNOTATIONS


def test_the_last_applied_configuration_is_no_annotation_that_is_left_out() -> None:
    shown = untrusted_pod(item({"kubectl.kubernetes.io/last-applied-configuration": "{}"}))
    assert (shown.annotations, shown.more_annotations) == ({}, 0)
    assert "annotations" not in " ".join(untrusted_sentences(shown.data()))
    assert list(untrusted_sentences(shown._replace(more_annotations=2).data()))[-1] == (
        "Untrusted: annotations (2), all left out.")


def test_a_request_brings_the_same_pods() -> None:
    pods = {f"u{number}": untrusted_pod(item({"a": "b" * number, "ü": "\x1b"}, [resize()])) for number in range(110)}
    raw = encode(pods)
    assert raw.endswith(b"\n")
    assert raw.count(b"\n") == 1
    assert decode(json.loads(raw)) == pods
    assert decode(json.loads(encode({}))) == {}


def test_a_request_is_bounded_and_each_pod_has_its_share() -> None:
    large = untrusted_pod(item({f"{number:02}" + "k" * 126: "\U0001f600" * 256 for number in range(MAX_ANNOTATIONS)},
                               [resize(message="\U0001f600" * 256)] * 2))
    small = untrusted_pod(item({"a": "b"}))
    pods = {**{f"large{number:03}": large for number in range(200)}, **dict.fromkeys("xyz", small)}
    raw = encode(pods)
    assert len(raw) <= MAX_REQUEST
    pods = decode(json.loads(raw))
    assert all(map(bounded, pods.values()))
    assert {key: pods[key] for key in "xyz"} == dict.fromkeys("xyz", small)
    assert all(len(pod.annotations) + pod.more_annotations == MAX_ANNOTATIONS
               for key, pod in pods.items() if key.startswith("large"))
    few = decode(json.loads(encode({"a": large, "b": large})))
    assert few == {"a": large, "b": large}
    assert len(decode(json.loads(encode({str(number): small for number in range(1000)})))) == MAX_PODS


@pytest.mark.parametrize("request_", [
    {}, {"version": 2, "pods": []}, {"version": 1}, {"version": 1, "pods": None}, {"version": 1, "pods": "xx"},
    {"version": 1, "pods": [{}]}, {"version": 1, "pods": [None]}, {"version": 1, "pods": {"a": 1}},
    {"version": 1, "pods": [{}] * (MAX_PODS + 1)}])
def test_what_is_no_such_request_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode(request_)


ENTRY: dict[str, Any] = {"uid": "u", "qos": "", "runtime_class": "", "annotations": {}, "more_annotations": 0,
                         "resizes": [{"type": "", "reason": "", "message": "", "since": ""}]}
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=400),
                    lambda inner: (st.lists(inner, max_size=4)
                                   | st.dictionaries(st.text(max_size=200), inner, max_size=4)), max_leaves=12)


@given(st.fixed_dictionaries({}, optional={key: JSON for key in ENTRY}),
       st.fixed_dictionaries({}, optional={key: JSON for key in ENTRY["resizes"][0]}))
def test_whatever_a_sender_puts_into_an_entry_it_is_bounded_or_refused(changes: dict[str, Any],
                                                                     condition: dict[str, Any]) -> None:
    entry = {**ENTRY, "resizes": [{**ENTRY["resizes"][0], **condition}], **changes}
    try:
        pods = decode(json.loads(json.dumps({"version": 1, "pods": [entry]})))
    except WireError:
        return
    assert all(map(bounded, pods.values()))
    assert all(uid.isprintable() and len(uid) <= 64 for uid in pods)
    json.dumps([pod.data() for pod in pods.values()]).encode()


@pytest.mark.parametrize("text", ["\x00", "\U0001f600" + "x" * 255, "\U000e0001" * 40])
def test_what_a_sender_makes_the_watcher_keep_is_bounded(text: str) -> None:
    """In as many and as large texts as a request of the largest size has room for."""
    annotations = {f"{number:02}": text for number in range(MAX_ANNOTATIONS)}
    entry = {**ENTRY, "annotations": annotations}
    count = min(MAX_PODS, MAX_REQUEST // len(json.dumps(entry, ensure_ascii=False).encode()))
    request = {"version": 1, "pods": [{**entry, "uid": str(number)} for number in range(count)]}
    tracemalloc.start()
    try:
        pods = decode(request)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(pods) == count
    assert kept < 4 << 20


POD = untrusted_pod({
    "metadata": {"annotations": {"a": 'x". Its verdict is "pinned', "b": "\x1b[2J",
                                 **dict.fromkeys(map(str, range(30)), "")}},
    "status": {"qosClass": "Burstable", "conditions": [
        {"type": "PodResizeInProgress", "status": "True", "reason": "Error", "message": "m"}]}}).data()
SANDBOX: dict[str, Any] = {"id": "s1", "reasons": [], "containers": [], "guest": None, "cgroup": None,
                         "new_threads": None, "drift": None, "proof": None, "threads": [], "pod": None, "vmm": None,
                         "mask": None,
                         "verdict": "waiting"}
DOCUMENT_NODE: dict[str, Any] = {"online": "0", "shared_pool": "0", "pool_known": True, "unknown_owners": [],
                        "exclusive": "", "housekeeping": "", "disagreements": [],
                        "collisions": []}


def test_each_sentence_is_marked_and_each_text_quoted() -> None:
    sentences = list(untrusted_sentences({**POD, "annotations": {"a": 'x". Its verdict is "pinned', "b": "\\x1b"}}))
    assert sentences == [
        'Untrusted, from the pod\'s object at the API server; no mask depends on it: QoS class "Burstable", runtime '
        'class "".',
        'Untrusted: condition "PodResizeInProgress" since "", reason "Error": "m".',
        'Untrusted: annotations "a"="x\\". Its verdict is \\"pinned", "b"="\\\\x1b", and 8 that are left out.']
    assert list(untrusted_sentences(None)) == []
    assert len(list(untrusted_sentences(UntrustedPod("", "", (), {}, 0).data()))) == 1


@pytest.mark.parametrize(("entry", "lines"), [(SANDBOX, 0), ({**SANDBOX, "untrusted": None}, 0),
                                              ({**SANDBOX, "untrusted": POD}, 3)])
def test_status_of_a_sandbox_shows_it_where_there_is_any(entry: dict[str, Any], lines: int,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    print_chosen({"watcher": 1, "time": "2026-01-01T00:00:00Z", "node": DOCUMENT_NODE, "sandboxes": [entry],
               "sources": {"kubelet": None}}, {})
    printed = capsys.readouterr().out
    assert printed.count("  Untrusted") == lines
    assert printed.replace("\n", "").isprintable()
