"""Which files were written. A cgroup's files keep their modification time: the kernel changes it only when a writer
truncates them, which runc and crun do not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from vmpin.host.inotify import IN_MODIFY, Inotify


class FileWrites:
    """Of `paths`, from now on, whatever was written."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._inotify = Inotify()
        self._paths = {self._inotify.watch(path, IN_MODIFY): path for path in paths}
        assert None not in self._paths, "a file is not there, or there are too many watches"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._inotify.close()

    def read(self) -> set[Path]:
        """Those written since the last call."""
        found = set()
        while events := self._inotify.read():
            assert not any(event.overflow for event in events)
            found |= {self._paths[event.wd] for event in events if event.mask & IN_MODIFY}
        return found
