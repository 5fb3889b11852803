"""Parses JSON written by other programs, with errors that name the file, and looks up nested values."""

from __future__ import annotations

from typing import Any

from vmpin.bounded import MAX_PID, load_json, whole
from vmpin.errors import SourceError

#: A container's config.json has some thousand values, most of them of its seccomp profile, and 7 levels.
MAX_VALUES, MAX_DEPTH = 65_536, 64


def parse_json(raw: bytes | str, where: str, values: int = MAX_VALUES) -> object:
    """Parse JSON.
    :param where: the name of the file or message, for errors. :param values: the maximum number of values.
    :raises SourceError: it is no JSON, has too many values, or a number is out of range."""
    try:
        return load_json(raw, values, MAX_DEPTH)
    except ValueError as err:
        raise SourceError(where, f"is not JSON: {str(err)[:100]}") from err


def parse_object(raw: bytes | str, where: str, values: int = MAX_VALUES) -> dict[str, object]:
    """Parse a JSON object. :raises SourceError: as `parse_json`, or the value is no object."""
    document = parse_json(raw, where, values)
    if not isinstance(document, dict):
        raise SourceError(where, "is no JSON object")
    return document


def dig(table: object, *keys: str) -> Any:
    """Look up a nested value; None if there is none."""
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table


def pid_of(value: object) -> int:
    """The value if it is a valid pid, otherwise 0."""
    return whole(value, MAX_PID, 1) or 0
