"""What the books of an owner mean over a period: shares of its CPUs' time, with bounds, its worst minute, its thieves.

Pure; milliseconds of CPU time but where another unit is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from vmpin.features.isolation.isolation_books import COLUMNS, FORMER, MINUTE, OwnerBook, Thief

_MS = 10**6


class Account(NamedTuple):
    """Sums of the columns of the same names."""

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

    def plus(self, other: Account) -> Account:
        return Account(*map(sum, zip(self, other, strict=True)))

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


def shares(found: Account, unseen: int) -> Shares:
    """Sum an account up into shares of its CPU time. :param unseen: CPU time without readings."""
    steal = min(found.steal, found.seen)
    low, high = found.bounds
    usable = found.seen - steal
    foreign = min(high, max(low, found.foreign))
    kernel = min(foreign, found.interrupts + found.kernel)
    others = min(foreign - kernel, found.others)
    return Shares(usable - foreign, kernel, others, foreign - kernel - others, steal, unseen, usable - high,
                  usable - low + unseen)


class Slo(StrEnum):
    """How the share compares with an objective."""

    KEPT = "kept"
    MISSED = "missed"
    #: The objective lies between the bounds of the share.
    UNDECIDED = "undecided"


def compare(found: Shares, objective: float) -> Slo:
    """Compare the owner's share with an objective.
    :param objective: the share (0 to 1) that the owner should have had at least."""
    if not found.total or found.least >= objective * found.total:
        return Slo.KEPT
    return Slo.MISSED if found.most < objective * found.total else Slo.UNDECIDED


class Period(NamedTuple):
    """The part of a period that an owner's book covers, by its minutes (the last included), and when it began and
    ended (CLOCK_BOOTTIME, ns)."""

    first: int
    last: int
    begin: int
    end: int


def period(book: OwnerBook, since: int, now: int) -> Period | None:
    """The whole minutes of a book since a time (CLOCK_BOOTTIME, ns), up to now or to the last reading of an owner that
    has ended. None where the owner had ended before."""
    end = now if book.ended is None else book.until
    first = max(book.first, since // MINUTE)
    last = min(end // MINUTE, book.first + max(1, len(book)) - 1 if book.ended is not None else end // MINUTE)
    begin = max(first * MINUTE, book.since)
    return None if last < first or end < begin else Period(first, last, begin, end)


def account_of(book: OwnerBook, first: int, last: int) -> Account:
    """The sums of some minutes. Series of readings that began before are imprecise once more."""
    low, high = max(0, first - book.first), last - book.first + 1
    found = Account(*(sum(book.columns[name][low:high]) for name in COLUMNS[:10]))
    return found._replace(slack=found.slack + slack_before(book, low))


def slack_before(book: OwnerBook, index: int) -> int:
    """The imprecision (ms) of the series that an earlier minute began."""
    return next((each for each in reversed(book.columns["slack"][:index]) if each), 0)


def unseen_in(book: OwnerBook, found: Account, length: int) -> int:
    """CPU time (ms) of a period without readings. :param length: of the period (ns)."""
    return max(0, length // _MS - found.watched) * max(1, len(book.cpus))


def foreign_by_cpu(book: OwnerBook, first: int, last: int) -> dict[int, int]:
    """Sum up foreign time by CPU that is, or was, the owner's; those that are not any more together, as FORMER."""
    low, high = max(0, first - book.first), last - book.first + 1
    return {cpu: max(0, sum(column[low:high])) for cpu, column in sorted(book.by_cpu.items())
            if cpu != FORMER or any(column[low:high])}


def thefts(book: OwnerBook, first: int, last: int) -> dict[Thief, int]:
    """Sum up the time of each minute's foremost thief, and of all that were met in the last one; the most first."""
    minute, met = book.met_last
    found = {thief: spent // _MS for thief, spent in met.items()} if first <= minute <= last else {}
    for index in _indices(book, first, last):
        if (number := book.columns["thief"][index]) and not (met and book.first + index == minute):
            thief = book.thieves[number - 1]
            found[thief] = found.get(thief, 0) + book.columns["theft"][index]
    return dict(sorted(found.items(), key=lambda each: -each[1]))


class WorstMinute(NamedTuple):
    """The minute in which the owner missed the largest share of its CPUs' time. `cpu` had most of that, None where
    that is unknown; `theft` is what `thief` had, if one was met."""

    minute: int
    account: Account
    cpu: int | None
    thief: Thief | None
    theft: int


def worst_minute(book: OwnerBook, first: int, last: int) -> WorstMinute | None:
    """None where no minute has foreign time that is more than what readings are imprecise by."""
    foreign, seen, steal = (book.columns[name] for name in ("foreign", "seen", "steal"))
    indices = [index for index in _indices(book, first, last) if seen[index] > 0]
    if not indices:
        return None
    worst = max(indices, key=lambda index: (foreign[index] + steal[index]) / seen[index])
    account = Account(*(book.columns[name][worst] for name in COLUMNS[:10]))
    account = account._replace(slack=account.slack or slack_before(book, worst))
    if not account.bounds[0] and account.steal <= account.slack:
        return None
    by_cpu = {cpu: column[worst] for cpu, column in book.by_cpu.items() if cpu != FORMER}
    number = book.columns["thief"][worst]
    return WorstMinute(book.first + worst, account, max(by_cpu, key=by_cpu.__getitem__) if by_cpu else None,
                       book.thieves[number - 1] if number else None, book.columns["theft"][worst])


def bins(book: OwnerBook, found: Period, most: int) -> list[tuple[int, int, Account]]:
    """The period in at most so many equal parts of whole minutes: the first minute of each, how many whole ones it
    has (the last minute of the period is not over), and its sums."""
    step = -(-(found.last - found.first + 1) // most)
    starts = range(found.first, found.last + 1, step)
    return [(minute, min(step, found.last - minute), _plain_account(book, minute, min(found.last, minute + step - 1)))
            for minute in starts]


def _plain_account(book: OwnerBook, first: int, last: int) -> Account:
    low, high = max(0, first - book.first), last - book.first + 1
    return Account(*(sum(book.columns[name][low:high]) for name in COLUMNS[:10]))


def _indices(book: OwnerBook, first: int, last: int) -> Iterable[int]:
    return range(max(0, first - book.first), min(len(book), last - book.first + 1))
