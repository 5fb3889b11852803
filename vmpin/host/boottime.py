"""When a report arrived: nanoseconds of CLOCK_BOOTTIME, by which reports are ordered.

The wall clock is stepped (NTP, an operator, a resumed VM); this one goes on over restarts of the watcher, and starts
again with the machine, as the state file does. /proc counts start times on it, too.
"""

from __future__ import annotations

import time


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def of_wall(wall: int, not_before: int = 0) -> int:
    """The moment of a time of the wall clock (CLOCK_REALTIME, ns), such as a file's. Only as good as the clock: it may
    have been stepped since. So it is never later than now, nor earlier than `not_before`, the last moment (ns of
    CLOCK_BOOTTIME) at which what it belongs to had not happened yet."""
    clock, latest = time.time_ns(), now()  # in this order: a pause between them never dates it back
    return max(not_before, min(latest, wall - clock + latest), 0)


def wall_offset() -> int:
    """Return the wall clock's time minus the time since boot, in ns, as the clock is now."""
    return time.time_ns() - now()
