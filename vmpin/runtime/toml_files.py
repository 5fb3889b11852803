"""TOML files of other programs: reading with limits, merging, and typed access to values."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from typing import Any

from vmpin.errors import SourceError
from vmpin.host.files import Files

Table = dict[str, Any]
MAX_DEPTH = 32


def load(files: Files, path: str) -> Table | None:
    """Read a TOML file; None if it does not exist.
    :raises SourceError: it is invalid, nested too deeply, or has an integer beyond 64 bits or a non-finite number."""
    text = files.text(path)
    if text is None:
        return None
    try:
        table = tomllib.loads(text)
        _check(table)
    except (ValueError, RecursionError) as err:  # ValueError also for an integer of more than 4,300 digits
        raise SourceError(path, f"is not TOML: {str(err)[:100]}") from err
    return table


def _check(value: object, depth: int = 0) -> None:
    """Check the limits on depth and numbers. :raises ValueError: a value exceeds them."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is more than {MAX_DEPTH} deep")
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


def strings(value: object) -> tuple[str, ...]:
    """The strings in a list; () for any other value."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def string(value: object) -> str:
    """The value if it is a string, otherwise ""."""
    return value if isinstance(value, str) else ""


def switch(value: object) -> bool | None:
    """The value if it is a boolean, otherwise None."""
    return value if isinstance(value, bool) else None
