"""inotify(7): events for changed directories and files, in place of polling.

`fd` is for an event loop. Events are lost when the queue is full, and watches fail when there are too many, so callers
must also re-read from time to time.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

from vmpin.named_tuple import NamedTuple

#: include/uapi/linux/inotify.h
IN_MODIFY, IN_MOVED_TO, IN_DELETE, IN_Q_OVERFLOW, IN_IGNORED = 0x2, 0x80, 0x200, 0x4000, 0x8000

_EVENT = struct.Struct("iIII")
#: errno for a path that cannot be watched: it does not exist, may not be watched, or there are too many watches.
_REFUSED = (errno.ENOSPC, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG, errno.ENODEV)
_READ = 65536  #: Four thousand events without names; one with the longest name has 272 bytes.


class InotifyEvent(NamedTuple):
    """An event. `wd` is the number that watch() returned, -1 if events were lost (IN_Q_OVERFLOW)."""

    wd: int
    mask: int

    @property
    def overflow(self) -> bool:
        """Whether events were lost: anything may have changed."""
        return bool(self.mask & IN_Q_OVERFLOW)

    @property
    def ended(self) -> bool:
        """Whether this is the last event of its watch: the path was removed, or unwatch() was called."""
        return bool(self.mask & IN_IGNORED)


class Inotify:
    """An inotify instance. :raises OSError: EMFILE when the user has too many (fs.inotify.max_user_instances)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def watch(self, path: str | Path, mask: int) -> int | None:
        """Watch a path; for a path that is already watched, replace the mask.
        :returns: the watch's number, as in its events; None if the path does not exist, may not be watched, or there
            are too many watches (fs.inotify.max_user_watches).
        :raises OSError: any other error, such as ENOMEM."""
        wd: int = self._libc.inotify_add_watch(self.fd, os.fsencode(path), ctypes.c_uint32(mask))
        if wd >= 0:
            return wd
        code = ctypes.get_errno()
        if code not in _REFUSED:
            raise OSError(code, os.strerror(code), os.fspath(path))
        return None

    def unwatch(self, wd: int) -> None:
        """End a watch. Queued events and an `ended` event still arrive. No-op for a watch that has ended."""
        self._libc.inotify_rm_watch(self.fd, wd)

    def read(self) -> list[InotifyEvent]:
        """Return pending events, oldest first; [] if there are none. Many events take several calls."""
        try:
            raw = os.read(self.fd, _READ)
        except BlockingIOError:
            return []
        events, at = [], 0
        while at < len(raw):
            wd, mask, _, length = _EVENT.unpack_from(raw, at)
            at += _EVENT.size + length  # without the file's name in a watched directory
            events.append(InotifyEvent(wd, mask))
        return events

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
