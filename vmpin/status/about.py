"""The watcher's description of itself for `vmpin doctor` and `gather`: version, configuration, sources, passes.

What stays out: the sandboxes, which are the status document's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Protocol

from vmpin.config.settings import Config
from vmpin.reconcile.view import NodeView
from vmpin.status.health import SourceHealth


class DescribedWatcher(Protocol):
    """The part of a watcher that is described."""

    config: Config
    view: NodeView
    #: Time of the last resync, by time.monotonic(); None before the first.
    resynced: float | None

    def source_health(self) -> Iterable[SourceHealth]:
        """Its sources as they are now."""
        ...


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

    def data(self, watched: DescribedWatcher) -> dict[str, object]:
        """:returns: JSON data; times in seconds; `resynced` and the `age` of the last hook are ages."""
        now, tally = time.monotonic(), watched.view.counters
        return {
            "pid": os.getpid(), "version": self._version, "uptime": round(now - self._since, 3),
            "resynced": None if watched.resynced is None else round(now - watched.resynced, 3),
            "resync_seconds": watched.config.watch.resync_seconds,
            "passes": dict(watched.view.counters.passes),
            "hooks": {"taken": tally.hooks["taken"], "age": None if tally.last_hook_at is None else round(
                time.clock_gettime(time.CLOCK_BOOTTIME) - tally.last_hook_at, 3)},
            "sources": [{"name": source.name, "up": source.up, "needed": source.needed, "why": source.why}
                        for source in watched.source_health()],
            "saved": watched.view.saved,
            "config": watched.config.data()}
