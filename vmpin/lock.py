"""The one who may act: a lock on the run directory, which the kernel drops when its holder dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from vmpin.errors import WatcherError


class Lock:
    """Held by the watcher, and by every command that acts without one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def __enter__(self) -> Lock:
        while True:
            self._take()
            try:
                if os.stat(self.path).st_ino == os.fstat(self._fd).st_ino:
                    break
            except FileNotFoundError:
                pass
            os.close(self._fd)  # whoever held it has removed it meanwhile: it locks nothing any more
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        return self

    def _take(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as err:
            raise WatcherError(f"{self.path}: {err.strerror}", "run as root, or set paths.run elsewhere") from err
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise WatcherError(f"another vmpin (pid {holder or 'unknown'}) is at work on {self.path.parent}",
                               "stop it first; two would fight over the same threads") from None

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
