"""The spool: a directory of hook messages that are not yet in the state file, one file each.

The hook writes here when the watcher is away; the watcher writes here each message before it answers, and removes the
file once the state file holds it. So a message, once accepted, survives a kill at any moment, and processing one twice
does no harm.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from vmpin.errors import passing
from vmpin.host.files import read_regular
from vmpin.host.procfs import names_in

logger = logging.getLogger(__name__)

MAX_FILES = 10_000  #: More than a node's pods can leave behind in any outage; the rest is read the next time.
MAX_BYTES = (4 << 20) + 4096  #: Bytes: a state (runtime.oci.MAX_STATE) and what the hook sends before it.


class Spool:
    """The directory `path`, root's own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = 0
        self._failing = False
        self._dropped: set[str] = set()  #: The files that were logged as unusable.

    def prepare(self) -> None:
        """Make the directory, with mode 0700. :raises OSError: where it cannot be made."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        os.chmod(self.path, 0o700)

    def keep(self, raw: bytes, when: int) -> str | None:
        """Write a message, whole or not at all.
        :param when: when its hook began, in ns of CLOCK_BOOTTIME: hooks name their files the same way, and files are
            processed in that order.
        :returns: the file's name, None when it could not be written (logged once)."""
        self._written += 1
        name = f"{when:020d}-{os.getpid()}.{self._written}.hook"
        made = self.path / f".{name}.tmp"
        try:
            fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb") as file:
                file.write(raw)
            os.rename(made, self.path / name)
        except OSError as err:
            made.unlink(missing_ok=True)
            if not self._failing:
                logger.error("hook message not spooled path=%s: %s: it is used, but a restart may forget it",
                             self.path, err.strerror)
            self._failing = True
            return None
        self._failing = False
        return name

    def waiting(self, but: set[str], tidy: bool) -> list[tuple[str, bytes]]:
        """The names and messages of the spooled files, oldest first, without those named in `but`.
        :param tidy: whether to remove files that are no messages; only with the lock held."""
        found = []
        for name in names_in(self.path):
            if name in but:
                continue
            if name.endswith(".hook") and not name.startswith("."):
                if (raw := self._read(name, tidy)) is not None:
                    found.append((name, raw))
                if len(found) >= MAX_FILES:
                    break
            elif tidy and self._old(name):  # left by a hook that was killed while it wrote
                self.remove([name])
        return found

    def _read(self, name: str, tidy: bool) -> bytes | None:
        try:
            return read_regular(self.path / name, MAX_BYTES)[0]
        except OSError as err:
            if passing(err):
                return None
            if name not in self._dropped:  # a directory stays where it is
                logger.warning("spooled message dropped: %s: %s", self.path / name, err.strerror or err)
        self._dropped.add(name)
        if tidy:
            self.remove([name])
        return None

    def _old(self, name: str) -> bool:
        """Whether a file has not changed for a minute."""
        try:
            return os.lstat(self.path / name).st_mtime < time.time() - 60
        except OSError:
            return False

    def remove(self, names: list[str]) -> None:
        """Remove files of the spool; one that is gone is no error, any other failure is logged."""
        for name in names:
            try:
                (self.path / name).unlink(missing_ok=True)
            except OSError as err:
                logger.debug("cannot remove %s: %s", self.path / name, err)
