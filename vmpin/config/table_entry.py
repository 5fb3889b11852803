"""One key of the table of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

T = TypeVar("T")


class Setting(NamedTuple):
    """One key. `parse` raises ValueError with what is wrong about a value."""

    default: object
    parse: Callable[[object], object]
    help: str
    key: str = ""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "VMPIN_" + self.key.replace(".", "_").upper()


def setting(default: object, parse: Callable[[object], T], help_text: str) -> T:
    """A field's place in the table; typed as the value that `load` puts there."""
    return cast(T, Setting(default, parse, help_text))
