"""Counts of a sandbox's new threads: how many the kernel reported, and how long they waited for their CPUs.

Pure. What stays out: who counts (procevents.latency) and the histograms over all sandboxes (domain.counters).
"""

from __future__ import annotations


class NewbornCounts:
    """Of one sandbox, since its VMM was found first. All times in seconds."""

    def __init__(self, reported: int = 0, born_inside: int = 0, ended: int = 0) -> None:
        #: Threads whose creation the kernel reported, main threads at their program's start among them.
        self.reported = reported
        #: Of those, the ones that were within their sandbox's CPUs; and that ended before their mask could be read.
        self.born_inside = born_inside
        self.ended = ended
        #: Threads that were allowed outside, reported or found by a pass, for how long in all and at most.
        self.outside = 0
        self.outside_sum = 0.0
        self.outside_max = 0.0
        #: Threads whose creation and placing are both dated, how long that took in all and at most. One that was in
        #: place from the start counts from its creation until its mask was read.
        self.placed = 0
        self.placed_sum = 0.0
        self.placed_max = 0.0

    def count_outside(self, seconds: float) -> None:
        """A thread was allowed outside."""
        self.outside += 1
        self.outside_sum += seconds
        self.outside_max = max(self.outside_max, seconds)

    def count_in_place(self, seconds: float) -> None:
        """A thread was in place so long after its creation."""
        self.placed += 1
        self.placed_sum += seconds
        self.placed_max = max(self.placed_max, seconds)

    def data(self) -> dict[str, object]:
        """For the status; times in milliseconds."""
        return {"told": self.reported, "inside": self.born_inside, "ended": self.ended, "outside": self.outside,
                "outside_ms": {"sum": _ms(self.outside_sum), "max": _ms(self.outside_max)},
                "placed": self.placed,
                "placed_ms": {"mean": _ms(self.placed_sum / self.placed) if self.placed else None,
                              "max": _ms(self.placed_max)}}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
