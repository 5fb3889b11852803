"""Keeps the books of isolation in their database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from vmpin.features.isolation.books_database import MAX_BYTES, SCHEMA, VERSION, add_booked, figures_of, kept_books
from vmpin.features.isolation.isolation_books import Booked, IsolationBooks, Owner
from vmpin.features.isolation.isolation_shares import Figures
from vmpin.host import boottime
from vmpin.reconcile.kept_database import WRITE_EVERY, KeptDatabase

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
        booked = self._booked = [*unwritten, self.books.taken()]
        self._database.write(lambda connection: add_booked(connection, booked))

    def figures(self, owner: Owner, since: int, now: int, parts: int) -> Future[Figures | None]:
        """The sums of a period (`figures_of`), of all that was handed to be written before."""
        return self._database.submit(lambda connection: figures_of(connection, owner, since, now, parts))

    def close(self) -> None:
        """Write all that was booked, and wait for that."""
        self._database.wait()
        self.write(0.0)
        self._database.close()
