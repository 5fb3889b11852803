"""Safe reading of files that other programs create: regular files only (a FIFO could block, a device could act), no
symbolic link as the last component, a bounded size. Also the stamp that shows whether a file has changed.

Directories in the path may be symbolic links, as /var/run and the kubelet's directory are on many nodes.
"""

from __future__ import annotations

import errno
import os
import stat
import time

#: O_NONBLOCK: opening a FIFO does not wait for its other end.
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

#: Nanoseconds within which a second write may leave the stamp unchanged: the file system's clock ticks every 4 ms, and
#: an inode freed by a rename may be reused for the next file.
FRESH = 50_000_000

Stamp = tuple[int, int, int]  #: A file's inode, mtime (ns) and size.


def stamp(info: os.stat_result) -> Stamp:
    """The stamp of a file's present version."""
    return info.st_ino, info.st_mtime_ns, info.st_size


def lasting_stamp(info: os.stat_result) -> Stamp:
    """The stamp to keep for a file that has just been read. For a file written within FRESH it is one that no file
    has: a second write within the same clock tick and of the same length would otherwise never be noticed."""
    return (0, 0, 0) if time.time_ns() - info.st_mtime_ns < FRESH else stamp(info)


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """Open a regular file. :returns: its descriptor.
    :param follow: whether the path may end in a symbolic link, for paths that an operator configured.
    :raises OSError: EINVAL if it is no regular file, EISDIR for a directory, ELOOP for a symbolic link."""
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
    """Read a regular file. :returns: its bytes, and its status as of opening it.
    :raises OSError: as `open_regular`; EFBIG if it has more than `most` bytes."""
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
