"""Foreign time between two readings of an owner's exclusive CPUs.

The kernel counts each CPU's idle time and each thread's run time. Time in which a CPU was neither idle nor ran the
owner's threads is foreign: other threads had it, the kernel, or interrupts. So no foreign thread has to be read. Pure;
times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vmpin.cpuset import CpuSet
from vmpin.named_tuple import NamedTuple


class CpuTimes(NamedTuple):
    """Times of one CPU since boot: idle (including waiting for a disk), in interrupts, taken by the hypervisor."""

    idle: int
    interrupts: int
    steal: int


class CpuReading(NamedTuple):
    """An owner's exclusive CPUs at one moment (CLOCK_MONOTONIC). A CPU that is offline is left out."""

    at: int
    cpus: Mapping[int, CpuTimes]


class OwnRun:
    """Run time of an owner's threads since the last reading, by how certain it is that it was on exclusive CPUs of the
    owner."""

    __slots__ = ("certain", "inside", "likely", "outside")

    def __init__(self) -> None:
        self.certain: dict[int, int] = {}  #: By exclusive CPU: it was there.
        self.inside = 0  #: On the exclusive CPUs, unknown on which.
        self.likely = 0  #: Last seen on one of them, and allowed elsewhere.
        self.outside = 0  #: Last seen elsewhere, and allowed on one of them.

    def add(self, spent: int, cpu: int, stayed: bool, place: CpuSet | None, cpus: CpuSet) -> None:
        """Count run time of a thread.
        :param cpu: where it was last. :param stayed: the kernel has counted no change of CPU since the last reading.
        :param place: the CPUs that it was given; None where it was left alone. :param cpus: the exclusive ones."""
        exclusive = cpu in cpus
        if stayed:
            if exclusive:
                self.certain[cpu] = self.certain.get(cpu, 0) + spent
        elif exclusive and place is not None and place <= cpus:
            self.inside += spent
        elif exclusive:
            self.likely += spent
        elif place is None or not cpus.isdisjoint(place):
            self.outside += spent

    def add_unplaced(self, spent: int, confined: bool) -> None:
        """Count run time whose CPU is unknown: of threads that ended between two readings, of a whole container.
        :param confined: it was on the exclusive CPUs alone."""
        if confined:
            self.inside += spent
        else:
            self.likely += spent


class Interval(NamedTuple):
    """The time between two readings. `foreign` is by CPU, and may be below zero by the measurement error; its sum may
    in truth be smaller by `less`, or larger by `more` (with the same error)."""

    elapsed: int
    foreign: Mapping[int, int]
    less: int
    more: int
    interrupts: int
    steal: int

    @property
    def seen(self) -> int:
        """CPU time of all the CPUs."""
        return self.elapsed * len(self.foreign)


def interval(before: CpuReading, after: CpuReading, own: OwnRun) -> Interval | None:
    """Compare two readings of the same owner. None where they are not of the same CPUs, or a counter went back, as
    after a CPU was offline."""
    elapsed = after.at - before.at
    if elapsed <= 0 or before.cpus.keys() != after.cpus.keys() or not after.cpus:
        return None
    busy, interrupts, steal = {}, 0, 0
    for cpu, now in after.cpus.items():
        then = before.cpus[cpu]
        idle, taken = now.idle - then.idle, now.steal - then.steal
        if idle < 0 or taken < 0 or now.interrupts < then.interrupts:
            return None
        busy[cpu] = elapsed - idle - taken
        interrupts += now.interrupts - then.interrupts
        steal += taken
    rest = busy if not own.certain else {cpu: spent - own.certain.get(cpu, 0) for cpu, spent in busy.items()}
    floating = own.inside + own.likely
    # Of a thread that moves, no file shows on which of the CPUs it ran: it is spread over those that were busy. The
    # sum of all CPUs does not depend on that.
    foreign = rest
    if floating:  # which an idle owner has not
        parts = spread(floating, [max(0, spent) for spent in rest.values()])
        foreign = {cpu: spent - part for (cpu, spent), part in zip(rest.items(), parts, strict=True)}
    # Whether a thread's run time includes time that the hypervisor took depends on the kernel's configuration.
    return Interval(elapsed, foreign, own.outside, own.likely + steal, interrupts, steal)


def spread(amount: int, weights: Sequence[int]) -> list[int]:
    """The amount in whole parts by weight, evenly where all weights are 0; their sum is the amount."""
    total = sum(weights)
    parts, given, seen = [], 0, 0
    for index, weight in enumerate(weights, start=1):
        seen += weight
        upto = amount * seen // total if total else amount * index // len(weights)
        parts.append(upto - given)
        given = upto
    return parts
