"""The node's labels and its startup taint: only vmpin's own, and only where something changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_given import NODE, reported

from vmpin.features.cluster.kube.cluster_node import label_update, label_withdrawal, node_of, taint_removal
from vmpin.features.cluster.kube.identifiers import label_value, valid_name

STARTING = {"key": "vmpin.io/starting", "effect": "NoSchedule"}
OTHER = {"key": "other", "value": "x", "effect": "NoExecute"}


def test_labels_are_written_where_they_are_other_ones() -> None:
    report = reported().node
    first = label_update(NODE, report, True)
    assert first is not None
    body: Any = first.body
    assert body == {"apiVersion": "v1", "kind": "Node", "metadata": {
        "name": "node-a", "uid": "node-uid", "labels": {"vmpin.io/ready": "true", "vmpin.io/version": "0.1.0"}}}
    labelled = NODE._replace(labels={"mine": "x", **body["metadata"]["labels"]})
    assert label_update(labelled, report, True) is None
    assert label_update(labelled, report, False) is not None
    assert label_update(labelled, report._replace(ready=False), True) is not None
    assert label_update(labelled, report._replace(version=""), True) is not None
    gone = label_withdrawal(labelled)
    assert gone is not None
    body = gone.body
    assert body["metadata"] == {"name": "node-a", "uid": "node-uid"}
    assert label_withdrawal(NODE) is None


@given(st.lists(st.sampled_from([STARTING, OTHER, {"key": "third", "effect": "NoSchedule"},
                                 {**STARTING, "effect": "NoExecute"}]), max_size=6))
def test_the_taint_goes_and_every_other_one_stays(taints: list[dict[str, str]]) -> None:
    request = taint_removal(NODE._replace(taints=tuple(taints)), STARTING["key"])
    left = list(taints)
    steps: Any = [] if request is None else request.body
    for step in steps:
        place = int(step["path"].removeprefix("/spec/taints/"))
        if step["op"] == "test":
            assert left[place] == step["value"]
        else:
            assert step["op"] == "remove"
            del left[place]
    assert left == [taint for taint in taints if taint["key"] != STARTING["key"]]
    assert (request is None) == (left == taints)
    assert [step["op"] for step in steps] == ["test", "remove"] * (len(taints) - len(left))
    assert taint_removal(NODE._replace(taints=tuple(taints)), "") is None


def test_a_node_is_read_from_what_the_api_server_has() -> None:
    node = node_of({"metadata": {"name": "n", "uid": "u", "labels": None}, "spec": {"taints": [OTHER]}})
    assert (node.name, node.uid, node.taints, node.places) == ("n", "u", (OTHER,), {})
    items: list[dict[str, Any]] = [{}, {"metadata": {}}, {"metadata": None}]
    for item in items:
        with pytest.raises(ValueError, match="is no Node"):
            node_of(item)


@given(st.text(max_size=100))
def test_any_text_becomes_the_value_of_a_label_or_none(text: str) -> None:
    value = label_value(text)
    assert len(value) <= 63
    assert not value or (value[0].isalnum() and value[-1].isalnum() and value.isascii())


@given(st.text(alphabet="ab.-/?A%", max_size=12))
def test_a_valid_name_changes_no_path(text: str) -> None:
    if valid_name(text):
        assert not set(text) & set("/?%A")
        assert ".." not in text
