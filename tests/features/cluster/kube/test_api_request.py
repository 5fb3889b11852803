"""What an API server answers is bounded before it becomes values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vmpin.features.cluster.kube import api_request
from vmpin.features.cluster.kube.api_request import parse_answer, parse_page, refusal

PAGE: dict[str, Any] = {"metadata": {"resourceVersion": "17", "continue": "abc"}, "items": [{"kind": "Pod"}]}
HOSTILE = [b"", b"<html>", b"[]", b"1", b'"text"', b"[" * 100000, b'{"a":' * 100000, b"1" * 100000,
           b'{"a":1e999}', b'{"a":Infinity}', b'{"a":' + b"9" * 5000 + b"}", b"\xff\xfe{\0}\0"]


@pytest.mark.parametrize("raw", HOSTILE, ids=[str(raw[:12]) for raw in HOSTILE])
def test_what_is_no_object_within_bounds_is_one_error(raw: bytes) -> None:
    with pytest.raises(ValueError):
        parse_answer(raw)
    assert refusal(raw) == ""


def test_values_are_counted_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_request, "MAX_VALUES", 100)
    assert parse_answer(json.dumps({"a": list(range(50))}).encode())["a"][-1] == 49
    with pytest.raises(ValueError, match="more than 100 values"):
        parse_answer(json.dumps({"a": list(range(101))}).encode())


@pytest.mark.parametrize("change", [
    {"items": None}, {"items": "pods"}, {"items": {"a": 1}}, {"items": ["pod"]}, {"metadata": None},
    {"metadata": []}, {"metadata": {}}, {"metadata": {"resourceVersion": 17}},
    {"metadata": {"resourceVersion": "17", "continue": ["a"]}}])
def test_a_page_has_objects_and_a_version(change: dict[str, Any]) -> None:
    assert parse_page(PAGE) == ([{"kind": "Pod"}], "abc", "17")
    with pytest.raises(ValueError):
        parse_page(PAGE | change)


def test_a_refusal_is_its_message_or_nothing() -> None:
    assert refusal(b'{"kind":"Status","message":"no such pod"}') == "no such pod"
    for other in (None, b'{"message":["a"]}', b'{"reason":"Gone"}'):
        assert refusal(other) == ""
