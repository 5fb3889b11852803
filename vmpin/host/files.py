"""Other programs' configuration files below a root: `/`, or the mount point of the node's file system in a pod.

Symbolic links are resolved as on the node, so none leads out of the root. Reading never blocks, and a file that cannot
be read is an error.
"""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path

from vmpin.errors import SourceError
from vmpin.host.regular import open_regular, read_regular

#: No configuration that people or tools write is larger.
MAX_BYTES = 1 << 20
_MAX_LINKS = 40


class Files:
    """Reads files below `root`. All paths in arguments and results are paths on the node: absolute, without the
    root."""

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
        except (OSError, ValueError):
            return b""
        try:
            return os.read(fd, most)
        finally:
            os.close(fd)

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
