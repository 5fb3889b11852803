"""Answers scrapes and probes: /metrics, /healthz (liveness), /readyz (readiness), over TCP or a unix socket.

It runs in the watcher's own loop: what is shown is read where it is changed, no thread waits for another, and a loop
that hangs answers no probe. The work is done in short turns, and once a second at most however often it is asked
for."""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.config.values import Address
from vmpin.daemon import http
from vmpin.daemon.http import HttpReply
from vmpin.domain.counters import Counters, Histogram
from vmpin.domain.model import SandboxId
from vmpin.errors import ConfigError
from vmpin.feature import WatcherPart
from vmpin.host import sockets
from vmpin.host.turns import in_turns
from vmpin.reconcile.view import NodeView
from vmpin.status import health
from vmpin.status.headcount import Headcount
from vmpin.status.health import SourceHealth

if TYPE_CHECKING:
    from vmpin.domain.guest_report import GuestReport
    from vmpin.status.prometheus import NodeCollector

logger = logging.getLogger(__name__)


class ExportedWatcher(Protocol):
    """What is shown of a watcher. `resynced` is the time of its last resync (time.monotonic()), `restarts` counts each
    task's failures, `counters` gets the loop's lag; `guest` returns a guest's report, None where no map is sent to
    it."""

    view: NodeView
    resynced: float
    restarts: Counter[str]
    counters: Counters
    parts: Mapping[str, WatcherPart]

    def source_health(self) -> Iterable[SourceHealth]: ...

    def guest(self, sandbox: SandboxId, /) -> GuestReport | None: ...


class Exporter:
    """`run` is one of the watcher's tasks, made only where `metrics.address` is set."""

    def __init__(self, watcher: ExportedWatcher, timeouts: Timeouts = TIMEOUTS) -> None:
        self._watcher = watcher
        self._timeouts = timeouts
        self._collector: NodeCollector | None = None
        self._scraping = asyncio.Lock()
        self._page = b""
        self._made = float("-inf")

    async def run(self) -> None:
        """Serve metrics until cancelled. :raises ConfigError, OSError: when it cannot listen there."""
        config = self._watcher.view.config
        address = config.metrics.address
        assert address is not None
        await asyncio.to_thread(importlib.import_module, "vmpin.status.prometheus")
        made = _listen(address, config.watch.status_group)
        own = None if address.path is None else sockets.identity(address.path)
        lag = asyncio.create_task(measure_lag(self._watcher.counters.loop_lag, self._timeouts.loop_lag))
        try:
            logger.info("metrics at %s", address)
            await http.serve(made, self.answer, self._timeouts)
        finally:
            lag.cancel()
            made.close()
            if address.path is not None:
                sockets.unlink_own(address.path, own)

    async def answer(self, path: str) -> HttpReply:
        match path:
            case "/metrics":
                from vmpin.status.prometheus import CONTENT_TYPE

                return HttpReply(HTTPStatus.OK, await self.metrics(), CONTENT_TYPE)
            case "/healthz" | "/livez":
                return _probe_reply([self._alive()])
            case "/readyz":
                return _probe_reply([self._alive(), *self._watcher.source_health()])
        return HttpReply(HTTPStatus.NOT_FOUND, b"not found: /metrics, /healthz and /readyz are here\n")

    def _alive(self) -> SourceHealth:
        return health.alive(time.monotonic() - self._watcher.resynced, self._watcher.view.config.watch.resync_seconds)

    async def metrics(self) -> bytes:
        """Return all metrics as text. Requests that come while it is made get the same text."""
        async with self._scraping:
            if time.monotonic() - self._made < self._timeouts.scrape_age:
                return self._page
            count = Headcount()
            await in_turns(count.take(self._watcher.view), self._timeouts.scrape_turn)
            self._page = await self._write(count)
            self._made = time.monotonic()
            return self._page

    async def _write(self, count: Headcount) -> bytes:
        from vmpin.status.prometheus import NodeCollector, ScrapeData, text_of

        watcher = self._watcher
        collector = self._collector = self._collector or NodeCollector()
        collector.facts = ScrapeData(watcher.view, count, tuple(watcher.source_health()), self._guests(),
                                     watcher.restarts, time.time() - time.monotonic() + watcher.resynced,
                                     len(asyncio.all_tasks()), watcher.view.config.metrics.per_sandbox,
                                     watcher.parts.values())
        families = list(collector.collect())  # at one moment; only the writing takes its time
        return b"".join(await in_turns(map(text_of, families), self._timeouts.scrape_turn))

    def _guests(self) -> dict[SandboxId, Counter[str]]:
        """Containers by the state of the map that their guest was sent, of each sandbox with a map."""
        found: dict[SandboxId, Counter[str]] = {}
        for sandbox, placement in self._watcher.view.placements.items():
            report = self._watcher.guest(sandbox)
            if report is not None:
                found[sandbox] = Counter(report.of(container).state for container in placement.containers)
        return found


async def measure_lag(found: Histogram, period: float) -> None:
    """Measure how much later than due this task goes on, as hooks and requests are answered. Until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + period
        await asyncio.sleep(period)
        found.observe(loop.time() - due)


def _probe_reply(checks: list[SourceHealth]) -> HttpReply:
    well, text = health.page(checks)
    return HttpReply(HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, text.encode("utf-8", "replace"))


def _listen(address: Address, group: str) -> socket.socket:
    """Listen on the metrics' address.
    :param group: whose members may connect to a unix socket, besides root; "" for no group."""
    if address.path is None:
        return http.listen(address.host, address.port)
    if not sockets.remove_left(address.path):
        raise ConfigError(f"metrics.address: {address.path} exists, and is another program's", "name another path")
    return sockets.listen(address.path, group)
