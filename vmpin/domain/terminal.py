"""Text from outside made safe for a terminal. Pure; used by every command that prints names of pods, threads or
files."""

from collections.abc import Mapping
from typing import Any


def printable(text: object) -> str:
    """The text with each character that could control a terminal, or that XML cannot hold, as \\xNN."""
    if (found := str(text)).isprintable():
        return found
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in found)


def excerpt(value: object, most: int) -> str:
    """A text of another program, printable and of at most `most` characters (… for the rest); "" for None."""
    if value is None:
        return ""
    text = printable(str(value)[:most + 1])
    return text if len(text) <= most else f"{text[:most - 1]}…"


def short_id(name: str) -> str:
    """The first 13 digits of a runtime's 64-digit id; any other name unchanged."""
    return name[:13] if len(name) == 64 else name


def pod_name(pod: Mapping[str, Any] | None, unknown: str = "-") -> str:
    """`namespace/pod` of a pod in the status document."""
    return f"{pod['namespace']}/{pod['name']}" if pod else unknown
