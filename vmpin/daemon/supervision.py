"""The watcher's tasks, by name: each is started again by itself when it fails, while the others go on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.daemon import sd_notify

logger = logging.getLogger(__name__)

Source = Callable[[], Coroutine[Any, Any, None]]

RECOVERED = 60.0  #: Seconds after which a task that fails counts as recovered from the failure before.


class SupervisedTasks:
    """`restarts` counts each task's failures; `failing` are the tasks that wait for their restart, with the error."""

    def __init__(self, timeouts: Timeouts = TIMEOUTS) -> None:
        self._timeouts = timeouts
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.names: tuple[str, ...] = ()
        self.restarts: Counter[str] = Counter()
        self.failing: dict[str, str] = {}

    def start(self, group: asyncio.TaskGroup, sources: Mapping[str, Source]) -> None:
        """Start a task for each source."""
        self.names = tuple(sources)
        self._tasks = {name: group.create_task(self._supervise(name, source)) for name, source in sources.items()}

    def cancel(self, *names: str) -> None:
        """Cancel tasks, each once: a second time would interrupt the task's clean-up."""
        for name in names:
            self._tasks[name].cancel()

    async def _supervise(self, name: str, source: Source) -> None:
        """Run a source's task, and start it again when it ends."""
        pause = self._timeouts.restart
        while True:
            started = time.monotonic()
            try:
                await source()
            except Exception as err:  # the other tasks go on
                self.restarts[name] += 1
                self.failing[name] = repr(err)
                if time.monotonic() - started > RECOVERED:
                    pause = self._timeouts.restart
                logger.error("task failed source=%s: %r; started again in %.1f s", name, err, pause)
                logger.debug("source=%s", name, exc_info=True)
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._timeouts.restart_most)
            self.failing.pop(name, None)


async def notify_watchdog() -> None:
    """Send WATCHDOG=1 as often as systemd expects it, until cancelled."""
    while True:
        sd_notify.notify("WATCHDOG=1")
        await asyncio.sleep(sd_notify.watchdog_seconds() or 10.0)
