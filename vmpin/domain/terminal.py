"""Texts: those from outside made safe for a terminal; counts, ages and names as sentences have them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

#: The reasons of sandboxes that are off and rightly have no thread here.
REMOTE = "its VM runs on another machine (Kata's remote hypervisor)"
ENDED = "it has ended, and the runtime has not removed it yet"
RIGHTLY_ABSENT = frozenset((REMOTE, ENDED))


def printable(text: object) -> str:
    """The text with each character that could control a terminal, or that XML cannot hold, as \\xNN."""
    if (string := str(text)).isprintable():
        return string
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in string)


def excerpt(value: object, most: int) -> str:
    """A text of another program, printable and of at most `most` characters (… for the rest); "" for None."""
    if value is None:
        return ""
    text = printable(str(value)[:most + 1])
    return text if len(text) <= most else f"{text[:most - 1]}…"


def short_id(name: str) -> str:
    """The first 12 digits of a runtime's 64-digit id; any other name unchanged."""
    return name[:12] if len(name) == 64 else name


def number_of(count: int, noun: str, adjective: str = "") -> str:
    """`1 thread`, `2 threads`; a verb may follow the noun, and more text: `thread is misplaced`, `threads are
    misplaced`. :param adjective: before the noun."""
    noun, _, rest = noun.partition(" ")
    verb, space, more = rest.partition(" ")
    if count != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("ry") else noun + ("es" if noun.endswith(("x", "s", "ch")) else "s")
        verb = {"is": "are", "was": "were", "has": "have", "does": "do"}.get(verb, verb.removesuffix("s"))
    return " ".join(filter(None, (str(count), adjective, noun, verb + space + more)))


_SINCE = r"\bsince (\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\d(?:\.\d{1,6})?Z)"


def human_age(seconds: float) -> str:
    """A span of time as kubectl shows it (`118s`, `6m10s`, `2d4h`): the longer, the coarser; never negative.
    Source: k8s.io/apimachinery, util/duration."""
    whole = max(int(seconds), 0)
    for unit, size, finer, first, fine in (("d", 86400, "h", 2, 8), ("h", 3600, "m", 3, 8), ("m", 60, "s", 2, 10)):
        count, rest = divmod(whole, size)
        if count >= first:
            more = rest // {"h": 3600, "m": 60, "s": 1}[finer] if count < fine else 0
            return f"{count}{unit}{more}{finer}" if more else f"{count}{unit}"
    return f"{whole}s"


def age_at(since: str | None, now: datetime) -> str:
    """The age of a time stamp, as kubectl has it; "-" where it is not known."""
    return "-" if since is None else human_age((now - now.fromisoformat(since)).total_seconds())


def with_ages(sentence: str, now: datetime) -> str:
    """The ages of the time stamps in a sentence: "6m10s ago" for "since 2026-01-02T03:04:05.678Z"."""
    return re.sub(_SINCE, lambda match: f"{age_at(match[1], now)} ago", sentence)


def as_written(value: object) -> str:
    """A plain value of the configuration as its file has it: true, 10, the text; "" for None."""
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def pod_name(pod: Mapping[str, Any] | None, unknown: str = "-") -> str:
    """`namespace/pod` of a pod in the status document."""
    return f"{pod['namespace']}/{pod['name']}" if pod else unknown
