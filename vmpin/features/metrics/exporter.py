"""Answers scrapes and probes over HTTP: /metrics, /healthz (liveness), /readyz (readiness), on TCP or a unix socket.

It runs in the watcher's own loop: no thread reads what another changes, and a loop that hangs answers no probe. The
work is done in short turns, and once a second at most however many requests come. Clients are not trusted: the head of
a request is bounded in size and time, and connections are bounded in number and accepted at a bounded rate, so that a
flood costs the loop some hundredths of a CPU; the kernel's backlog holds the others. RFC 9112, one GET or HEAD a
connection; no TLS, no keep-alive, no bodies."""

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
from typing import TYPE_CHECKING, Protocol

from vmpin.domain.counters import Counters, Histogram
from vmpin.domain.model import SandboxId
from vmpin.errors import ConfigError
from vmpin.feature import WatcherPart
from vmpin.features.metrics.metrics_settings import Address
from vmpin.host import sockets
from vmpin.host.files import identity
from vmpin.host.sockets import NO_DESCRIPTORS, TURN, Acceptor, in_turns
from vmpin.named_tuple import NamedTuple
from vmpin.reconcile.view import NodeView
from vmpin.status import health
from vmpin.status.health import SourceHealth

if TYPE_CHECKING:
    from vmpin.domain.guest_report import GuestReport
    from vmpin.features.metrics.prometheus import NodeCollector

logger = logging.getLogger(__name__)

MAX_HEAD = 8192
MAX_CONNECTIONS = 16
BACKLOG = 16


class HttpTimes(NamedTuple):
    """Deadlines, pauses and periods, in seconds."""

    head: float = 2.0  #: For the head of a request to arrive.
    request: float = 10.0  #: For the whole request to be answered and read.
    pace: float = 0.01  #: Between two connections that are accepted. A scrape comes every few seconds.
    no_descriptors: float = NO_DESCRIPTORS
    page_age: float = 1.0  #: For this long a scrape's page is given to the next client, too.
    turn: float = TURN
    loop_lag: float = 0.5  #: Between two measurements of the loop's lag.


TIMES = HttpTimes()


class HttpReply(NamedTuple):
    status: HTTPStatus
    body: bytes
    type: str = "text/plain; charset=utf-8"


Handler = Callable[[str], Awaitable[HttpReply]]  #: Answers a path, such as /metrics.


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; `host` is an IP address. :raises OSError: it cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Not create_server: it overrides net.ipv6.bindv6only, one way or the other.
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


async def serve(listener: socket.socket, handler: Handler, times: HttpTimes = TIMES,
                most: int = MAX_CONNECTIONS) -> None:
    """Answer until cancelled, `most` connections at a time. The caller closes the listener."""
    places, acceptor = asyncio.Semaphore(most), Acceptor(listener, times.no_descriptors)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await places.acquire()
            connection = await acceptor.accept()
            tasks.create_task(_attend(connection, handler, times)).add_done_callback(lambda _: places.release())
            await asyncio.sleep(times.pace)


async def _attend(connection: socket.socket, handler: Handler, times: HttpTimes) -> None:
    """Answer one request, and close the connection. No error in it ends the other connections."""
    loop = asyncio.get_running_loop()
    with connection, contextlib.suppress(Exception):
        async with asyncio.timeout(times.request):
            async with asyncio.timeout(times.head):
                head = await _head(connection)
            if not head:
                return
            await loop.sock_sendall(connection, await _answer(head, handler))
            connection.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(times.head):
            await _drain(connection)


async def _drain(connection: socket.socket) -> None:
    """Read the rest of the request: with bytes unread the kernel resets the connection, and the reply is lost."""
    loop = asyncio.get_running_loop()
    for _ in range(MAX_HEAD // 1024):
        if not await loop.sock_recv(connection, 4096):
            return


async def _head(connection: socket.socket) -> bytes:
    """The request up to its empty line, or more than MAX_HEAD bytes; empty if the client closed before that."""
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
    path = path_of(head)
    if isinstance(path, HttpReply):
        return render(path)
    try:
        reply = await handler(path)
    except Exception as err:
        logger.error("%s cannot be answered: %r", path, err)
        logger.debug("%s", path, exc_info=True)
        reply = _refuse(HTTPStatus.INTERNAL_SERVER_ERROR)
    return render(reply, with_body=head.startswith(b"GET "))


def path_of(head: bytes) -> str | HttpReply:
    """The path that a request is for, without the query; or the refusal of a head that is too long or not HTTP."""
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
    more = "Allow: GET, HEAD\r\n" if reply.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (f"HTTP/1.1 {reply.status.value} {reply.status.phrase}\r\nContent-Type: {reply.type}\r\n"
            f"Content-Length: {len(reply.body)}\r\n{more}Cache-Control: no-store\r\nConnection: close\r\n\r\n")
    return head.encode() + (reply.body if with_body else b"")


class ExportedWatcher(Protocol):
    """What the exporter reads of a watcher. `resynced` is the time of its last resync (time.monotonic()), `restarts`
    counts each task's failures; `guest` returns a guest's report, None where it is sent no map. `counters` gets the
    loop's lag."""

    view: NodeView
    resynced: float
    restarts: Counter[str]
    counters: Counters
    parts: Mapping[str, WatcherPart]

    def source_health(self) -> Iterable[SourceHealth]: ...

    def guest(self, sandbox: SandboxId, /) -> GuestReport | None: ...


class Exporter:
    """`run` is one of the watcher's tasks, where `metrics.address` is set."""

    def __init__(self, watcher: ExportedWatcher, times: HttpTimes = TIMES) -> None:
        self._watcher = watcher
        self._times = times
        self._collector: NodeCollector | None = None
        self._scraping = asyncio.Lock()
        self._page = b""
        self._written = float("-inf")  #: When the page was, by time.monotonic().

    async def run(self) -> None:
        """Serve metrics until cancelled. :raises ConfigError, OSError: when it cannot listen there."""
        config = self._watcher.view.config
        address: Address | None = config.of_features["metrics"].address
        assert address is not None
        await asyncio.to_thread(importlib.import_module, "vmpin.features.metrics.prometheus")
        listener = _listen(address, config.watch.status_group)
        own = None if address.path is None else identity(address.path)
        lag = asyncio.create_task(measure_lag(self._watcher.counters.loop_lag, self._times.loop_lag))
        try:
            logger.info("metrics at %s", address)
            await serve(listener, self.answer, self._times)
        finally:
            lag.cancel()
            listener.close()
            if address.path is not None:
                sockets.unlink_own(address.path, own)

    async def answer(self, path: str) -> HttpReply:
        match path:
            case "/metrics":
                from vmpin.features.metrics.prometheus import CONTENT_TYPE

                return HttpReply(HTTPStatus.OK, await self.metrics(), CONTENT_TYPE)
            case "/healthz" | "/livez":
                return _probe_reply([self._alive()])
            case "/readyz":
                return _probe_reply([self._alive(), *self._watcher.source_health()])
        return HttpReply(HTTPStatus.NOT_FOUND, b"not found: /metrics, /healthz and /readyz are here\n")

    def _alive(self) -> SourceHealth:
        return health.alive(time.monotonic() - self._watcher.resynced, self._watcher.view.config.watch.resync_seconds)

    async def metrics(self) -> bytes:
        """Return all metrics as text. Requests that come while it is written get the same text."""
        async with self._scraping:
            if time.monotonic() - self._written < self._times.page_age:
                return self._page
            from vmpin.features.metrics.prometheus import Headcount, NodeCollector, ScrapeData, text_of

            watcher, turn = self._watcher, self._times.turn
            count = Headcount()
            await in_turns(count.take(watcher.view), turn)
            collector = self._collector = self._collector or NodeCollector()
            collector.facts = ScrapeData(
                watcher.view, count, tuple(watcher.source_health()), self._guests(), watcher.restarts,
                time.time() - time.monotonic() + watcher.resynced, len(asyncio.all_tasks()),
                watcher.view.config.of_features["metrics"].per_sandbox, watcher.parts.values())
            families = list(collector.collect())  # at one moment; only writing is done in turns
            self._page = b"".join(await in_turns(map(text_of, families), turn))
            self._written = time.monotonic()
            return self._page

    def _guests(self) -> dict[SandboxId, Counter[str]]:
        """Containers by their state in the guest, of each sandbox whose guest is sent a map."""
        states: dict[SandboxId, Counter[str]] = {}
        for sandbox, placement in self._watcher.view.placements.items():
            report = self._watcher.guest(sandbox)
            if report is not None:
                states[sandbox] = Counter(report.of(container).state for container in placement.containers)
        return states


async def measure_lag(lag: Histogram, period: float) -> None:
    """Measure how much later than due this task goes on: so late are hooks and requests answered. Until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + period
        await asyncio.sleep(period)
        lag.observe(loop.time() - due)


def _probe_reply(checks: list[SourceHealth]) -> HttpReply:
    well, text = page(checks)
    return HttpReply(HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, text.encode("utf-8", "replace"))


def page(checks: Iterable[SourceHealth]) -> tuple[bool, str]:
    """(True if every needed check is up, a line for each check in the format of Kubernetes: `[+]nri ok`). A check that
    is down and not needed is shown, and does not count."""
    lines, well = [], True
    for check in checks:
        well = well and (check.up or not check.needed)
        why = f": {_plain(check.why)}" if check.why else ""
        result = "ok" if check.up else "failed" if check.needed else "down, not needed"
        lines.append(f"[{'+' if check.up else '-' if check.needed else '~'}]{check.name} {result}{why}")
    return well, "\n".join([*lines, "ok" if well else "failed", ""])


def _plain(text: str) -> str:
    """The first 200 characters, without those that control a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text[:200])


def _listen(address: Address, group: str) -> socket.socket:
    """Listen on the metrics' address.
    :param group: whose members may connect to a unix socket, besides root; "" for no group."""
    if address.path is None:
        return listen(address.host, address.port)
    if not sockets.remove_left(address.path):
        raise ConfigError(f"metrics.address: {address.path} exists, and is another program's", "name another path")
    return sockets.listen(address.path, group)
