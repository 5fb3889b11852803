"""Opening regular files that another program may have put there: no FIFO that blocks, no device that acts, no symbolic
link as the last part of a path, no more bytes than asked for; and the stamp by which an unchanged file is found.

The directories on the way may be links: /var/run and the kubelet's directory are on many nodes.
"""

from __future__ import annotations

import errno
import os
import stat
import time

#: Opening a FIFO with these does not wait for its other end, and a link is an error (ELOOP).
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

#: Nanoseconds in which a file may be written again and look the same: the file system's clock ticks every 4 ms, and
#: the inode that a rename frees is the next file's.
FRESH = 50_000_000

Stamp = tuple[int, int, int]  #: A file's inode, mtime (ns) and size.


def stamp(info: os.stat_result) -> Stamp:
    """The stamp of a file's present version."""
    return info.st_ino, info.st_mtime_ns, info.st_size


def lasting_stamp(info: os.stat_result) -> Stamp:
    """The stamp by which a file that has just been read is found unchanged later. A fresh file gets one that no file
    has: if it were rewritten within the same tick with the same length, it would look unchanged for ever."""
    return (0, 0, 0) if time.time_ns() - info.st_mtime_ns < FRESH else stamp(info)


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """A descriptor of a regular file.
    :param follow: also where the path ends in a symbolic link: what an operator named may be one.
    :raises OSError: EINVAL for what is no regular file, EISDIR for a directory, ELOOP for a link."""
    fd = os.open(path, flags | _FLAGS | (0 if follow else os.O_NOFOLLOW), 0o600)
    try:
        kind = os.fstat(fd).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "is no regular file", os.fspath(path))
    except OSError:
        os.close(fd)
        raise
    return fd


def read_regular(path: str | os.PathLike[str], most: int, *, follow: bool = False) -> tuple[bytes, os.stat_result]:
    """A regular file's bytes, and its status when it was opened.
    :raises OSError: as open_regular; EFBIG where it has more than `most` bytes."""
    fd = open_regular(path, follow=follow)
    try:
        info = os.fstat(fd)
        step, raw = min(info.st_size, most) + 1, b""
        while len(raw) <= most and (part := os.read(fd, min(step, most + 1 - len(raw)))):  # it may grow meanwhile
            raw += part
        if len(raw) > most:
            raise OSError(errno.EFBIG, f"is larger than {most} bytes", os.fspath(path))
        return raw, info
    finally:
        os.close(fd)
