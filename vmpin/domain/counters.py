"""Counters of the watcher since its start: masks set, drift by cause, delays of placement, and each sandbox's new
threads.

Pure: no clock, no lock (counted and read by one thread).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Container
from itertools import accumulate

from vmpin.domain.model import SandboxId, ThreadRole

#: Upper bounds in seconds, inclusive: a thread is placed within 500 µs if its creation is reported, otherwise at a
#: resync.
BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Counts of durations, by BOUNDS."""

    __slots__ = ("counts", "sum", "total")

    def __init__(self) -> None:
        #: One count per bound, and one for durations above the last bound.
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration. A negative one (two sources' clocks differ) counts as zero."""
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[float, int]]:
        """Return (bound, number of durations up to the bound) pairs; the last bound is infinity."""
        return list(zip((*BOUNDS, float("inf")), accumulate(self.counts), strict=True))


class Durations:
    """The number of durations, their sum and the longest one, in seconds."""

    __slots__ = ("count", "longest", "sum")

    def __init__(self) -> None:
        self.count, self.sum, self.longest = 0, 0.0, 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.sum += seconds
        self.longest = max(self.longest, seconds)


class NewbornCounts:
    """Counts of one sandbox's new threads since its VMM was first seen."""

    def __init__(self) -> None:
        #: Threads whose creation was reported by the kernel, including main threads at exec.
        self.reported = 0
        #: Those of them created within their sandbox's CPUs; and those that ended before their mask could be read.
        self.born_inside = self.ended = 0
        #: For how long threads could run outside their sandbox (reported or found by a pass); only those that could.
        self.outside = Durations()
        #: From a thread's creation until it was placed, where both are dated; until its mask was read, where it was in
        #: place from the start.
        self.placed = Durations()

    def data(self) -> dict[str, object]:
        """Return the counts for the status, times in milliseconds."""
        outside, placed = self.outside, self.placed
        mean = _ms(placed.sum / placed.count) if placed.count else None
        return {"reported": self.reported, "inside": self.born_inside, "ended": self.ended, "outside": outside.count,
                "outside_ms": {"sum": _ms(outside.sum), "max": _ms(outside.longest)},
                "placed": placed.count, "placed_ms": {"mean": mean, "max": _ms(placed.longest)}}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


class Counters:
    """The watcher's counters; they only grow, except for those by sandbox."""

    def __init__(self) -> None:
        #: Masks set, by the thread's role and the outcome (the value of an `apply.Outcome`).
        self.pins: Counter[tuple[ThreadRole, str]] = Counter()
        #: Masks that the kernel refused, by sandbox; only existing sandboxes.
        self.refused_by: Counter[SandboxId] = Counter()
        self.drift: Counter[str] = Counter()  #: Repairs, by cause (the value of a `drift.Cause`).
        self.contentions = 0  #: How often contention with another writer of the same masks began.
        self.contentions_by: Counter[SandboxId] = Counter()  #: The same by sandbox; only existing sandboxes.
        self.new_thread_latency = Histogram()  #: From a thread's creation until it was placed.
        #: For how long threads could run outside their sandbox; only those that could.
        self.allowed_outside = Histogram()
        #: From the receipt of an event until the resulting masks were set.
        self.pin_latency = Histogram()
        #: Events of the proc connector, by kind: fork, exec, exit, comm.
        self.proc_events: Counter[str] = Counter()
        #: How often the proc connector's buffer overflowed, so that everything was read again.
        self.overruns = 0
        self.hooks: Counter[str] = Counter()  #: Hooks' messages, by outcome: applied, refused.
        #: When the last accepted one was sent (CLOCK_BOOTTIME, s).
        self.last_hook_at: float | None = None
        #: Annotations by a pod's author that contradicted the runtime and were ignored.
        self.disputed = 0
        #: The same by sandbox; only existing sandboxes.
        self.disputed_by: Counter[SandboxId] = Counter()
        #: How late timers of the watcher's event loop fired, if measured.
        self.loop_lag = Histogram()
        #: Passes, by their trigger: hook, nri, files, resync, recheck, qmp, request, new_threads.
        self.passes: Counter[str] = Counter()
        self.pass_seconds = Histogram()  #: How long the passes took.

    def dispute(self, sandbox: SandboxId) -> None:
        """Count ignored annotations of a sandbox's pod."""
        self.disputed += 1
        self.disputed_by[sandbox] += 1

    def keep_only(self, sandboxes: Container[SandboxId]) -> None:
        """Remove the counts of other sandboxes."""
        for counted in (self.contentions_by, self.disputed_by, self.refused_by):
            for ended in [sandbox for sandbox in counted if sandbox not in sandboxes]:
                del counted[ended]
