"""A database in one file of the run directory, of one boot and one writer.

A thread of its own does all that is asked of it, in order, so that no disk holds up the event loop. A file that cannot
be used is set aside, and the database begins anew; where there is no file to be had, it is in memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from vmpin.reconcile.state_file import set_file_aside

logger = logging.getLogger(__name__)

T = TypeVar("T")
_OWN = "CREATE TABLE IF NOT EXISTS boot (id TEXT NOT NULL);"


def files_of(path: Path) -> list[Path]:
    """The database's file, and SQLite's own beside it."""
    return [path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-journal")]


class KeptDatabase:
    """Opened with the first work. `most` is a hard limit of the file's size (bytes).

    :param path: None for none. :param schema: statements that can be repeated; a file with another number of `version`
        is not used. :param then: what follows where the file cannot be used."""

    def __init__(self, path: Path | None, boot_id: str, schema: str, version: int, most: int, then: str) -> None:
        self._path, self._boot_id, self._schema, self._version = path, boot_id, schema, version
        self._most, self._then = most, then
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "vmpin-database")

    def submit(self, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Have work done in one transaction. The future may have a sqlite3.Error: nothing of it is then done."""
        return self._thread.submit(self._do, work)

    def close(self) -> None:
        """Wait until all is done, and close the file."""
        self._thread.submit(self._disconnect).result()
        self._thread.shutdown()

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            self._connection = self._opened()
        try:
            with self._connection:
                return work(self._connection)
        except sqlite3.OperationalError:  # no space, or no right to write: the file may be whole
            raise
        except (sqlite3.DatabaseError, ValueError, OverflowError) as err:
            self._set_aside(err)
            raise sqlite3.DatabaseError(str(err)) from err

    def _opened(self) -> sqlite3.Connection:
        if self._path is None:
            return self._connected(":memory:")
        try:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(self._path.lstat().st_mode):
                    raise sqlite3.DatabaseError("it is no file")
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            return self._connected(str(self._path))
        except OSError as err:
            raise sqlite3.OperationalError(err.strerror) from err
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as err:
            self._set_aside(err)
            return self._opened()

    def _connected(self, name: str) -> sqlite3.Connection:
        connection = sqlite3.connect(name, timeout=0.0)
        try:
            # Alone with its file: there is no shared memory beside it. Each commit is on the disk when it returns.
            for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL",
                           "journal_size_limit = 4194304"):
                connection.execute(f"PRAGMA {pragma}")
            [[page]] = connection.execute("PRAGMA page_size")
            connection.execute(f"PRAGMA max_page_count = {self._most // page}")
            self._check(connection)
            connection.executescript(_OWN + self._schema)
            connection.execute(f"PRAGMA user_version = {self._version}")
            if not connection.execute("SELECT 1 FROM boot").fetchall():
                connection.execute("INSERT INTO boot VALUES (?)", (self._boot_id,))
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: sqlite3.Connection) -> None:
        """Empty a database of another boot. :raises sqlite3.DatabaseError: it is damaged, or of another version."""
        [[version]] = connection.execute("PRAGMA user_version")
        tables = [name for name, in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if not tables:
            return
        if version != self._version:
            raise sqlite3.DatabaseError(f"version {version} is unknown")
        if (fault := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(str(fault))
        if connection.execute("SELECT id FROM boot").fetchall() != [(self._boot_id,)]:
            for table in tables:
                connection.execute(f'DROP TABLE "{table}"')
            connection.commit()

    def _set_aside(self, err: Exception) -> None:
        self._disconnect()
        if self._path is not None:
            logger.warning("%s", set_file_aside(self._path, err, aside=True, then=self._then))
            for path in files_of(self._path):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def rows(connection: sqlite3.Connection, statement: str, *values: object) -> Iterator[list[int]]:
    """The rows of a query for whole numbers; NULL is 0. :raises ValueError: for anything else."""
    for row in connection.execute(statement, values):
        if not all(value is None or isinstance(value, int) for value in row):
            raise ValueError(f"a figure is no number: {row!r:.80}")
        yield [value or 0 for value in row]
