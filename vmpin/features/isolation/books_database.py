"""The books of isolation as tables, and the sums of a period that a report is made of.

Each function is work of a KeptDatabase: it is called with the connection, in its thread. Times are nanoseconds in the
tables, and milliseconds in what is summed up.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path

from vmpin.bounded import MAX_INT64, checked_whole
from vmpin.cpuset import CpuSet
from vmpin.features.common.kept_database import WRITE_EVERY, KeptDatabase, rows
from vmpin.features.isolation.isolation_books import (
    COLUMNS,
    MAX_OWNERS,
    MINUTE,
    MINUTES,
    Booked,
    ForeignProgram,
    IsolationBooks,
    Owner,
    ProgramKind,
)
from vmpin.features.isolation.isolation_shares import FORMER, Account, Figures, Period, WorstMinute, period
from vmpin.host import boottime

VERSION = 4
#: What the tables may have (bytes); where they have more, the oldest hours go. The file never has twice as much.
MAX_BYTES = 32 << 20
_HOUR = 60
_MS = 10**6

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS books (alive INTEGER NOT NULL, first INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS owner (number INTEGER PRIMARY KEY, owner TEXT NOT NULL UNIQUE, since INTEGER NOT NULL,
    begun INTEGER NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL, kind TEXT NOT NULL, cpus TEXT NOT NULL,
    until INTEGER NOT NULL, ended INTEGER);
CREATE TABLE IF NOT EXISTS minute (number INTEGER, minute INTEGER,
    {", ".join(f'"{name}" INTEGER NOT NULL' for name in COLUMNS)}, PRIMARY KEY (number, minute)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cpu (number INTEGER, minute INTEGER, cpu INTEGER, spent INTEGER NOT NULL,
    PRIMARY KEY (number, minute, cpu)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS program (number INTEGER, minute INTEGER, kind TEXT, name TEXT, place TEXT,
    spent INTEGER NOT NULL, PRIMARY KEY (number, minute, kind, name, place)) WITHOUT ROWID;
"""
_OF_MINUTES = ("minute", "cpu", "program")
_ADD_MINUTE = (f"INSERT INTO minute VALUES (?, ?{', ?' * len(COLUMNS)}) ON CONFLICT DO UPDATE SET "
               + ", ".join(f'"{name}" = "{name}" + excluded."{name}"' for name in COLUMNS))
_ADD_CPU = "INSERT INTO cpu VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET spent = spent + excluded.spent"
_ADD_PROGRAM = "INSERT INTO program VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET spent = spent + excluded.spent"
_SUMS = ", ".join(f'sum("{name}") / {_MS}' for name in COLUMNS)
_ONE = ", ".join(f'"{name}" / {_MS}' for name in COLUMNS)
_SPAN = "WHERE number = ? AND minute BETWEEN ? AND ?"


def kept_books(connection: sqlite3.Connection, latest: int) -> IsolationBooks:
    """The books that there are. :param latest: no time can be later (CLOCK_BOOTTIME, ns).
    :raises ValueError: for what no watcher writes."""
    owners = [_owner(row, latest) for row in connection.execute("SELECT * FROM owner")]
    if len(owners) > MAX_OWNERS:
        raise ValueError("it has too many owners")
    [alive] = next(rows(connection, "SELECT alive FROM books"), (0,))
    return IsolationBooks(owners, min(checked_whole(alive, MAX_INT64), latest))


def _owner(row: Sequence[object], latest: int) -> Owner:
    number, owner, since, begun, namespace, pod, kind, cpus, until, ended = row
    return Owner(checked_whole(number, MAX_INT64), str(owner), checked_whole(since, latest),
                 checked_whole(begun, MAX_INT64), str(namespace), str(pod), str(kind), CpuSet.parse(str(cpus)),
                 checked_whole(until, latest), None if ended is None else checked_whole(ended, MAX_INT64))


def add_booked(connection: sqlite3.Connection, booked: Iterable[Booked], most: int = MAX_BYTES) -> None:
    """Add what was booked, in its order; what is too old, and what is more than `most` bytes, is dropped."""
    latest = first = 0
    for part in booked:
        for number in part.gone:
            for table in ("owner", *_OF_MINUTES):
                connection.execute(f"DELETE FROM {table} WHERE number = ?", (number,))
        _write(connection, part)
        latest = max([latest, part.alive // MINUTE, *(minute for owner in part.owners for minute in owner.columns)])
        connection.execute("INSERT INTO books SELECT ?, 0 WHERE NOT EXISTS (SELECT 1 FROM books)", (part.alive,))
        connection.execute("UPDATE books SET alive = ?", (part.alive,))
    [first] = next(rows(connection, "SELECT first FROM books"), (0,))
    oldest = (latest - MINUTES + 1) // _HOUR * _HOUR
    while oldest > first or (_size(connection) > most and first < latest - _HOUR):
        first = max(oldest, first + (_HOUR if oldest <= first else 0))
        for table in _OF_MINUTES:
            connection.execute(f"DELETE FROM {table} WHERE minute < ?", (first,))
        connection.execute("UPDATE books SET first = ?", (first,))


def _write(connection: sqlite3.Connection, booked: Booked) -> None:
    for owner, columns, by_cpu, by_program in booked.owners:
        connection.execute("INSERT OR REPLACE INTO owner VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                           owner._replace(cpus=str(owner.cpus)))  # type: ignore[arg-type]
        number = owner.number
        connection.executemany(_ADD_MINUTE, [(number, minute, *(sums.get(name, 0) for name in COLUMNS))
                                             for minute, sums in columns.items()])
        connection.executemany(_ADD_CPU, [(number, *key, spent) for key, spent in by_cpu.items()])
        connection.executemany(_ADD_PROGRAM, [(number, minute, *program, spent)
                                              for (minute, program), spent in by_program.items()])


def _size(connection: sqlite3.Connection) -> int:
    """Bytes of the pages in use."""
    page, count, free = (next(rows(connection, f"PRAGMA {name}"))[0]
                         for name in ("page_size", "page_count", "freelist_count"))
    return page * (count - free)


def figures_of(connection: sqlite3.Connection, owner: Owner, since: int, now: int, parts: int) -> Figures | None:
    """The sums of an owner's period. None where its books have nothing of it.
    :param since: (CLOCK_BOOTTIME, ns), as `now`. :param parts: into which the period is divided, at most."""
    [oldest] = next(rows(connection, "SELECT first FROM books"), (0,))
    span = period(owner, oldest, since, now)
    if span is None:
        return None
    within = (owner.number, span.first, span.last)
    [sums] = rows(connection, f"SELECT {_SUMS} FROM minute {_SPAN}", *within)
    account = Account(*sums)
    return Figures(owner, span, account._replace(slack=account.slack + _slack_before(connection, owner, span.first)),
                   _foreign_by_cpu(connection, owner, span),
                   {_program(names): spent for *names, spent in connection.execute(
                       f"SELECT kind, name, place, sum(spent) / {_MS} AS had FROM program {_SPAN} "
                       "GROUP BY 1, 2, 3 ORDER BY had DESC, name", within)},
                   _worst_minute(connection, owner, span), _bins(connection, owner, span, parts))


def _slack_before(connection: sqlite3.Connection, owner: Owner, minute: int) -> int:
    """The imprecision (ms) of the series that an earlier minute began: it is imprecise once more."""
    [slack] = next(rows(connection, f"SELECT slack / {_MS} FROM minute WHERE number = ? AND minute < ? AND "
                        f"slack >= {_MS} ORDER BY minute DESC LIMIT 1", owner.number, minute), (0,))
    return slack


def _foreign_by_cpu(connection: sqlite3.Connection, owner: Owner, span: Period) -> dict[int, int]:
    """Sum up foreign time by CPU that is the owner's; those that are not any more together, as FORMER."""
    by_cpu: dict[int, int] = {}
    for cpu, spent in rows(connection, f"SELECT cpu, max(0, sum(spent)) / {_MS} FROM cpu {_SPAN} GROUP BY cpu",
                           owner.number, span.first, span.last):
        key = cpu if cpu in owner.cpus else FORMER
        by_cpu[key] = by_cpu.get(key, 0) + spent
    return dict(sorted(by_cpu.items()))


def _worst_minute(connection: sqlite3.Connection, owner: Owner, span: Period) -> WorstMinute | None:
    """The minute of which the largest share was missed. None where no minute has foreign time that is more than what
    readings are imprecise by."""
    worst = next(rows(connection, f"SELECT minute, {_ONE} FROM minute {_SPAN} AND seen >= {_MS} ORDER BY "
                      'CAST("foreign" + steal AS REAL) / seen DESC, minute LIMIT 1', owner.number, span.first,
                      span.last), None)
    if worst is None:
        return None
    minute, account = worst[0], Account(*worst[1:])
    account = account._replace(slack=account.slack or _slack_before(connection, owner, minute))
    if not account.bounds[0] and account.steal <= account.slack:
        return None
    [cpu] = connection.execute("SELECT cpu FROM cpu WHERE number = ? AND minute = ? ORDER BY spent DESC, cpu LIMIT 1",
                               (owner.number, minute)).fetchone() or [None]
    foremost = connection.execute(f"SELECT kind, name, place, spent / {_MS} FROM program WHERE number = ? AND "
                                  "minute = ? ORDER BY spent DESC, name LIMIT 1", (owner.number, minute)).fetchone()
    if foremost is None:
        return WorstMinute(minute, account, cpu, None, 0)
    return WorstMinute(minute, account, cpu, _program(foremost[:3]), foremost[3])


def _program(names: Sequence[object]) -> ForeignProgram:
    kind, name, place = names
    return ForeignProgram(ProgramKind(str(kind)), str(name), str(place))


def _bins(connection: sqlite3.Connection, owner: Owner, span: Period, most: int) -> list[tuple[int, int, Account]]:
    """The period in equal parts of whole minutes: when each begins and ends (CLOCK_BOOTTIME, ns), and its sums. The
    first and the last one are shorter where the period begins or ends within a minute."""
    step = -(-(span.last - span.first + 1) // most)
    sums = {part: Account(*columns) for part, *columns in rows(
        connection, f"SELECT (minute - ?) / ?, {_SUMS} FROM minute {_SPAN} GROUP BY 1",
        span.first, step, owner.number, span.first, span.last)}
    return [(max(span.begin, minute * MINUTE), min(span.end, (minute + step) * MINUTE), sums.get(part, Account()))
            for part, minute in enumerate(range(span.first, span.last + 1, step))]


#: Writings that are tried again while the file cannot be written: an hour of them.
_MOST = 120


class IsolationKeeper:
    """The books of one boot. :param path: of the file; None for none. :param owned: as KeptDatabase's."""

    def __init__(self, path: Path | None, boot_id: str, owned: Callable[[], bool] = lambda: True) -> None:
        self.books = IsolationBooks()
        self._database = KeptDatabase(path, boot_id, SCHEMA, VERSION, 2 * MAX_BYTES, "books of isolation", owned)
        self.loaded = False
        #: Handed to the database since the last writing that succeeded.
        self._booked: list[Booked] = []

    async def load(self) -> None:
        """Continue the books of an earlier watcher, before `books` is used; a file that cannot be used is logged."""
        reading = self._database.read(lambda connection: kept_books(connection, boottime.now()), IsolationBooks())
        self.books = await asyncio.wrap_future(reading)
        self.loaded = True

    def write(self, every: float = WRITE_EVERY) -> None:
        """Begin to write what was booked, if the last writing began `every` seconds ago and is over."""
        if not self.loaded or not self._database.ready(every):
            return
        unwritten = [] if self._database.written else self._booked[-_MOST:]
        booked = self._booked = [*unwritten, self.books.take()]
        self._database.write(lambda connection: add_booked(connection, booked))

    def figures(self, owner: Owner, since: int, now: int, parts: int) -> Future[Figures | None]:
        """The sums of a period (`figures_of`), of all that was handed to be written before."""
        return self._database.submit(lambda connection: figures_of(connection, owner, since, now, parts))

    def close(self) -> None:
        """Write all that was booked, and wait for that."""
        self._database.wait()
        self.write(0.0)
        self._database.close()
