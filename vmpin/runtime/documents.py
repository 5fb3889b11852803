"""JSON and TOML that other programs write: read within limits, with errors that name the file, and looked up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vmpin.bounded import MAX_PID, load_json, whole
from vmpin.errors import SourceError
from vmpin.host.files import Files

Table = dict[str, Any]

#: A container's config.json has some thousand values, most of them of its seccomp profile, and 7 levels.
MAX_VALUES, MAX_DEPTH = 65_536, 64
_MAX_TOML_DEPTH = 32


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


def load_toml(files: Files, path: str) -> Table | None:
    """Read a TOML file; None if it does not exist.
    :raises SourceError: it is invalid, nested too deeply, or has an integer beyond 64 bits or a non-finite number."""
    import tomllib  # what the first pass needs is JSON

    text = files.text(path)
    if text is None:
        return None
    try:
        table = tomllib.loads(text.removeprefix("\ufeff"))  # Kata's and CRI-O's parsers take a byte order mark
        _check(table)
    except (ValueError, RecursionError) as err:  # ValueError also for an integer of more than 4,300 digits
        raise SourceError(path, f"is not TOML: {str(err)[:100]}") from err
    return table


def _check(value: object, depth: int = 0) -> None:
    """Check the limits on depth and numbers. :raises ValueError: a value exceeds them."""
    if depth > _MAX_TOML_DEPTH:
        raise ValueError(f"it is more than {_MAX_TOML_DEPTH} deep")
    if isinstance(value, int) and value.bit_length() > 64:
        raise ValueError(f"a number has {value.bit_length()} bits, at most 64 are read")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check(item, depth + 1)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """Merge `over` into a copy of `base`: tables are merged recursively, other values replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def dig(table: object, *keys: str) -> Any:
    """Look up a nested value; None if there is none."""
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table


def pid_of(value: object) -> int:
    """The value if it is a valid pid, otherwise 0."""
    return whole(value, MAX_PID, 1) or 0


def tables(value: object) -> list[tuple[str, Table]]:
    """The tables in a table, by name; [] for any other value."""
    items = value.items() if isinstance(value, dict) else ()
    return [(name, table) for name, table in items if isinstance(table, dict)]


def strings(value: object) -> tuple[str, ...]:
    """The strings in a list; () for any other value."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def string(value: object) -> str:
    """The value if it is a string, otherwise ""."""
    return value if isinstance(value, str) else ""


def switch(value: object) -> bool | None:
    """The value if it is a boolean, otherwise None."""
    return value if isinstance(value, bool) else None
