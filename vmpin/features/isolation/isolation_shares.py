"""What the sums of an owner's period mean: shares of its CPUs' time, with bounds, its worst minute, the
foreign programs.

Pure; milliseconds of CPU time but where another unit is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from vmpin.features.isolation.isolation_books import MINUTE, ForeignProgram, Owner
from vmpin.named_tuple import NamedTuple

_MS = 10**6


#: The key of foreign time by CPU for CPUs that are not the owner's any more.
FORMER = -1


class Account(NamedTuple):
    """Sums of the columns of the same names (isolation_books)."""

    watched: int = 0
    seen: int = 0
    foreign: int = 0
    less: int = 0
    more: int = 0
    slack: int = 0
    interrupts: int = 0
    steal: int = 0
    kernel: int = 0
    others: int = 0
    without: int = 0

    @property
    def bounds(self) -> tuple[int, int]:
        """Between these the foreign time was: never below 0, nor above what was seen."""
        most = max(0, self.seen - self.steal)
        low = min(most, max(0, self.foreign - self.less - self.slack))
        return low, max(low, min(most, self.foreign + self.more + self.slack))


class Shares(NamedTuple):
    """How the time of an owner's CPUs was spent: the first six add up to all of it. What it `had` for itself, running
    or idle, lies between `least` and `most`: time that was not seen may have been anything."""

    had: int
    kernel: int
    others: int
    unidentified: int
    steal: int
    unseen: int
    least: int
    most: int

    @property
    def total(self) -> int:
        return self.had + self.kernel + self.others + self.unidentified + self.steal + self.unseen

    def part(self, spent: int) -> float:
        """A share of all the time; of no time, all was the owner's."""
        return spent / self.total if self.total else 1.0 if spent == self.had else 0.0


def shares(account: Account, unseen: int) -> Shares:
    """Sum an account up into shares of its CPU time. :param unseen: CPU time without readings."""
    steal = min(account.steal, account.seen)
    low, high = account.bounds
    usable = account.seen - steal
    foreign = min(high, max(low, account.foreign))
    kernel = min(foreign, account.interrupts + account.kernel)
    others = min(foreign - kernel, account.others)
    return Shares(usable - foreign, kernel, others, foreign - kernel - others, steal, unseen, usable - high,
                  usable - low + unseen)


class Slo(StrEnum):
    """How the share compares with an objective."""

    KEPT = "kept"
    MISSED = "missed"
    #: The objective lies between the bounds of the share.
    UNDECIDED = "undecided"


def compare(least: int, most: int, total: int, objective: float) -> Slo:
    """Compare what the owner had of the total with an objective.
    :param objective: the share (0 to 1) that the owner should have had at least."""
    if not total or least >= objective * total:
        return Slo.KEPT
    return Slo.MISSED if most < objective * total else Slo.UNDECIDED


class Period(NamedTuple):
    """The part of a period that an owner's books cover, by its minutes (the last included), and when it began and
    ended (CLOCK_BOOTTIME, ns)."""

    first: int
    last: int
    begin: int
    end: int


def period(owner: Owner, oldest: int, since: int, now: int) -> Period | None:
    """The whole minutes of an owner since a time (CLOCK_BOOTTIME, ns), up to now or to the last reading of an owner
    that has ended. None where the owner had ended before. :param oldest: the first minute that the books have."""
    end = now if owner.ended is None else owner.until
    first, last = max(owner.since // MINUTE, oldest, since // MINUTE), end // MINUTE
    begin = max(first * MINUTE, owner.since)
    return None if last < first or end < begin else Period(first, last, begin, end)


class WorstMinute(NamedTuple):
    """The minute in which the owner missed the largest share of its CPUs' time. `cpu` had most of that, None where
    that is unknown; `spent` is the time of `program`, if a scan
    found one."""

    minute: int
    account: Account
    cpu: int | None
    program: ForeignProgram | None
    spent: int


class Figures(NamedTuple):
    """What the books have of an owner's period. `account` counts the imprecision of series that began before it;
    `by_cpu` is foreign time by CPU, `by_program` run time by program, the most first. `bins` are equal parts of whole
    minutes: when each begins and ends (CLOCK_BOOTTIME, ns), and its sums."""

    owner: Owner
    period: Period
    account: Account
    by_cpu: Mapping[int, int]
    by_program: Mapping[ForeignProgram, int]
    worst: WorstMinute | None
    bins: Sequence[tuple[int, int, Account]]

    @property
    def unwatched(self) -> int:
        """Elapsed time without readings."""
        return max(0, (self.period.end - self.period.begin) // _MS - self.account.watched)

    @property
    def unseen(self) -> int:
        """CPU time without readings."""
        return self.unwatched * max(1, len(self.owner.cpus))

