"""The watcher's sockets: accepting connections, the peers' credentials, and requests over Unix sockets.

A Unix socket is owned by root, with limits on the size of requests and on the time they may take. What takes the event
loop long is done in turns, or rationed, so that hooks and events are handled in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import logging
import os
import select
import socket
import stat
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from vmpin.bounded import parse_whole
from vmpin.errors import ConfigError
from vmpin.host.files import Identity, identity
from vmpin.log import LineLimit
from vmpin.named_tuple import NamedTuple

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
NO_DESCRIPTORS = 0.5  #: Pause while the process has no descriptor left for a connection (seconds).
TURN = 0.001  #: Work of one request after which the loop's other work has its turn (seconds).
_WARN_EVERY = 60.0  #: Seconds between two warnings about one socket.
_SO_PEERGROUPS = 59  #: asm-generic/socket.h, Linux 4.13; the socket module has no name for it.
#: The fraction of the loop's time that a socket's replies may take; and the most requests that may wait.
PART, WAITING = 0.2, 8
_BUSY = b'{"error":"too many requests at once","hint":"ask again later"}\n'
T = TypeVar("T")


class Peer(NamedTuple):
    """The uid of the connected process, and all its groups at the time of the connection."""

    uid: int
    gids: frozenset[int]


Admission = Callable[[Peer], bool]  #: Decides whether a peer is served.
Stream = AsyncGenerator[bytes, None]  #: A reply in parts, sent until the peer or the server ends it.
Handler = Callable[[bytes, int], Awaitable[bytes | Stream]]  #: Answers one request: (bytes, uid of the peer).


def gid_of(group: str) -> int:
    """A group's gid by its name, or by its number as text (in a container the host's groups have no names); -1 for "".
    :raises ConfigError: there is no such group."""
    if not group:
        return -1
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        if (number := parse_whole(group, 0xFFFFFFFE)) is not None:
            return number
        raise ConfigError(f"watch.status_group: no group {group!r} on this machine") from None


def is_member(peer: Peer, group: str) -> bool:
    """Whether a peer is root, this process's user, or in `group`. A group that was deleted has no members."""
    if peer.uid in (0, os.geteuid()):
        return True
    try:
        return gid_of(group) in peer.gids
    except ConfigError:
        return False


def peer_of(connection: socket.socket) -> Peer:
    """Read the credentials of a connection's peer: SO_PEERCRED, and SO_PEERGROUPS where the kernel has it."""
    _, uid, gid = struct.unpack("3I", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 65536)
    except OSError:
        raw = b""
    return Peer(uid, frozenset((gid, *struct.unpack(f"{len(raw) // 4}I", raw))))


class Acceptor:
    """Accepts the connections of one non-blocking listening socket, and survives running out of file descriptors
    (EMFILE): asyncio's own server (3.11) then logs a traceback for every slot of its backlog, and retries ever more
    often: thousands of lines a second. The caller closes the socket.
    :param pause: seconds to wait after a failed accept(). The socket stays readable while no descriptor is free, so
        without a pause the loop would spin."""

    def __init__(self, listening: socket.socket, pause: float) -> None:
        self._listening, self._pause = listening, pause
        self._warnings = LineLimit(1, _WARN_EVERY)

    async def accept(self) -> socket.socket:
        """Wait for a connection. :returns: its socket, set to non-blocking."""
        while True:
            await self._readable()
            try:
                # Not loop.sock_accept: a cancellation between accept() and its result loses the connection.
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                continue  # the client has gone
            except OSError as err:
                logger.log(self._warnings.spend(logging.WARNING),
                           "no connection can be accepted: %s; tried again every %g s", err.strerror, self._pause)
                await asyncio.sleep(self._pause)
                continue
            connection.setblocking(False)
            return connection

    async def _readable(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._listening, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._listening)


def listen(path: Path, group: str = "") -> socket.socket:
    """Create a listening socket with mode 0600, or 0660 for `group`. A socket left by a killed watcher is replaced:
    the caller holds the lock, so no other watcher is running.
    :raises OSError, ConfigError: it cannot listen there, or the group is unknown; nothing is left then."""
    gid_of(group)  # raises before the socket is created
    path.unlink(missing_ok=True)
    with contextlib.ExitStack() as failed:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        failed.callback(listener.close)
        before = os.umask(0o177)  # no other user can connect in the moment before chmod
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(before)
        failed.callback(path.unlink, missing_ok=True)
        open_to(path, group)
        listener.listen(MAX_CONNECTIONS)
        failed.pop_all()
    return listener


def open_to(path: Path, group: str) -> None:
    """Let the members of `group` connect to a socket; "" for root only. :raises ConfigError: unknown group."""
    gid = gid_of(group)
    os.chmod(path, 0o600)
    if group:
        os.chown(path, -1, gid)
        os.chmod(path, 0o660)


def unlink_own(path: Path, own: Identity | None) -> None:
    """Remove a socket, unless another file has replaced it since `identity` was called."""
    if own is not None and identity(path) == own:
        path.unlink(missing_ok=True)


def remove_left(path: Path) -> bool:
    """Remove a socket that a killed process left behind. A socket on which a process listens, and a file that is no
    socket, are kept. :returns: whether the path is free now."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
    except FileNotFoundError:
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return True
        except BlockingIOError:
            pass  # a listener is there, and busy
    return False


async def serve(listener: socket.socket, limit: int, handler: Handler, line: bool, deadline: float,
                admitted: Admission | None = None) -> None:
    """Serve one request per connection until cancelled. A peer that sends too much or nothing, or disconnects, loses
    only its own connection.
    :param limit: the maximum size of a request in bytes.
    :param line: whether a request is one line; otherwise it ends when the peer shuts down its side. The line of a peer
        that has hung up meanwhile is not carried out: a command that gave up, as this process was stopped, has failed.
    :param deadline: seconds after which a peer that neither sends nor reads is dropped.
    :param admitted: decides whether a peer is served, in addition to the socket's mode; None: the mode alone does."""
    busy = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal busy
        busy += 1
        try:
            if busy > MAX_CONNECTIONS:
                return
            peer = peer_of(writer.get_extra_info("socket"))
            if admitted is not None and not admitted(peer):
                logger.warning("a peer was refused: uid=%d", peer.uid)
                return
            async with asyncio.timeout(deadline):
                raw = await _read(reader, limit, line)
            if raw is None:
                await _send(writer, b"refused: more than %d bytes\n" % limit, deadline)
            elif raw and not (line and _has_hung_up(writer)):
                reply = await handler(raw, peer.uid)
                if isinstance(reply, bytes):
                    await _send(writer, reply, deadline)
                else:
                    async with contextlib.aclosing(reply):
                        async for part in reply:
                            await _send(writer, part, deadline)
        except (TimeoutError, OSError) as err:
            logger.debug("a peer was dropped: %r", err)
        finally:
            writer.close()
            try:
                async with asyncio.timeout(deadline):
                    await writer.wait_closed()
            except (TimeoutError, OSError):
                writer.transport.abort()  # the peer does not read
            busy -= 1

    acceptor = Acceptor(listener, NO_DESCRIPTORS)
    tasks: set[asyncio.Task[None]] = set()
    try:
        while True:
            connection = await acceptor.accept()
            reader, writer = await asyncio.open_unix_connection(sock=connection, limit=65536)
            task = asyncio.create_task(answer(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        listener.close()


def _has_hung_up(writer: asyncio.StreamWriter) -> bool:
    """Whether the peer has closed the connection; not if it only ended its side (shutdown) and waits for an answer."""
    poll = select.poll()
    poll.register(writer.get_extra_info("socket"), 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


async def _read(reader: asyncio.StreamReader, limit: int, line: bool) -> bytes | None:
    """Read a request; None if it is longer than `limit`."""
    raw = bytearray()
    while part := await reader.read(65536):
        raw += part
        if len(raw) > limit:
            return None
        if line and b"\n" in part:
            break
    return bytes(raw)


async def _send(writer: asyncio.StreamWriter, part: bytes, deadline: float) -> None:
    """Send a part of a reply. :raises TimeoutError: the peer does not read. :raises OSError: it is gone."""
    writer.write(part)
    async with asyncio.timeout(deadline):
        await writer.drain()


async def in_turns(work: Iterator[T], turn: float = TURN) -> list[T]:
    """Run all steps of `work`; yield to the event loop every `turn` seconds. :returns: what the steps returned."""
    results = []
    began = time.monotonic()
    for result in work:
        results.append(result)
        if time.monotonic() - began > turn:
            await asyncio.sleep(0)
            began = time.monotonic()
    return results


class Rationed:
    """Wraps a handler: one request at a time, within the fraction PART of the event loop's time. Clients that send
    requests without end have to wait or are refused, and do not delay hooks and passes. The handler must not await
    anything.
    :param now: a monotonic clock in seconds. :param sleep: sleeps by that clock."""

    def __init__(self, handler: Handler, now: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._handler, self._now, self._sleep = handler, now, sleep
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._due = 0.0  #: By `now`.

    async def __call__(self, raw: bytes, uid: int) -> bytes | Stream:
        if self._waiting >= WAITING:
            return _BUSY
        self._waiting += 1
        try:
            async with self._turn:
                await self._sleep(max(0.0, self._due - self._now()))
                began = self._now()
                try:
                    return await self._handler(raw, uid)
                finally:
                    now = self._now()
                    self._due = now + (now - began) / PART
        finally:
            self._waiting -= 1
