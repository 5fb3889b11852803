"""What an API server answers, as values: JSON with bounds on its numbers and on how much of it there is.

The answer may come from no API server: from a proxy, a wrong address, a server that was taken over."""

from __future__ import annotations

from typing import Any

from vmpin.bounded import load_json

#: Values in one answer: a page of 500 objects with 8,000 values each. A pod has some 300.
MAX_VALUES = 4 << 20
#: Bytes of an answer that refuses: a Status of some hundred bytes.
MAX_REFUSAL = 1 << 20


def parse_answer(raw: bytes) -> dict[str, Any]:
    """The object that an answer, or a line of a watch, is. :raises ValueError: it is none within the bounds."""
    found = load_json(raw, MAX_VALUES)
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def parse_page(raw: bytes) -> tuple[list[dict[str, Any]], str, str]:
    """A page of a list: its objects, the token for the next page ("" after the last), and the list's version.
    :raises ValueError: it is no such page."""
    page = parse_answer(raw)
    items, meta = page.get("items"), page.get("metadata")
    if not isinstance(items, list) or not all(isinstance(each, dict) for each in items) or not isinstance(meta, dict):
        raise ValueError("it is no list of objects")
    token, version = meta.get("continue") or "", meta.get("resourceVersion")
    if not isinstance(token, str) or not isinstance(version, str):
        raise ValueError("it is a list without a version")
    return items, token, version


def refusal(body: bytes | str | None) -> str:
    """The message of an answer that refuses (a Status); "" for an answer without one."""
    raw = body.encode("utf-8", "replace") if isinstance(body, str) else body or b""
    if len(raw) > MAX_REFUSAL:
        return ""
    try:
        message = parse_answer(raw).get("message")
    except ValueError:
        return ""
    return message if isinstance(message, str) else ""
