"""Liveness and readiness of the watcher, from its last pass and the health of its sources.

Pure. Alive: its last resync is recent enough. Ready: alive, and every needed source is up."""

from collections.abc import Iterable
from typing import NamedTuple

#: The watcher is alive until this many `watch.resync_seconds`, and at least this many seconds, have passed since its
#: last resync: a failing source is started again after half a minute at the latest.
RESYNCS, AT_LEAST = 3.0, 60.0


class SourceHealth(NamedTuple):
    """One source. Without a `needed` source the watcher is not ready; `why` has details, e.g. why it is down."""

    name: str
    up: bool
    needed: bool
    why: str = ""


def alive(age: float, resync_seconds: float) -> SourceHealth:
    """The health of the passes. :param age: seconds since the last resync."""
    limit = max(RESYNCS * resync_seconds, AT_LEAST)
    return SourceHealth("passes", age <= limit, True, f"the last {age:.1f} s ago, at most {limit:.0f} s")


def page(checks: Iterable[SourceHealth]) -> tuple[bool, str]:
    """(True if every needed check is up, a line for each check in the format of Kubernetes: `[+]nri ok`). A check that
    is down and not needed is shown, and does not count."""
    lines, well = [], True
    for check in checks:
        well = well and (check.up or not check.needed)
        why = f": {_plain(check.why)}" if check.why else ""
        result = "ok" if check.up else "failed" if check.needed else "down, not needed"
        lines.append(f"[{'+' if check.up else '-' if check.needed else '~'}]{check.name} {result}{why}")
    return well, "\n".join([*lines, "ok" if well else "failed", ""])


def _plain(text: str) -> str:
    """The first 200 characters, without those that control a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text[:200])
