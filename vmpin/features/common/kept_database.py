"""Books in a database: one file of the run directory, of one boot and one writer.

A thread of its own reads and writes it, in order, so that no disk holds up the event loop. A file that cannot be used
is set aside, and the books begin anew; without a file they are in memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from vmpin.host.files import Identity, identity
from vmpin.reconcile.state_file import set_file_aside

logger = logging.getLogger(__name__)

T = TypeVar("T")
_OWN = "CREATE TABLE IF NOT EXISTS boot (id TEXT NOT NULL);"


def files_of(path: Path) -> list[Path]:
    """The database's file, and SQLite's own beside it."""
    return [path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-journal")]


#: Seconds between two writings: with the time between two samples less than a minute, which is what a kill loses.
WRITE_EVERY = 30.0


class KeptDatabase:
    """Opened with the first work: a function of the connection, done in one transaction or not at all.

    :param path: None for none. :param schema: statements that can be repeated; a file with another number of `version`
        is not used. :param most: a hard limit of the file's size (bytes). :param content: what it keeps, for the log.
    :param owned: whether the run directory is this process's: it may have been removed, and made by another one."""

    def __init__(self, path: Path | None, boot_id: str, schema: str, version: int, most: int, content: str,
                 owned: Callable[[], bool]) -> None:
        self._path, self._boot_id, self._schema, self._version = path, boot_id, schema, version
        self._most, self._content, self._owned = most, content, owned
        self._file: Identity | None = None
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "vmpin-database")
        self._writing: Future[bool] | None = None
        self._began = time.monotonic()
        self._failure = ""

    def submit(self, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Have work done. The future may have a sqlite3.Error."""
        return self._thread.submit(self._do, work)

    def read(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> Future[T]:
        """Have work done whose failure is logged: the future then has `otherwise`."""
        return self._thread.submit(self._logged, work, otherwise)

    def write(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Have books written. A failure is logged, an unchanged one once."""
        def written(connection: sqlite3.Connection) -> bool:
            work(connection)
            return True

        self._began = time.monotonic()
        self._writing = self._thread.submit(self._logged, written, False)

    def ready(self, every: float) -> bool:
        """Whether the last `write` is over and began at least `every` seconds ago."""
        return (self._writing is None or self._writing.done()) and time.monotonic() - self._began >= every

    @property
    def written(self) -> bool:
        """Whether the last `write`, which is over, succeeded."""
        return self._writing is not None and self._writing.result()

    def wait(self) -> None:
        """Wait until the last `write` is over."""
        if self._writing is not None:
            self._writing.exception()

    def close(self) -> None:
        """Wait until all is done, and close the file."""
        self._thread.submit(self._disconnect).result()
        self._thread.shutdown()

    def _logged(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        try:
            result = self._do(work)
        except sqlite3.OperationalError as err:
            if str(err) != self._failure:
                logger.error("%s: the %s cannot be saved: %s (free space or inodes there; until then a restart loses "
                             "them)", self._path, self._content, err)
            self._failure = str(err)
            return otherwise
        except sqlite3.DatabaseError:  # the file is set aside, which is logged
            return otherwise
        self._failure = ""
        return result

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None or self._file != self._identity():
            self._open()
        assert self._connection is not None
        try:
            with self._connection:
                return work(self._connection)
        except (sqlite3.DatabaseError, ValueError, OverflowError) as err:
            if not is_damage(err):
                raise
            self._set_aside(err)
            raise sqlite3.DatabaseError(str(err)) from err

    def _identity(self) -> Identity | None:
        """The identity of the file at the path; None for none."""
        return None if self._path is None else identity(self._path)

    def _open(self) -> None:
        """Open the file; where it was removed while it was open, make it again with what it held."""
        if not self._owned():
            raise sqlite3.OperationalError("the run directory was removed, or is another process's")
        opened = self._opened()
        if self._connection is not None:
            self._connection.backup(opened)
            self._connection.close()
        self._connection, self._file = opened, self._identity()

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
        except (sqlite3.DatabaseError, ValueError) as err:  # ValueError: a message of SQLite's that is no UTF-8
            if not is_damage(err):
                raise
            before = self._identity()
            self._set_aside(err)
            if before is not None and self._identity() == before:  # a mount point, or NAME.bad is a directory
                raise sqlite3.OperationalError(f"{err}, and cannot be set aside") from err
            return self._opened()

    def _connected(self, name: str) -> sqlite3.Connection:
        connection = sqlite3.connect(name, timeout=0.0)
        # Text that is damaged is text still: as an OperationalError it would look like a disk without space.
        connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
        try:
            # Alone with its file: there is no shared memory beside it. Each commit is on the disk when it returns.
            for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL",
                           "journal_size_limit = 4194304"):
                connection.execute(f"PRAGMA {pragma}")
            [[page]] = connection.execute("PRAGMA page_size")
            connection.execute(f"PRAGMA max_page_count = {self._most // page}")
            self._check(connection)
            # At once: a kill in between would leave tables of an unknown version.
            connection.executescript(f"BEGIN;{_OWN}{self._schema};PRAGMA user_version = {self._version};COMMIT;")
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
            connection.execute("BEGIN")  # all tables or none
            for table in tables:
                connection.execute(f'DROP TABLE "{table}"')
            connection.commit()

    def _set_aside(self, err: Exception) -> None:
        self._disconnect()
        if self._path is not None:
            logger.warning("%s", set_file_aside(self._path, err, aside=True,
                                                 then=f"the {self._content} begin anew"))
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


def is_damage(err: Exception) -> bool:
    """Whether an error shows a damaged file. No space and no right to write do not: then the file may be whole. An
    OperationalError of SQLITE_ERROR does: a table or a column is missing."""
    return not isinstance(err, sqlite3.OperationalError) or getattr(
        err, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
