"""The books of run times in a database of the run directory (`proof`): they survive a restart of the watcher.

A row is a mark of the books; the latest one has the state at the last writing."""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from vmpin.bounded import checked_real, checked_whole
from vmpin.features.common.kept_database import WRITE_EVERY, KeptDatabase
from vmpin.features.proof.residency_ledger import Mark, ResidencyLedger

VERSION = 1
#: Of all marks together; where they have more, the oldest are dropped. The file never has twice as much.
MAX_BYTES = 32 << 20
SCHEMA = """
CREATE TABLE IF NOT EXISTS books (began REAL NOT NULL);
CREATE TABLE IF NOT EXISTS mark (time REAL PRIMARY KEY, raw TEXT NOT NULL, crc32 INTEGER NOT NULL) WITHOUT ROWID;
"""


class RunTimeBooks:
    """Keeps a ledger in its database. :param path: of the file; None for none. :param owned: as KeptDatabase's."""

    def __init__(self, path: Path | None, boot_id: str, ledger: ResidencyLedger,
                 owned: Callable[[], bool] = lambda: True) -> None:
        self._ledger = ledger
        self._database = KeptDatabase(path, boot_id, SCHEMA, VERSION, 2 * MAX_BYTES, "books of run times", owned)

    def read(self) -> Future[ResidencyLedger | None]:
        """The ledger of an earlier watcher of this boot; None for none. A file that cannot be used is logged."""
        return self._database.read(kept_ledger, None)

    def write(self, every: float = WRITE_EVERY) -> None:
        """Begin to write the ledger, if the last writing began `every` seconds ago and is over."""
        began = self._ledger.began
        if began is not None and self._database.ready(every):
            marks = (*self._ledger.marks, Mark(time.time(), self._ledger.dump()))
            self._database.write(partial(keep_marks, began=began, marks=marks))

    def close(self) -> None:
        """Write the ledger as it is, and wait for that."""
        self._database.wait()
        self.write(0.0)
        self._database.close()


def keep_marks(connection: sqlite3.Connection, began: float, marks: Sequence[Mark]) -> None:
    """Have the table hold these marks, as many of the latest as have room."""
    room = MAX_BYTES
    kept: dict[float, str] = {}
    for mark in reversed(marks):
        room -= len(mark.raw)
        if room < 0:
            break
        kept[mark.time] = mark.raw
    stored = {moment for moment, in connection.execute("SELECT time FROM mark")} - {marks[-1].time}
    connection.executemany("DELETE FROM mark WHERE time = ?", [(moment,) for moment in stored - kept.keys()])
    connection.executemany("INSERT OR REPLACE INTO mark VALUES (?, ?, ?)", [
        (moment, raw, zlib.crc32(raw.encode())) for moment, raw in kept.items() if moment not in stored])
    connection.execute("DELETE FROM books")
    connection.execute("INSERT INTO books VALUES (?)", (began,))


def kept_ledger(connection: sqlite3.Connection) -> ResidencyLedger | None:
    """The ledger of the latest mark. None for empty tables. :raises ValueError: for what no watcher writes."""
    marks = []
    for moment, raw, checksum in connection.execute("SELECT time, raw, crc32 FROM mark ORDER BY time"):
        if zlib.crc32(str(raw).encode()) != checked_whole(checksum, 2**32):
            raise ValueError("a checksum is wrong")
        marks.append(Mark(checked_real(moment, 1e12), str(raw)))
    if not marks:
        return None
    [began] = connection.execute("SELECT began FROM books").fetchone() or [None]
    try:
        return ResidencyLedger.of_marks(marks, checked_real(began, 1e12))
    except (KeyError, TypeError, AttributeError, RecursionError) as err:
        raise ValueError(f"a mark is damaged: {err!r:.80}") from err
