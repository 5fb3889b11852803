"""Whether the watcher lives and whether it is ready, from what is known of its passes and sources.

Pure. Alive: it looked at everything lately; that it answers at all says that its loop turns. Ready: alive, and what
it has to hear is there. What stays out: where the facts come from, and who asks (exporter).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: Of `watch.resync_seconds` so many may pass, and at least so many seconds: a failing source is started again after
#: half a minute at the latest.
RESYNCS, AT_LEAST = 3.0, 60.0


class SourceHealth(NamedTuple):
    """One source. `needed`: without it the watcher is not ready; `why` says more, as of one that is down."""

    name: str
    up: bool
    needed: bool
    why: str = ""


def alive(age: float | None, resync_seconds: float) -> SourceHealth:
    """:param age: seconds since everything was last looked at; None for never."""
    limit = max(RESYNCS * resync_seconds, AT_LEAST)
    if age is None:
        return SourceHealth("passes", False, True, "none yet")
    return SourceHealth("passes", age <= limit, True, f"the last {age:.1f} s ago, at most {limit:.0f} s")


def page(checks: Iterable[SourceHealth]) -> tuple[bool, str]:
    """Whether all is well, and a line for each check as Kubernetes' own endpoints have it: `[+]nri ok`. What is down
    and not needed is shown, and no matter."""
    lines, well = [], True
    for check in checks:
        well = well and (check.up or not check.needed)
        why = f": {_plain(check.why)}" if check.why else ""
        word = "ok" if check.up else "failed" if check.needed else "down, not needed"
        lines.append(f"[{'+' if check.up else '-' if check.needed else '~'}]{check.name} {word}{why}")
    return well, "\n".join([*lines, "ok" if well else "failed", ""])


def _plain(text: str) -> str:
    """In one line, with nothing in it that steers a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text[:200])
