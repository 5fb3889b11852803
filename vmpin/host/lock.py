"""The lock on the run directory: only one vmpin process per node sets masks. The kernel releases it when the process
dies (flock)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from vmpin.errors import LockHeldError, WatcherError
from vmpin.host.files import open_regular, read_regular

if TYPE_CHECKING:
    from vmpin.host.procfs import Procfs

#: Below the pid, while the process and all before it have set no mask: it may be killed before that.
_UNUSED = b"no mask set yet\n"


class Lock:
    """The lock as a context manager. Held by the watcher, and by commands that set masks without a watcher."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        #: Whether another process that held the lock may have set masks.
        self.used = False

    def __enter__(self) -> Lock:
        self._fd = self._taken()
        return self

    def held(self) -> bool:
        """Whether the locked file is still the one at the path. If it was replaced, the lock is void."""
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
        """Lock the file that is at the path now, creating it if necessary. On failure the old lock is kept.
        :raises LockHeldError: another process holds the lock. :raises WatcherError: it cannot be taken for another,
            possibly temporary reason (ENOSPC, EROFS, EMFILE)."""
        before, self._fd = self._fd, self._taken(unused=b"")
        os.close(before)

    def _taken(self, unused: bytes = _UNUSED) -> int:
        """Lock the file at the path and write this process's pid. :returns: its descriptor. :raises: as `again`.
        :param unused: written below it where no other process may have set masks."""
        fd = self._take()
        try:
            while not self._in_place(fd):
                os.close(fd)  # its holder has removed the file meanwhile, so this lock is void
                fd = self._take()
            self.used = self.used or _shows_use(os.pread(fd, 64, 0))
            content = b"%d\n" % os.getpid() + (b"" if self.used else unused)
            os.pwrite(fd, content, 0)  # first: an empty file, as after ENOSPC, would show no use
            os.ftruncate(fd, len(content))
        except OSError as err:
            os.close(fd)  # otherwise this process would keep it locked
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
            holder = os.pread(fd, 32, 0).partition(b"\n")[0].decode("ascii", "replace").strip()
            # `held` could not see it for a moment (EIO, ENOMEM, a directory that was moved away and back).
            own = self._fd >= 0 and os.path.samestat(os.fstat(fd), os.fstat(self._fd))
            os.close(fd)
            if own or err.errno != errno.EWOULDBLOCK:
                raise self._error(err) from err
            raise LockHeldError(f"another vmpin (pid {holder or 'unknown'}) is at work on {self.path.parent}",
                                "stop it first; two would set the masks of the same threads") from None
        return fd

    def undo(self) -> None:
        """Leave the run directory as it was before the lock was taken: without its file, and without the directory if
        it is empty, unless another process had held the lock before."""
        if not self.used:
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it is systemd's, or has other files
                self.path.parent.rmdir()

    def _error(self, err: OSError) -> WatcherError:
        return WatcherError(f"{self.path}: {err.strerror}", "run as root, or set paths.run elsewhere")

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def note_use(path: Path) -> None:
    """Note in the lock's file that the process that holds it sets masks from now on. No error: the file may be gone,
    and cutting it needs no space."""
    with contextlib.suppress(OSError):
        fd = open_regular(path, os.O_RDWR)
        try:
            os.ftruncate(fd, len(os.pread(fd, 64, 0).removesuffix(_UNUSED)))
        finally:
            os.close(fd)


def note_end_of_use(path: Path) -> None:
    """Note in the lock's file that all masks are restored: without the state file they count as the original ones
    again. No error, as in `note_use`."""
    with contextlib.suppress(OSError):
        fd = open_regular(path, os.O_RDWR)
        try:
            os.pwrite(fd, _UNUSED, len(os.pread(fd, 64, 0).removesuffix(_UNUSED)))
        finally:
            os.close(fd)


def _shows_use(content: bytes) -> bool:
    """Whether a process that wrote this may have set masks."""
    return bool(content) and not content.endswith(_UNUSED)


def of_another(path: Path) -> bool:
    """Whether another process that held the lock may have set masks."""
    try:
        raw, _ = read_regular(path, 64)
    except OSError:
        return False
    return _shows_use(raw) and raw.strip() != b"%d" % os.getpid()


def lock_holder(path: Path, proc: Procfs) -> int | None:
    """Pid of the process that holds the watcher's lock, from the kernel's list of locks; None if it is free. (To try
    the lock would make a watcher fail that starts at that moment.)"""
    try:
        info = path.stat()
        table = Path(f"{proc.root}/locks").read_text("ascii", "replace")
    except OSError:
        return None
    file = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    for line in table.splitlines():
        fields = line.split()  # 1: FLOCK ADVISORY WRITE 1234 00:17:5678 0 EOF
        if "FLOCK" in fields and fields[-3] == file:
            return int(fields[-4])
    return None
