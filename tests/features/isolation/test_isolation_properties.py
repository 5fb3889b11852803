"""Schedules of CPUs, simulated: what the readings make of them, against the truth."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from booked import Database, figures_between
from hypothesis import example, given
from hypothesis import strategies as st

from vmpin.cpuset import CpuSet
from vmpin.features.isolation.cpu_intervals import CpuReading, CpuTimes, OwnRun, interval, spread
from vmpin.features.isolation.isolation_books import MINUTE, OwnerBook
from vmpin.features.isolation.isolation_shares import Account, Figures, Slo, compare, shares

MS = 10**6
#: As the kernel prints idle time (10 ms), and how late the run time of a running thread is.
STEP, TICK = 10 * MS, 4
SLACK = 2 * STEP
EXCLUSIVE = CpuSet([0, 1])
CPUS = CpuSet([0, 1, 2])
#: Pinned one-to-one; floating on the exclusive CPUs; floating on those and others; elsewhere.
PLACES = (CpuSet([0]), CpuSet([1]), EXCLUSIVE, CPUS, CpuSet([2]))
IDLE, FOREIGN, INTERRUPT, STEAL = -1, -2, -3, -4
WORK = st.sampled_from([IDLE, FOREIGN, INTERRUPT, STEAL, *range(len(PLACES))])


class Slice(NamedTuple):
    """So many milliseconds with the same work on each CPU; and whether they end with a reading."""

    length: int
    work: tuple[int, ...]
    read: bool


SLICES = st.lists(st.builds(Slice, st.integers(1, 2000), st.tuples(WORK, WORK, WORK), st.booleans()), min_size=1,
                  max_size=60)


@dataclass
class Machine:
    """What the kernel counts, and the truth."""

    now: int = 0
    idle: Counter[int] = field(default_factory=Counter)
    interrupts: Counter[int] = field(default_factory=Counter)
    steal: Counter[int] = field(default_factory=Counter)
    ran: Counter[int] = field(default_factory=Counter)
    last: dict[int, int] = field(default_factory=dict)
    moves: Counter[int] = field(default_factory=Counter)
    running: dict[int, int] = field(default_factory=dict)
    foreign: int = 0

    def run(self, each: Slice) -> None:
        self.now += each.length * MS
        self.running = {}
        for cpu, work in enumerate(each.work):
            if work >= 0 and (work in self.running or cpu not in PLACES[work]):
                work = IDLE  # it runs on another CPU, or may not run here
            if work == IDLE:
                self.idle[cpu] += each.length * MS
            elif work == STEAL:
                self.steal[cpu] += each.length * MS
            elif work in (FOREIGN, INTERRUPT):
                self.interrupts[cpu] += each.length * MS * (work == INTERRUPT)
                self.foreign += each.length * MS * (cpu in EXCLUSIVE)
            else:
                self.ran[work] += each.length * MS
                self.moves[work] += self.last.get(work, cpu) != cpu
                self.last[work], self.running[work] = cpu, each.length

    def reading(self) -> CpuReading:
        return CpuReading(self.now, {cpu: CpuTimes(self.idle[cpu] // STEP * STEP, self.interrupts[cpu],
                                                   self.steal[cpu]) for cpu in EXCLUSIVE})


@dataclass
class Meters:
    """What a sampler has of each thread: run times are of the last tick."""

    ran: Counter[int] = field(default_factory=Counter)
    moves: Counter[int] = field(default_factory=Counter)

    def sample(self, machine: Machine) -> OwnRun:
        own = OwnRun()
        for thread, place in enumerate(PLACES):
            late = min(TICK - 1, machine.running.get(thread, 0)) * MS
            now = machine.ran[thread] - late
            if now > self.ran[thread]:
                own.add(now - self.ran[thread], machine.last[thread], machine.moves[thread] == self.moves[thread],
                        place, EXCLUSIVE)
                self.ran[thread], self.moves[thread] = now, machine.moves[thread]
        return own


def booked(slices: list[Slice]) -> tuple[OwnerBook, Machine]:
    """:returns: the book of everything up to the last reading, and the machine at that."""
    machine, meters = Machine(), Meters()
    book = OwnerBook("owner", 0)
    book.cpus = EXCLUSIVE
    book.begin(0, SLACK * len(EXCLUSIVE))
    before = machine.reading()
    for number, each in enumerate(slices, start=1):
        machine.run(each)
        if each.read or number == len(slices):
            after = machine.reading()
            found = interval(before, after, meters.sample(machine))
            assert found is not None
            book.book(machine.now, found)
            before = after
    return book, machine


def figures(book: OwnerBook) -> Figures:
    """Of all of it."""
    return figures_between(book, 0, book.until)


@example([Slice(1000, (3, IDLE, IDLE), False), Slice(10, (IDLE, IDLE, 3), True)])  # last seen elsewhere
@example([Slice(1000, (IDLE, IDLE, 3), False), Slice(10, (3, IDLE, IDLE), True)])  # last seen there
@given(SLICES)
def test_the_bounds_contain_what_really_was_foreign(slices: list[Slice]) -> None:
    book, machine = booked(slices)
    low, high = figures(book).account.bounds
    assert low <= machine.foreign // MS <= high


@given(SLICES)
def test_the_shares_add_up_to_all_the_time(slices: list[Slice]) -> None:
    book, machine = booked(slices)
    booked_sums = figures(book)
    found = shares(booked_sums.account, booked_sums.unseen)
    assert min(found) >= 0
    assert found.least <= found.had <= found.most
    assert abs(found.total - machine.now // MS * len(EXCLUSIVE)) <= 2 * len(slices)
    assert sum(map(found.part, found[:6])) <= 1 + 1e-9


@given(SLICES)
def test_threads_that_are_pinned_one_to_one_leave_no_doubt(slices: list[Slice]) -> None:
    pinned = [each._replace(work=tuple(work if work <= 1 else IDLE for work in each.work)) for each in slices]
    found = figures(booked(pinned)[0]).account
    assert (found.less, found.more) == (0, found.steal)


@given(SLICES)
def test_what_each_cpu_had_adds_up_to_what_the_owner_missed(slices: list[Slice]) -> None:
    book, _ = booked(slices)
    minutes = book.take()
    assert sum(minutes.by_cpu.values()) == sum(sums.get("foreign", 0) for sums in minutes.columns.values())


accounts = st.builds(Account, *[st.integers(0, 10**6)] * 10)


@given(SLICES, st.integers(1, 59))
def test_a_period_is_the_sum_of_its_parts(slices: list[Slice], cut: int) -> None:
    """Wherever it is cut; what readings are imprecise by counts in each part."""
    book, _ = booked([each._replace(length=each.length * 5) for each in slices])
    last = book.until // MINUTE
    middle = min(last, cut)
    if not middle:
        return
    with closing(Database()) as database:
        whole = database.minutes(book, 0, last).account
        first, second = (database.minutes(book, *span).account for span in ((0, middle - 1), (middle, last)))
    parts = Account(*map(sum, zip(first, second, strict=True)))
    assert all(0 <= sum_ - part <= 1 for name, sum_, part in zip(Account._fields, whole, parts, strict=True)
               if name not in ("slack", "foreign")), "but for what is left of milliseconds"
    assert abs(whole.foreign - parts.foreign) <= 1
    assert parts.slack >= whole.slack


@given(accounts, st.integers(0, 10**6), st.floats(0.0001, 1))
def test_an_objective_is_kept_missed_or_undecided_by_the_bounds(found: Account, unseen: int, objective: float) -> None:
    made = shares(found, unseen)
    assert made.least <= made.most
    match compare(made.least, made.most, made.total, objective):
        case Slo.KEPT:
            assert made.least >= objective * made.total
        case Slo.MISSED:
            assert made.most < objective * made.total
        case Slo.UNDECIDED:
            assert made.least < objective * made.total <= made.most


@given(st.integers(-10**9, 10**9), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_what_is_spread_is_neither_more_nor_less(amount: int, weights: list[int]) -> None:
    assert sum(spread(amount, weights)) == amount
