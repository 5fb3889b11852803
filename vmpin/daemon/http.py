"""As much of HTTP as a scrape and a probe take: one GET a connection, answered and closed.

Clients are not trusted: the head of a request is bounded in size and time, and connections are bounded in number and
accepted at a bounded rate, so that a flood costs the loop some hundredths of a CPU; the kernel's backlog holds the
others. A client that sends nothing, or does not read its answer, is dropped at its deadline. RFC 9112; no TLS, no
keep-alive, no bodies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.host.sockets import Acceptor

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
