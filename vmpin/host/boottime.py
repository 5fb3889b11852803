"""Timestamps of reports: nanoseconds of CLOCK_BOOTTIME, by which reports are ordered.

The wall clock can be stepped (NTP, an operator, a resumed VM). CLOCK_BOOTTIME continues across restarts of the watcher
and starts at zero when the machine boots, as the state file does. The start times in /proc are on the same clock.
"""

from __future__ import annotations

import time


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def of_wall(wall: int, not_before: int) -> int:
    """Convert a wall clock time (CLOCK_REALTIME, ns), such as a file's mtime, to CLOCK_BOOTTIME. The wall clock may
    have been stepped since, so the result is clamped: at most now, at least `not_before`.
    :param not_before: a time (CLOCK_BOOTTIME, ns) at which the event had certainly not happened yet."""
    clock, latest = time.time_ns(), now()  # in this order: a delay between them never makes the result too early
    return max(not_before, min(latest, wall - clock + latest), 0)


def wall_offset() -> int:
    """Return the wall clock's time minus the time since boot, in ns, as the clock is now."""
    return time.time_ns() - now()
