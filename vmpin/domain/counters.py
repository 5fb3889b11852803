"""What the watcher has counted since it started: masks set, drift by cause, how long threads waited for their place.

Pure: no clock, no lock (one thread counts, the same one reads). `Reconciler.tally` is the only one there is. What
stays out: what is so at this moment (snapshot), and the names that metrics have for it (metrics).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from vmpin.domain.model import ThreadRole

#: Upper bounds in seconds: a thread is placed within 500 µs where birth is seen, within a resync (10 s) elsewhere.
BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Counts of durations, by ascending upper `bounds` (inclusive, seconds) and one more for what is above all."""

    __slots__ = ("bounds", "counts", "sum", "total")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise ValueError("bounds do not ascend")
        self.bounds = bounds
        #: One for each bound, and for what is above the last.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one. What is below zero (clocks of two sources) counts as zero."""
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[float, int]]:
        """Of every bound how many were at most that; the last is infinity, with all of them."""
        found, so_far = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found

    def quantile(self, q: float) -> float | None:
        """The smallest bound that a share of `q` (0 to 1) was within: infinity above the last, None without any."""
        if not self.total:
            return None
        return next(bound for bound, count in self.cumulative() if count and count >= q * self.total)


class Counters:
    """Plain attributes that whoever knows counts up. They only grow."""

    def __init__(self) -> None:
        #: Masks set, by the thread's role and what became of it (the value of an `apply.Outcome`).
        self.pins: Counter[tuple[ThreadRole, str]] = Counter()
        #: Repairs, by the cause as far as it is known (drift).
        self.drift: Counter[str] = Counter()
        #: CPUs given back to runc containers (policy.runc_repair), by what became of it: done, failed.
        self.repairs: Counter[str] = Counter()
        #: Fights with another writer that were noticed.
        self.contentions = 0
        #: From a thread's birth until it was placed.
        self.placement_latency = Histogram()
        #: How long threads were allowed to run outside of their sandbox, of those that were.
        self.leaks = Histogram()
        #: From an event's coming in until the masks that follow from it were set.
        self.pin_latency = Histogram()
        #: What the proc connector told, by kind: fork, exec, exit, comm.
        self.proc_events: Counter[str] = Counter()
        #: How often the proc connector's buffer overflowed, so that everything was read again.
        self.overruns = 0
        #: Hooks' messages, by what became of them: taken, refused.
        self.hooks: Counter[str] = Counter()
        #: When the last of those taken was sent, by CLOCK_BOOTTIME in seconds (the system's clock may be set).
        self.last_hook_at: float | None = None
        #: Annotations of a pod's author that contradicted the runtime and were not believed.
        self.disputed = 0
        #: How much later than it was due the watcher's event loop did something, as far as that is measured.
        self.loop_lag = Histogram()
        #: Passes, by what they were made for: hook, nri, files, resync, settle, qmp, request, birth.
        self.passes: Counter[str] = Counter()
        #: How long the passes took.
        self.pass_seconds = Histogram()
