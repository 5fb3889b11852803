"""TOML files of other programs: reading one within bounds, merging one over another, and typed access to their
values."""

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
    """A file's table, None when there is no such file. Its whole numbers have 64 bits, its others are finite.
    :raises SourceError: when it is not such TOML."""
    text = files.text(path)
    if text is None:
        return None
    try:
        table = tomllib.loads(text)
        _check(table)
    except (ValueError, RecursionError) as err:  # of an integer of 4,301 digits, which Python does not make, too
        raise SourceError(path, f"is not TOML: {str(err)[:100]}") from err
    return table


def _check(value: object, depth: int = 0) -> None:
    """Refuse what can be read and not shown or used. :raises ValueError:"""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is more than {MAX_DEPTH} deep")
    if isinstance(value, int) and value.bit_length() > 64:
        raise ValueError(f"a number has {value.bit_length()} bits, at most 64 are read")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check(item, depth + 1)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """`base` with the values of `over`: tables are merged, anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def strings(value: object) -> tuple[str, ...]:
    """The strings of a list; () for anything else."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def string(value: object) -> str:
    """A string; "" for anything else."""
    return value if isinstance(value, str) else ""


def switch(value: object) -> bool | None:
    """A boolean; None for anything else."""
    return value if isinstance(value, bool) else None
