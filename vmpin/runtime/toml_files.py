"""TOML files of other programs: reading one, merging one over another, and typed access to their values.

What stays out: what is in them. Called by engines and kata_config.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from vmpin.errors import SourceError
from vmpin.host.files import Files

Table = dict[str, Any]


def load(files: Files, path: str) -> Table | None:
    """A file's table, None when there is no such file. :raises SourceError: when it is not TOML."""
    text = files.text(path)
    if text is None:
        return None
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as err:
        raise SourceError(path, f"is not TOML: {str(err)[:100]}") from err


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """`base` with the values of `over`: tables are merged, anything else is replaced."""
    made = dict(base)
    for key, value in over.items():
        old = made.get(key)
        made[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return made


def strings(value: object) -> tuple[str, ...]:
    """The strings of a list; () for anything else."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def string(value: object) -> str:
    """A string; "" for anything else."""
    return value if isinstance(value, str) else ""


def switch(value: object) -> bool | None:
    """A boolean; None for anything else."""
    return value if isinstance(value, bool) else None
