"""Files of other programs, read safely: only regular ones (a FIFO could block, a device could act), no symbolic link
as the last component, a bounded size. Also the stamp that shows whether a file has changed.

Directories in a path may be symbolic links, as /var/run and the kubelet's directory are on many nodes. `Files` reads
configuration below a root: `/`, or the mount point of the node's file system in a pod.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from vmpin.errors import SourceError

#: No configuration that people or tools write is larger.
MAX_BYTES = 1 << 20
#: Bytes of one read: a file may be empty when its size is read, and filled when it is read (Kata writes in place).
_LEAST_READ = 1 << 16
_MAX_LINKS = 40
_DEEPEST = 5  #: Levels of directories.
#: O_NONBLOCK: opening a FIFO does not wait for its other end.
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

#: Nanoseconds within which a second write may leave the stamp unchanged: the file system's clock ticks every 4 ms, and
#: an inode freed by a rename may be reused for the next file.
FRESH = 50_000_000

Stamp = tuple[int, int, int]  #: A file's inode, mtime (ns) and size.
Identity = tuple[int, int]  #: Device and inode.


def stamp(info: os.stat_result) -> Stamp:
    """The stamp of a file's present version."""
    return info.st_ino, info.st_mtime_ns, info.st_size


def lasting_stamp(info: os.stat_result) -> Stamp:
    """The stamp to keep for a file that has just been read. For a file written within FRESH it is one that no file
    has: a second write within the same clock tick and of the same length would otherwise never be noticed."""
    return (0, 0, 0) if time.time_ns() - info.st_mtime_ns < FRESH else stamp(info)


def identity(path: str | os.PathLike[str]) -> Identity | None:
    """The identity of the file at a path, without following a symbolic link; None if there is none."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


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


def path_of(pid: int | str, path: str | os.PathLike[str]) -> str:
    """Where this process finds the file that process `pid` has at a path: in its mount namespace, and relative to its
    working directory."""
    path = os.fspath(path)
    return f"/proc/{pid}/root{path}" if path.startswith("/") else f"/proc/{pid}/cwd/{path}"


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """A path for the address of a socket at `path`, as an address has 107 bytes at most: of its directory, opened.
    :raises OSError: the directory cannot be opened."""
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{os.path.basename(path)}"
    finally:
        os.close(directory)


def read_regular(path: str | os.PathLike[str], most: int, *, follow: bool = False) -> tuple[bytes, os.stat_result]:
    """Read a regular file. :returns: its bytes, and its status as of opening it.
    :raises OSError: as `open_regular`; EFBIG if it has more than `most` bytes."""
    fd = open_regular(path, follow=follow)
    try:
        info = os.fstat(fd)
        step, raw = max(min(info.st_size, most) + 1, _LEAST_READ), b""
        while len(raw) <= most and (part := os.read(fd, min(step, most + 1 - len(raw)))):  # it may grow meanwhile
            raw += part
        if len(raw) > most:
            raise OSError(errno.EFBIG, f"is larger than {most} bytes", os.fspath(path))
        return raw, info
    finally:
        os.close(fd)


class Files:
    """Reads files below `root`. All paths in arguments and results are paths on the node: absolute, without the root.
    Symbolic links are resolved as on the node, so none leads out of the root."""

    def __init__(self, root: str | Path = "/") -> None:
        # Not realpath: the link /proc/1/root reads "/", but leads into another mount namespace.
        self.root = os.path.abspath(root).rstrip("/")

    def real(self, path: str | Path) -> str:
        """Resolve a path's symbolic links. Components that do not exist are kept as they are."""
        done: list[str] = []
        todo = [part for part in os.fspath(path).split("/") if part][::-1]
        links = 0
        while todo:
            part = todo.pop()
            if part == ".":
                continue
            if part == "..":
                del done[-1:]
                continue
            try:
                target = os.readlink("/".join((self.root, *done, part)))
            except (OSError, ValueError):
                done.append(part)
                continue
            if (links := links + 1) > _MAX_LINKS:
                return os.fspath(path)
            if target.startswith("/"):
                done.clear()
            todo += [piece for piece in target.split("/") if piece][::-1]
        return "/" + "/".join(done)

    def host(self, path: str | Path) -> Path:
        """Return the path at which this process finds a file of the host."""
        return Path(self.root + self.real(path))

    def read(self, path: str | Path, most: int = MAX_BYTES) -> bytes | None:
        """Read a file; None if it does not exist. :raises SourceError: it cannot be read, or is no regular file.
        :param most: the maximum size in bytes."""
        try:
            return read_regular(self.host(path), most)[0]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as err:
            raise SourceError(str(path), str(getattr(err, "strerror", "") or err)) from err

    def beginning(self, path: str | Path, most: int) -> bytes:
        """Read the first `most` bytes of a file of any size; b"" if it cannot be read."""
        try:
            fd = open_regular(self.host(path))
            try:
                return os.read(fd, most)
            finally:
                os.close(fd)
        except (OSError, ValueError):
            return b""

    def text(self, path: str | Path) -> str | None:
        """Read a text file; None if it does not exist. :raises SourceError: as `read`, and if it is not UTF-8."""
        raw = self.read(path)
        try:
            return None if raw is None else raw.decode()
        except UnicodeDecodeError as err:
            raise SourceError(str(path), f"is no UTF-8 text (byte {err.start})") from err

    def exists(self, path: str | Path) -> bool:
        return os.path.exists(self.host(path))

    def names(self, path: str | Path) -> list[str]:
        """Return the sorted names in a directory; [] if it cannot be listed."""
        try:
            return sorted(os.listdir(self.host(path)))
        except (OSError, ValueError):
            return []

    def below(self, directory: str, depth: int = _DEEPEST) -> Iterator[str]:
        """Yield the files in a directory and its subdirectories, in the order of their names, as Go's filepath.Walk
        does it: a symbolic link counts as a file, so a mounted ConfigMap's `..data` is not entered, and neither is the
        directory itself where it is a link, unless its path ends with a slash."""
        above, _, last = directory.rpartition("/")
        # Not Path's methods, which raise what cannot be looked at: another process's root may not be entered.
        if os.path.islink(self.host(above) / last):
            yield directory
            return
        directory = directory.rstrip("/")
        top = self.host(directory)
        for name in self.names(directory):
            path = f"{directory}/{name}"
            if os.path.islink(top / name) or not os.path.isdir(top / name):
                yield path
            elif depth:
                yield from self.below(path, depth - 1)

    def glob(self, pattern: str) -> list[str]:
        """The files that match an absolute pattern, sorted. Symbolic links are resolved below the root."""
        paths = ["/"]
        for part in (part for part in pattern.split("/") if part):
            if any(char in part for char in "*?["):
                paths = [f"{at.rstrip('/')}/{name}" for at in paths for name in self.names(at)
                         if fnmatch.fnmatchcase(name, part)]
            else:
                paths = [f"{at.rstrip('/')}/{part}" for at in paths]
        return [path for path in paths if self.exists(path)]
