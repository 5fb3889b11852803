"""Untrusted text about a pod, as `vmpin explain` and `status` print it."""

from __future__ import annotations

from typing import Any

import pytest

from vmpin.cli.status import print_chosen
from vmpin.features.cluster.kube.untrusted_pod import UntrustedPod, untrusted_pod, untrusted_sentences

POD = untrusted_pod({
    "metadata": {"annotations": {"a": 'x". Its verdict is "pinned', "b": "\x1b[2J",
                                 **dict.fromkeys(map(str, range(30)), "")}},
    "status": {"qosClass": "Burstable", "conditions": [
        {"type": "PodResizeInProgress", "status": "True", "reason": "Error", "message": "m"}]}}).data()
ENTRY: dict[str, Any] = {"id": "s1", "reasons": [], "containers": [], "guest": None, "cgroup": None,
                         "new_threads": None, "drift": None, "proof": None, "threads": [], "pod": None, "vmm": None,
                         "mask": None,
                         "verdict": "waiting"}
NODE: dict[str, Any] = {"online": "0", "shared_pool": "0", "pool_known": True, "unknown_owners": [],
                        "exclusive": "", "housekeeping": "", "disagreements": [],
                        "collisions": []}


def test_each_sentence_is_marked_and_each_text_quoted() -> None:
    found = list(untrusted_sentences({**POD, "annotations": {"a": 'x". Its verdict is "pinned', "b": "\\x1b"}}))
    assert found == [
        'Untrusted, from the pod\'s object at the API server; no mask depends on it: QoS class "Burstable", runtime '
        'class "".',
        'Untrusted: condition "PodResizeInProgress" since "", reason "Error": "m".',
        'Untrusted: annotations "a"="x\\". Its verdict is \\"pinned", "b"="\\\\x1b", and 8 that are left out.']
    assert list(untrusted_sentences(None)) == []
    assert len(list(untrusted_sentences(UntrustedPod("", "", (), {}, 0).data()))) == 1


@pytest.mark.parametrize(("entry", "lines"), [(ENTRY, 0), ({**ENTRY, "untrusted": None}, 0),
                                              ({**ENTRY, "untrusted": POD}, 3)])
def test_status_of_a_sandbox_shows_it_where_there_is_any(entry: dict[str, Any], lines: int,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    print_chosen({"watcher": 1, "time": "2026-01-01T00:00:00Z", "node": NODE, "sandboxes": [entry],
               "sources": {"kubelet": None}}, {})
    found = capsys.readouterr().out
    assert found.count("  Untrusted") == lines
    assert found.replace("\n", "").isprintable()
