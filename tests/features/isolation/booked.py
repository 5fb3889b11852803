"""Books of isolation in a database in memory, and the sums of their periods."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from vmpin.features.isolation.books_database import SCHEMA, add_booked, figures_of
from vmpin.features.isolation.isolation_books import MINUTE, Booked, IsolationBooks, OwnerBook
from vmpin.features.isolation.isolation_report import MAX_BINS
from vmpin.features.isolation.isolation_shares import Figures


class Database:
    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.executescript(SCHEMA)

    def close(self) -> None:
        self.connection.close()

    def add(self, books: IsolationBooks | OwnerBook, most: int = 1 << 30) -> None:
        """Write what was booked since the last call. :param most: bytes."""
        booked = books.take()
        if not isinstance(booked, Booked):
            booked = Booked(0, (booked,), ())
        with self.connection:
            add_booked(self.connection, [booked], most)

    def count(self, table: str, what: str = "count(*)") -> int:
        [[number]] = self.connection.execute(f"SELECT {what} FROM {table}")
        return int(number or 0)

    def period(self, book: OwnerBook, since: int, now: int) -> Figures | None:
        """The sums of a period (CLOCK_BOOTTIME, ns), with what was booked until now."""
        self.add(book)
        return figures_of(self.connection, book.described, since, now, MAX_BINS)

    def minutes(self, book: OwnerBook, first: int, last: int) -> Figures:
        """Of some minutes, the last included."""
        figures = self.period(book, first * MINUTE, last * MINUTE)
        assert figures is not None
        return figures


def figures_between(book: OwnerBook, since: int, now: int) -> Figures:
    """Of all that was booked, which is taken from the book."""
    with closing(Database()) as database:
        figures = database.period(book, since, now)
    assert figures is not None
    return figures
