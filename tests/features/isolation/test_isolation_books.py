"""The books by the minute: what is kept, what is dropped, and whose it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmpin.cpuset import CpuSet
from vmpin.features.isolation.cpu_intervals import Interval
from vmpin.features.isolation.isolation_advice import ThiefKind
from vmpin.features.isolation.isolation_books import (
    COLUMNS,
    FORMER,
    MAX_CELLS,
    MAX_OWNERS,
    MAX_THIEVES,
    MINUTE,
    MINUTES,
    OTHERS,
    IsolationBooks,
    OwnerBook,
    Theft,
    Thief,
)
from vmpin.features.isolation.isolation_shares import (
    account_of,
    foreign_by_cpu,
    period,
    thefts,
    unseen_in,
    worst_minute,
)

SECOND = 10**9
MS = 10**6
BACKUP, SCAN = Thief(ThiefKind.HOST, "backup", "backup.service"), Thief(ThiefKind.HOST, "scan", "scan.service")


def found(elapsed: float = 10, foreign: float = 0, cpus: tuple[int, ...] = (2,)) -> Interval:
    each = int(foreign * SECOND) // len(cpus)
    return Interval(int(elapsed * SECOND), dict.fromkeys(cpus, each), 0, 0, 0, 0)


def a_day_long(cpus: tuple[int, ...] = (2,), step: int = 1) -> OwnerBook:
    book = OwnerBook("owner", 0)
    book.take(CpuSet(cpus))
    book.begin(0, 0)
    for minute in range(1, MINUTES + 200, step):
        book.book(minute * MINUTE, found(60, 0.6, cpus))
    return book


def test_more_than_a_day_is_dropped_and_the_size_is_bounded() -> None:
    book = a_day_long()
    assert MINUTES <= len(book) < MINUTES + 61
    assert {len(column) for column in (*book.columns.values(), *book.by_cpu.values())} == {len(book)}
    assert book.first + len(book) - 1 == MINUTES + 199
    assert account_of(book, book.first, MINUTES + 199).foreign == 600 * len(book)


def test_512_cpus_take_a_few_bytes_a_minute() -> None:
    book = a_day_long(tuple(range(512)), 41)
    size = sum(column.itemsize * len(column) for column in (*book.columns.values(), *book.by_cpu.values()))
    assert size <= 4 * (MINUTES + 61) * (512 + len(COLUMNS))
    assert max(book.columns["seen"]) == 60_000 * 512  # no cell overflows


def test_a_gap_counts_as_not_seen() -> None:
    book = OwnerBook("owner", 0)
    book.take(CpuSet([2, 3]))
    book.book(1 * MINUTE, found(60, 0, (2, 3)))
    book.book(10 * MINUTE, found(60, 0, (2, 3)))
    span = period(book, 0, 10 * MINUTE)
    assert span is not None
    account = account_of(book, span.first, span.last)
    assert unseen_in(book, account, span.end - span.begin) == 8 * 60_000 * 2


def test_an_owner_that_has_ended_is_reported_up_to_its_last_reading() -> None:
    books = IsolationBooks()
    book = books.of("owner", 5 * MINUTE, 1, 5 * MINUTE)
    book.book(6 * MINUTE, found(60))
    books.end(set(), 90 * MINUTE)
    span = period(book, 0, 100 * MINUTE)
    assert span is not None
    assert (span.begin, span.end) == (5 * MINUTE, 6 * MINUTE)
    assert period(book, 50 * MINUTE, 100 * MINUTE) is None  # it was over by then
    books.end(set(), 90 * MINUTE + MINUTES * MINUTE)
    assert books.owners
    books.end(set(), 91 * MINUTE + MINUTES * MINUTE)
    assert not books.owners


def test_an_id_that_another_vm_has_begins_anew_and_the_same_one_goes_on() -> None:
    books = IsolationBooks()
    book = books.of("owner", MINUTE, 77, MINUTE)
    book.book(2 * MINUTE, found(60, 30))
    assert books.of("owner", 3 * MINUTE, 77, 3 * MINUTE) is book
    other = books.of("owner", 3 * MINUTE, 78, 3 * MINUTE)
    assert other is not book
    assert account_of(other, 0, 10).foreign == 0


def test_cpus_that_change_their_owner_stay_in_the_former_owners_sum() -> None:
    book = OwnerBook("owner", 0)
    book.take(CpuSet([2, 3]))
    book.book(MINUTE, found(60, 4, (2, 3)))
    book.take(CpuSet([3]))
    book.book(2 * MINUTE, found(60, 1, (3,)))
    book.take(CpuSet([4]))
    book.book(3 * MINUTE, found(60, 5, (4,)))
    assert foreign_by_cpu(book, 0, 3) == {FORMER: 5000, 4: 5000}
    assert len(book.by_cpu) == 2
    assert account_of(book, 0, 3).foreign == 10_000


def test_the_worst_minute_has_its_cpu_and_its_foremost_thief() -> None:
    book = OwnerBook("owner", 0)
    book.take(CpuSet([2, 3]))
    book.begin(0, 20 * MS)
    for minute, spent in ((1, 1), (2, 20), (3, 2)):
        book.book(minute * MINUTE, Interval(MINUTE, {2: spent * SECOND // 10, 3: spent * SECOND}, 0, 0, 0, 0))
    for thief, spent in ((SCAN, 3), (BACKUP, 2), (BACKUP, 2)):
        book.met(2 * MINUTE, [Theft(thief, 3, spent * SECOND)], ThiefKind.KERNEL)
    book.met(3 * MINUTE, [Theft(SCAN, 3, SECOND)], ThiefKind.KERNEL)
    worst = worst_minute(book, 0, 3)
    assert worst is not None
    assert (worst.minute, worst.cpu, worst.thief, worst.theft) == (2, 3, BACKUP, 4000)
    assert worst.account.others == 7000
    assert thefts(book, 0, 3) == {BACKUP: 4000, SCAN: 1000}


def test_without_foreign_time_above_the_imprecision_no_minute_is_the_worst() -> None:
    book = OwnerBook("owner", 0)
    book.take(CpuSet([2]))
    book.begin(0, 20 * MS)
    book.book(MINUTE, found(60, 0.02))
    assert worst_minute(book, 0, 1) is None
    book.book(2 * MINUTE, found(60, 0.03))
    assert worst_minute(book, 0, 2) is not None


def host(name: str) -> Thief:
    return Thief(ThiefKind.HOST, name, "")


def test_many_thieves_take_bounded_room_and_old_ones_are_forgotten() -> None:
    book = OwnerBook("owner", 0)
    many = 3 * MAX_THIEVES
    for number in range(many):
        book.met(number * MINUTE, [Theft(host(f"t{number}"), 2, SECOND)], ThiefKind.KERNEL)
    assert len(book.thieves) == MAX_THIEVES
    assert thefts(book, many - 1, many - 1) == {host(f"t{many - 1}"): 1000}
    assert thefts(book, 0, many)[OTHERS] == 1000 * (many - MAX_THIEVES + 1)
    for number in range(MINUTES + 100, MINUTES + 200):  # by then the first minutes are gone
        book.met(number * MINUTE, [Theft(BACKUP, 2, SECOND)], ThiefKind.KERNEL)
    assert BACKUP in book.thieves
    assert max(book.columns["thief"]) <= len(book.thieves)


def test_the_rest_of_a_full_list_has_one_place() -> None:
    book = OwnerBook("owner", 0)
    for number in range(MAX_THIEVES):
        book.met(number * MINUTE, [Theft(host(f"t{number}"), 2, SECOND)], ThiefKind.KERNEL)
    book.met(MAX_THIEVES * MINUTE, [Theft(OTHERS, 2, SECOND)], ThiefKind.KERNEL)
    assert book.thieves.count(OTHERS) == 1


def test_a_series_that_begins_after_a_day_without_a_reading_keeps_the_times_in_order() -> None:
    """As the file's reader takes no other book (isolation_file)."""
    book = OwnerBook("owner", 0)
    book.begin(2 * MINUTES * MINUTE, SECOND)
    assert book.first <= book.until // MINUTE + 1


def test_names_without_end_do_not_hide_a_later_thief() -> None:
    """As a container may give its threads, each of which runs for a moment."""
    book = OwnerBook("owner", 0)
    for number in range(2 * MAX_THIEVES):
        book.met(number * MINUTE, [Theft(host(f"t{number}"), 2, 5 * MS)], ThiefKind.KERNEL)
    minute = 2 * MAX_THIEVES
    for number in range(10):  # in one minute, too
        names = [Theft(host(f"n{number}-{each}"), 2, 2 * MS) for each in range(MAX_THIEVES)]
        book.met(minute * MINUTE, [*names, Theft(BACKUP, 2, SECOND)], ThiefKind.KERNEL)
    book.begin(minute * MINUTE, 0)
    book.book(minute * MINUTE, found(60, 12))
    worst = worst_minute(book, 0, minute)
    assert worst is not None
    assert (worst.thief, worst.theft) == (BACKUP, 10_000)


def test_of_the_last_minute_all_thieves_are_kept_and_of_earlier_ones_the_foremost() -> None:
    book = OwnerBook("owner", 0)
    for minute in (1, 2):
        book.met(minute * MINUTE, [Theft(SCAN, 2, 3 * SECOND), Theft(BACKUP, 2, SECOND)], ThiefKind.KERNEL)
    book.met(2 * MINUTE, [Theft(BACKUP, 2, SECOND)], ThiefKind.KERNEL)
    assert thefts(book, 1, 2) == {SCAN: 6000, BACKUP: 2000}
    assert thefts(book, 1, 1) == {SCAN: 3000}
    book.met(4 * MINUTE, [Theft(host("other"), 2, SECOND)], ThiefKind.KERNEL)
    assert thefts(book, 1, 4) == {SCAN: 6000, host("other"): 1000}


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3 * MAX_THIEVES), st.integers(1, 60_000)), max_size=400))
def test_what_thieves_had_is_never_lost(met: list[tuple[int, int, int]]) -> None:
    """However many there are: each minute names one, or `others`, and the sum of all is that of the minutes."""
    book = OwnerBook("owner", 0)
    for minute, number, spent in sorted(met, key=lambda each: each[0]):
        book.met(minute * MINUTE, [Theft(host(f"t{number}"), 2, spent * MS)], ThiefKind.KERNEL)
    assert len(book.thieves) <= MAX_THIEVES
    assert all(1 <= number <= len(book.thieves) for number, theft in zip(
        book.columns["thief"], book.columns["theft"], strict=True) if theft)
    assert sum(book.columns["others"]) == sum(spent for *_, spent in met)
    if len({number for _, number, _ in met}) < MAX_THIEVES:
        assert OTHERS not in book.thieves
    book.met(201 * MINUTE, [Theft(BACKUP, 2, MS)], ThiefKind.KERNEL)
    assert sum(thefts(book, 0, 200).values()) == sum(book.columns["theft"][:201])


def filled(owners: int, minutes: int, ended: int = 0, most: int = MAX_CELLS) -> IsolationBooks:
    books = IsolationBooks(most)
    for number in range(owners):
        book = books.of(f"o{number}", 0, 0, 0)
        book.take(CpuSet([2 * number, 2 * number + 1]))
        for minute in range(0, minutes, 20):
            book.book(minute * MINUTE, found(60, 0, (2 * number, 2 * number + 1)))
        book.ended = number if number < ended else None
    return books


def test_owners_that_have_ended_make_room_for_cells_first_and_then_old_hours_do() -> None:
    books = filled(6, 601, ended=3)
    width = len(COLUMNS) + 2
    assert sum(book.cells for book in books.owners.values()) == 6 * 601 * width
    books.fit(6 * 601 * width)
    assert len(books.owners) == 6
    books.fit(5 * 601 * width)
    assert list(books.owners) == ["o2", "o3", "o4", "o5"]
    books.fit(2 * 601 * width)
    assert list(books.owners) == ["o3", "o4", "o5"]  # that go on: none of them is forgotten
    assert sum(book.cells for book in books.owners.values()) <= 2 * 601 * width
    assert {len(book) for book in books.owners.values()} == {360}
    assert {book.first for book in books.owners.values()} == {241}
    assert {len(column) for book in books.owners.values() for column in book.by_cpu.values()} == {360}


def test_cells_are_counted_as_time_goes_on() -> None:
    books = filled(2, 1, most=10_000)
    for minute in range(1, 1000):
        for book in books.owners.values():
            book.book(minute * MINUTE, found(60, 0, tuple(book.cpus)))
        books.end({"o0", "o1"}, minute * MINUTE)
        assert sum(book.cells for book in books.owners.values()) <= 10_000
    assert {book.first + len(book) - 1 for book in books.owners.values()} == {999}


def test_a_kernel_thread_is_booked_apart() -> None:
    book = OwnerBook("owner", 0)
    book.met(MINUTE, [Theft(Thief(ThiefKind.KERNEL, "kworker/2:1", ""), 2, SECOND), Theft(BACKUP, 2, 2 * SECOND)],
             ThiefKind.KERNEL)
    account = account_of(book, 0, 1)
    assert (account.kernel, account.others) == (1000, 2000)


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


def test_time_without_exclusive_cpus_is_watched_and_nothing_is_missed() -> None:
    book = OwnerBook("owner", 0)
    book.take(CpuSet([2]))
    book.book(MINUTE, found(60))
    book.idle(2 * MINUTE, MINUTE)
    account = account_of(book, 0, 2)
    assert (account.watched, account.seen) == (120_000, 60_000)
    assert unseen_in(book, account, 2 * MINUTE) == 0
