"""One acting process a node: a lock on the run directory, which the kernel drops when its holder dies."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from vmpin.errors import LockHeldError, WatcherError
from vmpin.host.regular import open_regular


class Lock:
    """Held by the watcher, and by every command that acts without one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        #: Whether another process held it before this one did (its pid is in the file): vmpin was at work here.
        self.used = False

    def __enter__(self) -> Lock:
        self._fd = self._taken()
        return self

    def held(self) -> bool:
        """Whether what is held is what lies there: else it locks nothing any more."""
        try:
            return self._in_place(self._fd)
        except OSError:
            return False

    def _in_place(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(fd))
        except FileNotFoundError:
            return False

    def again(self) -> None:
        """Take the lock that lies there now, made where there is none. What was held stays held when this fails.
        :raises LockHeldError: when another process holds it. :raises WatcherError: when it cannot be taken for another
            reason (ENOSPC, EROFS, EMFILE), which may pass."""
        before, self._fd = self._fd, self._taken()
        os.close(before)

    def _taken(self) -> int:
        """A locked descriptor of the file at the path, with this process's pid in it. :raises: as `again`."""
        fd = self._take()
        try:
            while not self._in_place(fd):
                os.close(fd)  # its holder has removed it meanwhile: it locks nothing any more
                fd = self._take()
            self.used = self.used or os.fstat(fd).st_size > 0
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except OSError as err:
            os.close(fd)  # else it stays locked by this very process
            raise self._error(err) from err
        return fd

    def _take(self) -> int:
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            fd = open_regular(self.path, os.O_RDWR | os.O_CREAT)
        except OSError as err:
            raise self._error(err) from err
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            if err.errno != errno.EWOULDBLOCK:
                raise self._error(err) from err
            raise LockHeldError(f"another vmpin (pid {holder or 'unknown'}) is at work on {self.path.parent}",
                                "stop it first; two would set the masks of the same threads") from None
        return fd

    def _error(self, err: OSError) -> WatcherError:
        return WatcherError(f"{self.path}: {err.strerror}", "run as root, or set paths.run elsewhere")

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def of_another(path: Path) -> bool:
    """Whether another process held the lock last: its pid is in the file."""
    try:
        return path.read_bytes().strip() not in (b"", b"%d" % os.getpid())
    except OSError:
        return False
