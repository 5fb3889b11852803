"""The watcher's description of itself for `vmpin doctor` and `gather`: version, configuration, sources, passes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from vmpin.reconcile.view import NodeView
from vmpin.status.health import SourceHealth


def version() -> str:
    """vmpin's installed version; "" if it runs without an installation."""
    from importlib import metadata  # 20 ms, only spent where the version is needed

    try:
        return metadata.version("vmpin")
    except metadata.PackageNotFoundError:
        return ""


class About:
    """Created when the watcher is ready: the version is that of the running code, not of a later installation."""

    def __init__(self) -> None:
        self._version = version()
        self._since = time.monotonic()

    def data(self, view: NodeView, resynced: float, sources: Iterable[SourceHealth]) -> dict[str, object]:
        """Return the watcher's own part of the status, as JSON data. Times are in seconds; `resynced` and the `age` of
        the last hook are ages.
        :param resynced: time of the last resync, by time.monotonic()."""
        now, counters = time.monotonic(), view.counters
        hook_age = (None if counters.last_hook_at is None else
                    round(time.clock_gettime(time.CLOCK_BOOTTIME) - counters.last_hook_at, 3))
        return {"pid": os.getpid(), "version": self._version, "uptime": round(now - self._since, 3),
                "resynced": round(now - resynced, 3), "resync_seconds": view.config.watch.resync_seconds,
                "passes": dict(counters.passes), "hooks": {"taken": counters.hooks["taken"], "age": hook_age},
                "sources": [source._asdict() for source in sources], "saved": view.saved, "config": view.config.data()}
