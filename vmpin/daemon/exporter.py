"""Answers scrapes and probes: /metrics, /healthz (liveness), /readyz (readiness), over TCP or a unix socket.

It runs in the watcher's own loop: what is shown is read where it is changed, no thread waits for another, and a loop
that hangs answers no probe. The work is done in short turns, and once a second at most however often it is asked
for."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Protocol

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.config.values import Address
from vmpin.domain.counters import Counters, Histogram
from vmpin.domain.model import SandboxId
from vmpin.errors import ConfigError
from vmpin.feature import WatcherPart
from vmpin.host import sockets
from vmpin.host.sockets import Acceptor
from vmpin.host.turns import in_turns
from vmpin.reconcile.view import NodeView
from vmpin.status import health
from vmpin.status.health import SourceHealth

if TYPE_CHECKING:
    from vmpin.domain.guest_report import GuestReport
    from vmpin.status.prometheus import Headcount, NodeCollector

logger = logging.getLogger(__name__)

MAX_HEAD = 8192
MAX_CONNECTIONS = 16
BACKLOG = 16


class HttpReply(NamedTuple):
    status: HTTPStatus
    body: bytes
    type: str = "text/plain; charset=utf-8"


Handler = Callable[[str], Awaitable[HttpReply]]  #: Answers a path, such as /metrics.


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; `host` is an IP address. :raises OSError: it cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Not create_server: it overrides net.ipv6.bindv6only, one way or the other.
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


async def serve(made: socket.socket, handler: Handler, timeouts: Timeouts = TIMEOUTS,
                most: int = MAX_CONNECTIONS) -> None:
    """Answer until cancelled, `most` connections at a time. `made` is the caller's to close."""
    places, acceptor = asyncio.Semaphore(most), Acceptor(made, timeouts.no_descriptors)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await places.acquire()
            connection = await acceptor.accept()
            tasks.create_task(_attend(connection, handler, timeouts)).add_done_callback(lambda _: places.release())
            await asyncio.sleep(timeouts.http_pace)


async def _attend(connection: socket.socket, handler: Handler, timeouts: Timeouts) -> None:
    """Answer one request, and close the connection. No error of it ends the others."""
    loop = asyncio.get_running_loop()
    with connection, contextlib.suppress(Exception):
        async with asyncio.timeout(timeouts.http_request):
            async with asyncio.timeout(timeouts.http_head):
                head = await _head(connection)
            if not head:
                return
            await loop.sock_sendall(connection, await _answer(head, handler))
            connection.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(timeouts.http_head):
            await _drain(connection)


async def _drain(connection: socket.socket) -> None:
    """Read the rest of the request: at unread bytes the kernel resets the connection, with the reply."""
    loop = asyncio.get_running_loop()
    for _ in range(MAX_HEAD // 1024):
        if not await loop.sock_recv(connection, 4096):
            return


async def _head(connection: socket.socket) -> bytes:
    """The request up to its empty line, or more than MAX_HEAD bytes; empty when the client closed before."""
    loop = asyncio.get_running_loop()
    head = b""
    while len(head) <= MAX_HEAD:
        part = await loop.sock_recv(connection, 4096)
        head += part
        if not part:
            return b""
        if b"\r\n\r\n" in head or b"\n\n" in head:
            return head.replace(b"\r\n", b"\n").partition(b"\n\n")[0]
    return head


async def _answer(head: bytes, handler: Handler) -> bytes:
    found = path_of(head)
    if isinstance(found, HttpReply):
        return render(found)
    try:
        reply = await handler(found)
    except Exception as err:
        logger.error("%s cannot be answered: %r", found, err)
        logger.debug("%s", found, exc_info=True)
        reply = _refuse(HTTPStatus.INTERNAL_SERVER_ERROR)
    return render(reply, with_body=head.startswith(b"GET "))


def path_of(head: bytes) -> str | HttpReply:
    """The path that is asked for, without the query, or what is answered to a head that is none of ours."""
    if len(head) > MAX_HEAD:
        return _refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    fields = head.partition(b"\n")[0].split(b" ")
    if len(fields) != 3 or not fields[2].startswith(b"HTTP/1.") or not fields[1].startswith(b"/"):
        return _refuse(HTTPStatus.BAD_REQUEST)
    if fields[0] not in (b"GET", b"HEAD"):
        return _refuse(HTTPStatus.METHOD_NOT_ALLOWED)
    return fields[1].partition(b"?")[0].decode("ascii", "backslashreplace")


def _refuse(status: HTTPStatus) -> HttpReply:
    return HttpReply(status, f"{status.phrase}\n".encode())


def render(reply: HttpReply, with_body: bool = True) -> bytes:
    """A reply as it goes over the wire."""
    more = "Allow: GET, HEAD\r\n" if reply.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (f"HTTP/1.1 {reply.status.value} {reply.status.phrase}\r\nContent-Type: {reply.type}\r\n"
            f"Content-Length: {len(reply.body)}\r\n{more}Cache-Control: no-store\r\nConnection: close\r\n\r\n")
    return head.encode() + (reply.body if with_body else b"")


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
            await serve(made, self.answer, self._timeouts)
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
            from vmpin.status.prometheus import Headcount

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
        return listen(address.host, address.port)
    if not sockets.remove_left(address.path):
        raise ConfigError(f"metrics.address: {address.path} exists, and is another program's", "name another path")
    return sockets.listen(address.path, group)
