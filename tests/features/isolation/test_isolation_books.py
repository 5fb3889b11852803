"""The books by the minute: what waits to be written, and whose it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmpin.cpuset import CpuSet
from vmpin.features.isolation.cpu_intervals import Interval
from vmpin.features.isolation.isolation_books import (
    MAX_OWNERS,
    MAX_PROGRAMS,
    MINUTE,
    MINUTES,
    OTHERS,
    ForeignProgram,
    ForeignRun,
    IsolationBooks,
    OwnerBook,
    ProgramKind,
)

SECOND = 10**9
BACKUP = ForeignProgram(ProgramKind.HOST, "backup", "backup.service")


def found(elapsed: float = 10, foreign: float = 0, cpus: tuple[int, ...] = (2,)) -> Interval:
    each = int(foreign * SECOND) // len(cpus)
    return Interval(int(elapsed * SECOND), dict.fromkeys(cpus, each), 0, 0, 0, 0)


def host(name: str) -> ForeignProgram:
    return ForeignProgram(ProgramKind.HOST, name, "")


def test_what_was_booked_is_taken_once() -> None:
    book = OwnerBook("owner", 0, number=7)
    book.begin(0, 5)
    assert book.book(MINUTE, found(60, 4, (2, 3)))
    assert book.book(MINUTE, found(30, 2, (2, 3)))
    book.add_runs(MINUTE, [ForeignRun(BACKUP, 2, SECOND)])
    taken = book.take()
    assert taken.owner == book.described
    assert taken.columns == {0: {"slack": 5, "watched": 90 * SECOND}, 1: {"seen": 180 * SECOND, "foreign": 6 * SECOND,
                                                  "others": SECOND}}
    assert taken.by_cpu == {(1, 2): 3 * SECOND, (1, 3): 3 * SECOND}
    assert taken.by_program == {(1, BACKUP): SECOND}
    assert (book.take().columns, book.take().by_cpu, book.take().by_program) == ({}, {}, {})


def test_hours_that_are_not_taken_stop_nothing() -> None:
    """As while a disk hangs: each minute has its others."""
    book = OwnerBook("owner", 0)
    for minute in range(3 * MAX_PROGRAMS):
        book.add_runs(minute * MINUTE, [ForeignRun(BACKUP, 2, SECOND)])
    taken = book.take()
    assert sum(taken.by_program.values()) == 3 * MAX_PROGRAMS * SECOND
    assert sum(program != OTHERS for _, program in taken.by_program) <= MAX_PROGRAMS


def test_an_interval_that_is_too_long_is_not_seen() -> None:
    book = OwnerBook("owner", 0)
    assert not book.book(MINUTE, found(61, 4))
    book.idle(2 * MINUTE, 61 * SECOND)
    assert book.until == 2 * MINUTE
    assert book.take().columns == {}


def test_owners_that_ended_a_day_ago_are_forgotten() -> None:
    books = IsolationBooks()
    book = books.of("owner", 5 * MINUTE, 1, 5 * MINUTE)
    books.end(set(), 90 * MINUTE)
    assert book.ended == 90 * MINUTE
    books.end(set(), 90 * MINUTE + MINUTES * MINUTE)
    assert books.owners
    books.end(set(), 91 * MINUTE + MINUTES * MINUTE)
    assert not books.owners
    assert books.take().gone == (book.number,)
    assert books.take().gone == ()


def test_an_id_that_another_vm_has_begins_anew_and_the_same_one_goes_on() -> None:
    books = IsolationBooks()
    book = books.of("owner", MINUTE, 77, MINUTE)
    assert books.of("owner", 3 * MINUTE, 77, 3 * MINUTE) is book
    other = books.of("owner", 3 * MINUTE, 78, 3 * MINUTE)
    assert other is not book
    assert other.number != book.number
    assert books.take().gone == (book.number,)


def test_numbers_go_on_after_those_of_owners_that_were_kept() -> None:
    books = IsolationBooks()
    book = books.of("owner", MINUTE, 77, MINUTE)
    book.namespace, book.pod, book.kind, book.cpus = "demo", "shop", "vm", CpuSet([2])
    back = IsolationBooks([book.described], 5)
    assert back.alive == 5
    assert back.owners["owner"].described == book.described
    assert back.of("new", MINUTE, 0, MINUTE).number == book.number + 1


def test_names_without_end_take_bounded_room_and_do_not_hide_a_later_one() -> None:
    """As a container may give its threads, each of which runs for a moment."""
    book = OwnerBook("owner", 0)
    for number in range(10):
        names = [ForeignRun(host(f"n{number}-{each}"), 2, SECOND // 500) for each in range(MAX_PROGRAMS)]
        book.add_runs(MINUTE, [*names, ForeignRun(BACKUP, 2, SECOND)])
    programs = book.take().by_program
    assert len(programs) == MAX_PROGRAMS
    assert programs[1, BACKUP] == 10 * SECOND
    assert (1, OTHERS) in programs


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3 * MAX_PROGRAMS), st.integers(1, 60_000)), max_size=400))
def test_run_time_that_a_scan_found_is_never_lost(runs: list[tuple[int, int, int]]) -> None:
    """However many there are: the sum of all names is that of the minutes."""
    book = OwnerBook("owner", 0)
    for minute, number, spent in runs:
        book.add_runs(minute * MINUTE, [ForeignRun(host(f"t{number}"), 2, spent)])
    taken = book.take()
    assert len(taken.by_program) <= MAX_PROGRAMS
    assert sum(taken.by_program.values()) == sum(spent for *_, spent in runs)
    assert sum(sums["others"] for sums in taken.columns.values()) == sum(spent for *_, spent in runs)
    if len({(minute, number) for minute, number, _ in runs}) <= MAX_PROGRAMS:
        assert OTHERS not in {program for _, program in taken.by_program}


def test_a_kernel_thread_is_booked_apart() -> None:
    book = OwnerBook("owner", 0)
    kworker = ForeignProgram(ProgramKind.KERNEL, "kworker/2:1", "")
    book.add_runs(MINUTE, [ForeignRun(kworker, 2, SECOND), ForeignRun(BACKUP, 2, 2 * SECOND)])
    assert book.take().columns == {1: {"kernel": SECOND, "others": 2 * SECOND}}


def test_owners_that_have_ended_make_room_first() -> None:
    books = IsolationBooks()
    for number in range(MAX_OWNERS):
        books.of(f"o{number}", number, 0, number)
    books.end({f"o{number}" for number in range(MAX_OWNERS) if number != 7}, MAX_OWNERS)
    books.of("new", MAX_OWNERS, 0, MAX_OWNERS)
    assert len(books.owners) == MAX_OWNERS
    assert "o7" not in books.owners


@pytest.mark.parametrize("since", [-5, 0, 10**18])
def test_an_owner_never_began_before_the_machine_nor_in_the_future(since: int) -> None:
    book = IsolationBooks().of("owner", 5 * MINUTE, 0, since)
    assert 0 <= book.since <= 5 * MINUTE
