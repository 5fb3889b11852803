"""The tables of the books: sums of periods, what is dropped, and figures that no watcher writes."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from booked import Database, figures_between
from test_isolation_books import BACKUP, SECOND, found, host

from vmpin.cpuset import CpuSet
from vmpin.features.isolation.books_database import IsolationKeeper, figures_of, kept_books
from vmpin.features.isolation.cpu_intervals import Interval
from vmpin.features.isolation.isolation_books import (
    MINUTE,
    MINUTES,
    ForeignRun,
    IsolationBooks,
    OwnerBook,
)
from vmpin.features.isolation.isolation_shares import FORMER, Account
from vmpin.host import boottime

MS = 10**6
SCAN = host("scan")


@pytest.fixture
def database() -> Iterator[Database]:
    with closing(Database()) as made:
        yield made


def owning(*cpus: int) -> OwnerBook:
    book = OwnerBook("owner", 0, number=1)
    book.cpus = CpuSet(cpus)
    return book


def test_minutes_that_are_written_in_parts_add_up(database: Database) -> None:
    book = owning(2, 3)
    for _ in range(3):
        book.book(5 * MINUTE, found(10, 4, (2, 3)))
        book.add_runs(5 * MINUTE, [ForeignRun(BACKUP, 2, SECOND)])
        sums = database.minutes(book, 0, 5)
    assert (sums.account.watched, sums.account.foreign, sums.account.others) == (30_000, 12_000, 3000)
    assert sums.by_cpu == {2: 6000, 3: 6000}
    assert sums.by_program == {BACKUP: 3000}
    assert database.minutes(book, 0, 4).account == Account(watched=30_000), "when it was seen, and when it was read"


def test_a_gap_counts_as_not_seen() -> None:
    book = owning(2, 3)
    book.book(1 * MINUTE, found(60, 0, (2, 3)))
    book.book(10 * MINUTE, found(60, 0, (2, 3)))
    assert figures_between(book, 0, 10 * MINUTE).unseen == 8 * 60_000 * 2


def test_time_without_exclusive_cpus_is_watched_and_nothing_is_missed() -> None:
    book = owning(2)
    book.book(MINUTE, found(60))
    book.idle(2 * MINUTE, MINUTE)
    sums = figures_between(book, 0, 2 * MINUTE)
    assert (sums.account.watched, sums.account.seen, sums.unseen) == (120_000, 60_000, 0)
    assert sums.account.without == 60_000


@pytest.mark.parametrize("every", [7, 45, 90])
def test_an_interval_counts_in_the_minutes_in_which_it_was(every: int) -> None:
    """So that parts of the period have gaps where there were any, and nowhere else."""
    book = owning(2)
    book.longest, now = 2 * MINUTE, 0
    while now < 63 * MINUTE:
        now += every * SECOND
        if not 21 * MINUTE < now <= 42 * MINUTE:
            book.book(now, found(every))
    figures = figures_between(book, 0, 63 * MINUTE)
    unwatched = {begin // MINUTE: (end - begin) // MS - sums.watched for begin, end, sums in figures.bins}
    assert {minute for minute, missing in unwatched.items() if missing} == set(range(20, 42, 2))
    assert sum(unwatched.values()) == figures.unwatched == 21 * 60_000


def test_an_owner_that_has_ended_is_reported_up_to_its_last_reading(database: Database) -> None:
    books = IsolationBooks()
    book = books.of("owner", 5 * MINUTE, 1, 5 * MINUTE)
    book.book(6 * MINUTE, found(60))
    books.end(set(), 90 * MINUTE)
    span = database.minutes(book, 0, 100).period
    assert (span.begin, span.end) == (5 * MINUTE, 6 * MINUTE)
    assert database.period(book, 50 * MINUTE, 100 * MINUTE) is None  # it was over by then


def test_cpus_that_change_their_owner_stay_in_the_former_owners_sum() -> None:
    book = owning(2, 3)
    book.book(MINUTE, found(60, 4, (2, 3)))
    book.book(2 * MINUTE, found(60, 1, (3,)))
    book.cpus = CpuSet([4])
    book.book(3 * MINUTE, found(60, 5, (4,)))
    sums = figures_between(book, 0, 3 * MINUTE)
    assert sums.by_cpu == {FORMER: 5000, 4: 5000}
    assert sums.account.foreign == 10_000


def test_the_worst_minute_has_its_cpu_and_its_foremost_program() -> None:
    book = owning(2, 3)
    book.begin(0, 20 * MS)
    for minute, spent in ((1, 1), (2, 20), (3, 2)):
        book.book(minute * MINUTE, Interval(MINUTE, {2: spent * SECOND // 10, 3: spent * SECOND}, 0, 0, 0, 0))
    for program, spent in ((SCAN, 3), (BACKUP, 2), (BACKUP, 2)):
        book.add_runs(2 * MINUTE, [ForeignRun(program, 3, spent * SECOND)])
    book.add_runs(3 * MINUTE, [ForeignRun(SCAN, 3, 2 * SECOND)])
    sums = figures_between(book, 0, 3 * MINUTE)
    worst = sums.worst
    assert worst is not None
    assert (worst.minute, worst.cpu, worst.program, worst.spent) == (2, 3, BACKUP, 4000)
    assert worst.account.others == 7000
    assert worst.account.slack == 20  # of the series that began before it
    assert list(sums.by_program.items()) == [(SCAN, 5000), (BACKUP, 4000)]


def test_without_foreign_time_above_the_imprecision_no_minute_is_the_worst(database: Database) -> None:
    book = owning(2)
    book.begin(0, 20 * MS)
    book.book(MINUTE, found(60, 0.02))
    assert database.minutes(book, 0, 1).worst is None
    book.book(2 * MINUTE, found(60, 0.03))
    assert database.minutes(book, 0, 2).worst is not None


def test_a_period_in_which_a_series_began_earlier_is_imprecise_once_more(database: Database) -> None:
    book = owning(2)
    book.begin(0, 20 * MS)
    for minute in range(1, 10):
        book.book(minute * MINUTE, found(60))
    assert database.minutes(book, 5, 9).account.slack == 20
    assert database.minutes(book, 0, 9).account.slack == 20


def test_a_period_has_parts_of_whole_minutes() -> None:
    book = owning(2)
    for minute in range(1, 101):
        book.book(minute * MINUTE, found(60, 0.06))
    bins = figures_between(book, 0, 100 * MINUTE).bins
    assert [begin // MINUTE for begin, *_ in bins] == list(range(0, 101, 3))
    assert {(end - begin) // MINUTE for begin, end, _ in bins[:-1]} == {3}
    assert bins[-1][1] == 100 * MINUTE
    assert [sums.foreign for *_, sums in bins] == [120, *[180] * 32, 120]


def test_more_than_a_day_is_dropped(database: Database) -> None:
    books = IsolationBooks()
    book = books.of("owner", 0, 0, 0)
    for minute in range(1, MINUTES + 300):
        book.book(minute * MINUTE, found(60, 0.6))
        book.add_runs(minute * MINUTE, [ForeignRun(BACKUP, 2, MS)])
        if minute % 10 == 0:
            database.add(books)
    for table in "minute", "cpu", "program":
        assert MINUTES - 10 <= database.count(table) < MINUTES + 61
        assert database.count(table, "min(minute)") == database.count("books", "first")
    assert database.minutes(book, 0, MINUTES + 299).account.foreign == 600 * database.count("minute")


def test_what_an_owner_that_is_forgotten_had_is_dropped(database: Database) -> None:
    books = IsolationBooks()
    for begun in (7, 8):
        book = books.of("owner", MINUTE, begun, 0)
        book.book(MINUTE + SECOND, found(1, 0.6))
        book.add_runs(MINUTE, [ForeignRun(BACKUP, 2, MS)])
        database.add(books)
    assert [database.count(table) for table in ("owner", "minute", "cpu", "program")] == [1, 1, 1, 1]
    assert database.count("owner", "begun") == 8


def test_where_the_tables_are_too_large_the_oldest_hours_go(database: Database) -> None:
    most = 200_000
    books = IsolationBooks()
    book = books.of("owner", 0, 0, 0)
    for minute in range(1, 1000):
        book.book(minute * MINUTE, found(60, 0.6, tuple(range(64))))
        books.alive = minute * MINUTE
        if minute % 5 == 0:
            books_size(database, books, most)
    first = database.count("books", "first")
    assert 700 < first < 999
    assert database.count("minute", "min(minute)") == first
    assert database.count("minute", "max(minute)") == 995
    assert database.minutes(book, 0, 999).period.first == first  # what was dropped is no time that was not seen


def books_size(database: Database, books: IsolationBooks, most: int) -> None:
    database.add(books, most)
    page, count, free = (database.connection.execute(f"PRAGMA {name}").fetchone()[0]
                         for name in ("page_size", "page_count", "freelist_count"))
    assert page * (count - free) <= most


def test_owners_that_were_kept_are_loaded(database: Database) -> None:
    books = IsolationBooks()
    book = books.of("owner", 5 * MINUTE, 77, 4 * MINUTE)
    book.namespace, book.pod, book.kind, book.cpus = "demo", "shop", "vm", CpuSet([2, 3])
    books.of("other", 5 * MINUTE, 0, 4 * MINUTE)
    books.end({"owner"}, 6 * MINUTE)
    books.alive = 6 * MINUTE
    database.add(books)
    back = kept_books(database.connection, 10 * MINUTE)
    assert back.alive == books.alive
    assert {name: owner.described for name, owner in back.owners.items()} == {
        name: owner.described for name, owner in books.owners.items()}
    with pytest.raises(ValueError, match="no whole number"):
        kept_books(database.connection, 4 * MINUTE - 1)  # no time of this boot is later
    with closing(Database()) as empty:
        assert kept_books(empty.connection, 10 * MINUTE).owners == {}


@pytest.mark.parametrize(("table", "column"), [
    ("owner", "since"), ("owner", "cpus"), ("owner", "until"), ("books", "alive"), ("minute", "seen"),
    ("cpu", "spent"), ("program", "kind")])
@pytest.mark.parametrize("value", ["x", -(1 << 63), (1 << 63) - 1, 1.5, b"\xff", "9" * 5000])
def test_a_figure_that_no_watcher_writes_is_refused_or_a_number(
        database: Database, table: str, column: str, value: object) -> None:
    books = IsolationBooks()
    book = books.of("owner", 5 * MINUTE, 77, 4 * MINUTE)
    book.cpus = CpuSet([2])
    book.book(5 * MINUTE, found(60, 4))
    book.add_runs(5 * MINUTE, [ForeignRun(BACKUP, 2, SECOND)])
    database.add(books)
    database.connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
    try:
        back = kept_books(database.connection, 10 * MINUTE)
        [owner] = back.owners.values()
        assert figures_of(database.connection, owner.described, 0, 10 * MINUTE, 48) is not None
    except (ValueError, OverflowError, sqlite3.DatabaseError):
        return


def fill(books: IsolationBooks) -> None:
    """With two owners, at this moment."""
    now = boottime.now()
    for name in ("one", "two"):
        book = books.of(name, now, 7, now)
        book.namespace, book.pod, book.kind, book.cpus = "demo", name, "vm", CpuSet([2, 3])
        book.book(now, found(10, 4, (2, 3)))
        book.add_runs(now, [ForeignRun(BACKUP, 2, SECOND)])


@contextmanager
def keeping(path: Path | None, boot_id: str = "boot") -> Iterator[IsolationKeeper]:
    keeper = IsolationKeeper(path, boot_id)
    asyncio.run(keeper.load())
    yield keeper
    keeper.close()


def foreign(keeper: IsolationKeeper, owner: str) -> int:
    """Until now (ms)."""
    figures = keeper.figures(keeper.books.owners[owner].described, 0, boottime.now(), 48).result()
    assert figures is not None
    return figures.account.foreign


def test_what_is_written_is_loaded_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "isolation"
    with keeping(path) as keeper:
        fill(keeper.books)
        keeper.write(0.0)
        assert foreign(keeper, "one") == 4000
        fill(keeper.books)  # the end writes that
    assert [each.name for each in tmp_path.iterdir()] == ["isolation"]
    assert path.stat().st_mode & 0o777 == 0o600
    with keeping(path) as keeper:
        assert list(keeper.books.owners) == ["one", "two"]
        assert foreign(keeper, "two") == 8000


def test_it_is_written_no_more_often_than_it_is_due() -> None:
    with keeping(None) as keeper:
        fill(keeper.books)
        keeper.write()
        assert foreign(keeper, "one") == 0
        keeper.write(0.0)
        assert foreign(keeper, "one") == 4000


def test_a_kill_loses_what_was_booked_after_the_last_writing(tmp_path: Path) -> None:
    path = tmp_path / "isolation"
    child = os.fork()
    if not child:
        try:
            keeper = IsolationKeeper(path, "boot")
            asyncio.run(keeper.load())
            fill(keeper.books)
            keeper.write(0.0)
            foreign(keeper, "one")  # it is written
            fill(keeper.books)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    with keeping(path) as keeper:
        assert foreign(keeper, "one") == foreign(keeper, "two") == 4000


def test_the_books_of_another_boot_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "isolation"
    with keeping(path) as keeper:
        fill(keeper.books)
    with keeping(path, "other") as keeper:
        assert not keeper.books.owners
    with keeping(path) as keeper:
        assert not keeper.books.owners


def test_a_failure_is_logged_once_and_nothing_is_lost_when_it_has_passed(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "none"
    with keeping(directory / "isolation") as keeper:
        for _ in range(3):
            fill(keeper.books)
            keeper.write(0.0)
            with pytest.raises(Exception, match="No such file"):
                foreign(keeper, "one")
        assert [each.levelname for each in caplog.records] == ["ERROR"]
        assert "the books of isolation cannot be saved" in caplog.text
        directory.mkdir()
        keeper.write(0.0)
        assert foreign(keeper, "one") == 12_000
    assert len(caplog.records) == 1


def test_a_damaged_file_is_set_aside_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "isolation").write_bytes(b"abc" * 5000)
    with keeping(tmp_path / "isolation") as keeper:
        assert keeper.books.owners == {}
        fill(keeper.books)
    assert "set aside as isolation.bad, the books of isolation begin anew" in caplog.text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["isolation", "isolation.bad"]


def test_books_that_were_not_read_yet_are_not_written_over(tmp_path: Path) -> None:
    """As when a watcher ends at once."""
    path = tmp_path / "isolation"
    with keeping(path) as keeper:
        fill(keeper.books)
        keeper.books.alive = alive = boottime.now()
    IsolationKeeper(path, "boot").close()
    with keeping(path) as keeper:
        assert (list(keeper.books.owners), keeper.books.alive) == (["one", "two"], alive)


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with keeping(None) as keeper:
        fill(keeper.books)
    assert list(tmp_path.iterdir()) == []
