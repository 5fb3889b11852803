"""Liveness and readiness of the watcher, from its last pass and the health of its sources.

Pure. Alive: its last resync is recent enough. Ready: alive, and every needed source is up."""

from __future__ import annotations

from vmpin.named_tuple import NamedTuple

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
