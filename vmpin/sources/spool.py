"""The spool: a directory of hook messages that are not in the state file yet, one file each.

The watcher writes each message here before it answers, and removes the file when the state file has it; the hook
writes here if no watcher runs. So an accepted message survives a kill at any moment. Processing a message twice is
harmless."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from pathlib import Path

from vmpin.errors import passing
from vmpin.host.files import read_regular
from vmpin.host.procfs import names_in

logger = logging.getLogger(__name__)

#: More than a node's pods produce in any outage; further files are read the next time.
MAX_FILES = 10_000
#: Bytes of a state (runtime.oci.MAX_STATE), and of the line that the hook sends before it.
MAX_BYTES = (4 << 20) + 4096
#: Bytes of all messages that are read at once; a state has some kB, and more by a pod's annotations.
MAX_TOGETHER = 64 << 20
#: What a hook, or a watcher, writes before it gives the file its name; one that was killed leaves it.
_UNFINISHED = re.compile(r"\.[0-9]{20}-[0-9]+(?:\.[0-9]+\.hook)?\.tmp", re.ASCII)


class Spool:
    """The directory `path`, which belongs to root."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = 0
        self._failing = False
        self._dropped: set[str] = set()  #: The files logged as unusable.

    def prepare(self) -> None:
        """Create the directory with mode 0700; a symbolic link in its place is removed, as it may lead to any
        directory. :raises OSError: if it cannot be created."""
        if self.path.is_symlink():
            logger.warning("symbolic link removed path=%s: the spool is a directory", self.path)
            self.path.unlink()
        self.path.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(fd, 0o700)
        finally:
            os.close(fd)

    def keep(self, raw: bytes, when: int, sandbox: str = "") -> str | None:
        """Write a message, atomically. :param when: when its hook began, CLOCK_BOOTTIME ns. It begins the file's name,
        as in the hook, because files are processed in this order. :param sandbox: its id, for the log.
        :returns: the file's name; None if it could not be written (logged once)."""
        self._written += 1
        name = f"{when:020d}-{os.getpid()}.{self._written}.hook"
        temporary = self.path / f".{name}.tmp"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb") as file:
                file.write(raw)
            os.rename(temporary, self.path / name)
        except OSError as err:
            self.remove([temporary.name])
            if not self._failing:
                logger.error("hook message not spooled sandbox=%s path=%s: %s: it is used, but a restart may forget "
                             "it", sandbox, self.path, err.strerror)
            self._failing = True
            return None
        self._failing = False
        return name

    def waiting(self, but: set[str], tidy: bool) -> list[tuple[str, bytes]]:
        """The names and messages of the spooled files except those named in `but`, oldest first.
        :param tidy: whether to remove unusable and unfinished ones; only with the lock held."""
        messages, names, size = [], names_in(self.path), 0
        self._dropped.intersection_update(names)
        for name in names:
            if name in but:
                continue
            if name.endswith(".hook") and not name.startswith("."):
                if (raw := self._read(name, tidy)) is not None:
                    messages.append((name, raw))
                    size += len(raw)
                if len(messages) >= MAX_FILES or size >= MAX_TOGETHER:
                    break
            elif tidy and _UNFINISHED.fullmatch(name) and self._old(name):
                self.remove([name])
        return messages

    def _read(self, name: str, tidy: bool) -> bytes | None:
        try:
            return read_regular(self.path / name, MAX_BYTES)[0]
        except OSError as err:
            if passing(err):
                return None
            if name not in self._dropped:  # a directory cannot be removed
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
        """Remove files. A missing one is no error; other failures are logged."""
        for name in names:
            try:
                (self.path / name).unlink(missing_ok=True)
            except OSError as err:
                logger.debug("cannot remove %s: %s", self.path / name, err)

    def remove_all(self) -> None:
        """Remove the messages, and the directory unless something else is in it."""
        if not self.path.is_symlink():
            self.remove([name for name in names_in(self.path)
                         if name.endswith(".hook") or _UNFINISHED.fullmatch(name)])
            with contextlib.suppress(OSError):
                self.path.rmdir()
