"""A key of the configuration, and the parsers of values: each takes a value from the file, the environment or a flag.

A parser raises ValueError with what is wrong about the value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from vmpin.bounded import parse_real, parse_whole, real, whole
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.named_tuple import NamedTuple


def one_of(*names: str) -> Callable[[object], str]:
    """The parser of a choice. YAML reads a bare off as false."""

    def parse(value: object) -> str:
        name = "off" if value is False else value
        if name not in names:
            raise ValueError(f"is neither {names[0]} nor {names[1]}" if len(names) == 2 else
                             f"is none of {', '.join(names)}")
        return str(name)

    return parse


def _whole(value: object, most: int) -> int | None:
    """A number from 1 to `most`, as it is or as text; None for anything else."""
    return parse_whole(value, most, 1) if isinstance(value, str) else whole(value, most, 1)


def path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value).startswith("/") or "\0" in str(value):
        raise ValueError("is not an absolute path")
    return Path(value)


def path_or_unset(value: object) -> Path | None:
    return None if value is None or value == "" else path(value)


def cpus(value: object) -> CpuSet:
    if value is None:
        return EMPTY
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("is not a CPU list")
    return CpuSet.parse(str(value))


def pool(value: object) -> CpuSet | None:
    return cpus(value) or None


#: More than any number of seconds that may be given: what is beyond is no number.
_BEYOND = 1e12


def seconds(value: object) -> float:
    number = parse_real(value, _BEYOND) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError("is not a number of seconds")
    checked = real(number, 86400, 0.1)
    if checked is None:
        raise ValueError("is not between 0.1 and 86400 seconds")
    return checked


def count(value: object) -> int:
    number = _whole(value, 999999)
    if number is None:
        raise ValueError("is not a number from 1 to 999999")
    return number


def token(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or any(char.isspace() for char in value):
        raise ValueError("has to be text without blanks")
    return value


def group(value: object) -> str:
    """A group's name, or its number as text."""
    return str(value) if type(value) is int and 0 <= value < 0xFFFFFFFF else token(value)


def flag(value: object) -> bool:
    meaning = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if str(value).lower() not in meaning:
        raise ValueError("is neither true nor false")
    return meaning[str(value).lower()]


def nri(value: object) -> str:
    try:
        return "auto" if value == "auto" else "on" if flag(value) else "off"
    except ValueError:
        raise ValueError("is none of auto, on, off") from None


def port(value: object) -> int:
    """A port of vsock: 32 bits. 1024 to 1027 are Kata's."""
    number = _whole(value, 0xFFFFFFFE)
    if number is None:
        raise ValueError("is not a port number")
    if 1024 <= number <= 1027:
        raise ValueError("is a port of Kata's own")
    return number


T = TypeVar("T")


class Setting(NamedTuple):
    """One key. `parse` makes a value of what a source has, and raises ValueError with what is wrong about it."""

    default: object
    parse: Callable[[object], object]
    help: str
    key: str = ""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "VMPIN_" + self.key.replace(".", "_").upper()


def setting(default: T, parse: Callable[[object], T], help_text: str) -> T:
    """A field's place in the table; typed as the value that `load` puts there."""
    return cast(T, Setting(default, parse, help_text))
