"""Keeps the books of isolation in their file: now and then in steps, and at the end at once."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator
from pathlib import Path

from vmpin.features.isolation import isolation_file
from vmpin.features.isolation.isolation_books import IsolationBooks
from vmpin.reconcile.state_file import beside

logger = logging.getLogger(__name__)


class IsolationKeeper:
    """The file of `books`. :param path: None for no file. :param every: seconds between two writings in steps."""

    def __init__(self, path: Path | None, boot_id: str, books: IsolationBooks, every: float = 300.0) -> None:
        self._path, self._boot_id, self._books, self._every = path, boot_id, books, every
        self._saved = time.monotonic()
        self._steps: Generator[None, None, None] | None = None
        self._failing = ""

    def load(self) -> None:
        """Continue the books of the file; one that cannot be used is logged. Removes what a killed watcher left of
        its unfinished writing. To be called once, before the books change."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            beside(self._path)[0].unlink()  # up to 16 MB, which the next writing is minutes away from
        if trouble := isolation_file.load(self._path, self._boot_id, self._books):
            logger.warning("%s", trouble)

    @property
    def under_way(self) -> bool:
        return self._steps is not None

    def begin(self) -> None:
        """Begin to write the file, if it is time and nothing of it is under way."""
        if self._path is not None and self._steps is None and time.monotonic() - self._saved >= self._every:
            self._saved = time.monotonic()
            self._steps = isolation_file.writing(self._path, self._boot_id, self._books)

    def step(self) -> None:
        """Write a part."""
        if self._path is None or self._steps is None:
            return
        try:
            next(self._steps)
        except StopIteration:
            self._ended("")
        except OSError as err:
            self._ended(isolation_file.trouble(self._path, err))

    def save(self) -> None:
        """Write the file at once."""
        self._saved = time.monotonic()
        if self._steps is not None:
            self._steps.close()
        if self._path is not None:
            self._ended(isolation_file.save(self._path, self._boot_id, self._books))

    def _ended(self, failing: str) -> None:
        """An unchanged failure is logged once."""
        self._steps = None
        if failing and failing != self._failing:
            logger.error("%s", failing)
        self._failing = failing
