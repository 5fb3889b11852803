"""Other programs' configuration files, below a root: `/`, or where a pod has the node's file system mounted.

A symbolic link is followed as the node would follow it, so none leads out of the root. What cannot be read is
reported, and nothing is waited for.
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
    """Every path given, and every path returned, is the node's own: absolute, without the root."""

    def __init__(self, root: str | Path = "/") -> None:
        # Not realpath: what the link /proc/1/root leads to is another namespace's, and its text is "/".
        self.root = os.path.abspath(root).rstrip("/")

    def real(self, path: str | Path) -> str:
        """The path with its symbolic links followed, the node's. What does not exist is left as it is named."""
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
        """A file's bytes, None when there is none. :raises SourceError: when it cannot be read, or is none."""
        try:
            return read_regular(self.host(path), most)[0]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as err:
            raise SourceError(str(path), str(getattr(err, "strerror", "") or err)) from err

    def beginning(self, path: str | Path, most: int) -> bytes:
        """The first bytes of a file of any size; b"" where it cannot be read."""
        try:
            fd = open_regular(self.host(path))
        except (OSError, ValueError):
            return b""
        try:
            return os.read(fd, most)
        finally:
            os.close(fd)

    def text(self, path: str | Path) -> str | None:
        """The same as text. :raises SourceError: also when it is not UTF-8."""
        raw = self.read(path)
        try:
            return None if raw is None else raw.decode()
        except UnicodeDecodeError as err:
            raise SourceError(str(path), f"is no UTF-8 text (byte {err.start})") from err

    def exists(self, path: str | Path) -> bool:
        return os.path.exists(self.host(path))

    def names(self, path: str | Path) -> list[str]:
        """Return the names in a directory, sorted by name; [] when it cannot be listed."""
        try:
            return sorted(os.listdir(self.host(path)))
        except (OSError, ValueError):
            return []

    def glob(self, pattern: str) -> list[str]:
        """The files that match an absolute pattern, sorted; its links are followed like any other's."""
        paths = ["/"]
        for part in (part for part in pattern.split("/") if part):
            if any(char in part for char in "*?["):
                paths = [f"{at.rstrip('/')}/{name}" for at in paths for name in self.names(at)
                         if fnmatch.fnmatchcase(name, part)]
            else:
                paths = [f"{at.rstrip('/')}/{part}" for at in paths]
        return [path for path in paths if self.exists(path)]
