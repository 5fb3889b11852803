"""Counters of the watcher since it started: masks set, drift by cause, how long threads waited for their mask.

Pure: no clock, no lock (one thread counts, the same one reads). The reconciler owns the only one; procevents, sources
and the daemon add to it. What stays out: the state of this moment (status.collector), and the metrics' names
(status.prometheus).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from vmpin.domain.model import ThreadRole

#: Upper bounds in seconds: a thread is placed within 500 µs where its creation is reported, else within a resync (10
#: s).
BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Counts of durations, by ascending upper `bounds` (inclusive, seconds), and one more for those above all."""

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
        """Count one duration. One below zero (clocks of two sources) counts as zero."""
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[float, int]]:
        """How many durations were at most each bound; the last bound is infinity, with all of them."""
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
    """Plain attributes, which only grow."""

    def __init__(self) -> None:
        #: Masks set, by the thread's role and the outcome (the value of an `apply.Outcome`).
        self.pins: Counter[tuple[ThreadRole, str]] = Counter()
        #: Repairs, by cause (the value of a `drift.Cause`).
        self.drift: Counter[str] = Counter()
        #: CPUs given back to runc containers (policy.runc_repair), by outcome: done, failed.
        self.repairs: Counter[str] = Counter()
        #: Threads found to be contested with another program.
        self.contentions = 0
        #: From a thread's creation until it was placed.
        self.placement_latency = Histogram()
        #: How long threads could run outside of their sandbox, of those that could.
        self.outside = Histogram()
        #: From the receipt of an event until the masks that follow from it were set.
        self.pin_latency = Histogram()
        #: Events of the proc connector, by kind: fork, exec, exit, comm.
        self.proc_events: Counter[str] = Counter()
        #: How often the proc connector's buffer overflowed, so that everything was read again.
        self.overruns = 0
        #: Hooks' messages, by outcome: taken, refused.
        self.hooks: Counter[str] = Counter()
        #: When the last of those taken was sent, by CLOCK_BOOTTIME in seconds (the system's clock may be set).
        self.last_hook_at: float | None = None
        #: Annotations of a pod's author that contradicted the runtime and were not believed.
        self.disputed = 0
        #: How late timers of the watcher's event loop fired, where that is measured.
        self.loop_lag = Histogram()
        #: Passes, by their trigger: hook, nri, files, resync, settle, qmp, request, birth.
        self.passes: Counter[str] = Counter()
        #: How long the passes took.
        self.pass_seconds = Histogram()
