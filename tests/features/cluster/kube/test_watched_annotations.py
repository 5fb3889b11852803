"""The annotations by which pods ask for CPUs, from the API server's object to the watcher: whole, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.errors import WireError
from vmpin.features.cluster.kube.watched_annotations import (
    MAX_PODS,
    MAX_REQUEST,
    MAX_TEXT,
    decode,
    encode,
    watched_annotations,
)


def request(raw: bytes) -> Any:
    assert raw.count(b"\n") == 1
    return json.loads(raw)


def pod(annotations: object) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}}


def test_only_what_asks_is_kept_and_nothing_of_it_is_cut() -> None:
    assert watched_annotations(pod({"cpu": "x" * 300, "other": "y"}), lambda key: key == "cpu") == {"cpu": "x" * 300}
    assert watched_annotations(pod(None), lambda key: True) == watched_annotations(pod({}), lambda key: True) == {}
    assert watched_annotations(pod({"cpu": "x" * (MAX_TEXT - 3)}), lambda key: True) is not None
    assert watched_annotations(pod({"cpu": "x" * (MAX_TEXT - 2)}), lambda key: True) is None


@given(st.dictionaries(st.text(max_size=40), st.dictionaries(st.text(max_size=20), st.text(max_size=80), max_size=4),
                       max_size=20))
def test_what_is_sent_arrives_as_it_was(pods: dict[str, dict[str, str]]) -> None:
    assert decode(request(encode(pods))) == pods


@pytest.mark.parametrize("pods", [
    {str(number): {"k": "x" * 1000} for number in range(100)}, {str(number): {} for number in range(1000)},
    {"large": {"k": "\U0001f600" * 9000}, "small": {}}], ids=["long", "many", "one"])
def test_pods_without_room_are_left_out_whole(pods: dict[str, dict[str, str]]) -> None:
    raw = encode(pods)
    assert len(raw) <= MAX_REQUEST
    decoded = decode(request(raw))
    assert 0 < len(decoded) <= MAX_PODS
    assert "large" not in decoded
    assert decoded.items() <= pods.items()


@pytest.mark.parametrize("pods", ["", [], 1, None, {"u": None}, {"u": {"k": None}}, {"u": {"k": ["x"]}},
                                    {"u": {"k": "x" * MAX_TEXT}}, {str(number): {} for number in range(MAX_PODS + 1)}])
def test_what_no_reporter_makes_is_refused(pods: object) -> None:
    with pytest.raises(WireError, match="pods"):
        decode({"version": 1, "pods": pods})
