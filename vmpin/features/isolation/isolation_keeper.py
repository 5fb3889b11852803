"""Keeps the books of isolation in their database: what was booked is written every half minute, in another thread."""

from __future__ import annotations

import logging
import sqlite3
import time
from concurrent.futures import Future
from pathlib import Path

from vmpin.features.isolation.books_database import MAX_BYTES, SCHEMA, VERSION, add_booked, figures_of, kept_books
from vmpin.features.isolation.isolation_books import Booked, IsolationBooks, Owner
from vmpin.features.isolation.isolation_shares import Figures
from vmpin.host import boottime
from vmpin.reconcile.kept_database import KeptDatabase

logger = logging.getLogger(__name__)

#: Seconds between two writings: with the time between two rounds less than a minute, which is what a kill loses.
EVERY = 30.0
#: Writings that are tried again while the file cannot be written: an hour of them.
_MOST = 120


class IsolationKeeper:
    """The books of one boot. :param path: of the file; None for none."""

    def __init__(self, path: Path | None, boot_id: str) -> None:
        self.books = IsolationBooks()
        self._path = path
        self._database = KeptDatabase(path, boot_id, SCHEMA, VERSION, 2 * MAX_BYTES,
                                      "the books of isolation begin anew")
        self._written = time.monotonic()
        #: What is being written, and the writing; what a failed one had is in the next one again.
        self._booked: list[Booked] = []
        self._writing: Future[None] | None = None
        self._failing = ""

    def load(self) -> None:
        """Continue the books of an earlier watcher. To be called once, before `books` is used."""
        try:
            self.books = self._database.submit(lambda connection: kept_books(connection, boottime.now())).result()
        except sqlite3.OperationalError as err:
            self._log(err)
        except sqlite3.DatabaseError:
            pass  # it is set aside, and logged

    def write(self, every: float = EVERY) -> None:
        """Begin to write what was booked, if the last writing began `every` seconds ago and is over."""
        if time.monotonic() - self._written < every or not self._over():
            return
        self._written = time.monotonic()
        self._booked = [*self._booked[-_MOST:], self.books.taken()]
        booked = self._booked
        self._writing = self._database.submit(lambda connection: add_booked(connection, booked))

    def figures(self, owner: Owner, since: int, now: int, parts: int) -> Future[Figures | None]:
        """The sums of a period (`figures_of`), of all that was handed to be written before."""
        return self._database.submit(lambda connection: figures_of(connection, owner, since, now, parts))

    def close(self) -> None:
        """Write all that was booked."""
        if self._writing is not None:
            self._writing.exception()
        self.write(0.0)
        if self._writing is not None:
            self._writing.exception()
        self._over()
        self._database.close()

    def _over(self) -> bool:
        """Whether nothing is being written."""
        if self._writing is None:
            return True
        if not self._writing.done():
            return False
        err = self._writing.exception()
        if err is not None and not isinstance(err, sqlite3.Error):
            raise err
        self._writing = None
        self._log(err)
        if err is None:
            self._booked = []
        return True

    def _log(self, err: sqlite3.Error | None) -> None:
        """An unchanged failure is logged once."""
        failing = "" if err is None else str(err)
        if failing and failing != self._failing:
            logger.error("%s: the books of isolation cannot be saved: %s (free space or inodes there; until then a "
                         "restart loses them)", self._path, failing)
        self._failing = failing
