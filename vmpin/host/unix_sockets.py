"""The watcher's Unix sockets: owned by root, with limits on the size of requests and on the time they may take."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from vmpin.host.accepting import Acceptor
from vmpin.host.socket_peers import Admission, gid_of, peer_of
from vmpin.host.socket_streams import Stream, Streams

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
NO_DESCRIPTORS = 0.5  #: Pause while the process has no descriptor left for a connection (seconds).

Identity = tuple[int, int]  #: Device and inode.
Handler = Callable[[bytes, int], Awaitable[bytes | Stream]]  #: Answers one request: (bytes, uid of the peer).


def listen(path: Path, group: str = "") -> socket.socket:
    """Create a listening socket with mode 0600, or 0660 for `group`. A socket left by a killed watcher is replaced:
    the caller holds the lock, so no other watcher is running. :raises ConfigError: unknown group."""
    gid_of(group)  # raises before the socket is created
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)  # no other user can connect in the moment before chmod
    try:
        listener.bind(os.fspath(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    open_to(path, group)
    listener.listen(MAX_CONNECTIONS)
    return listener


def identity(path: Path) -> Identity | None:
    """Return the (device, inode) of a path; None if it does not exist."""
    try:
        info = path.lstat()
    except OSError:
        return None
    return info.st_dev, info.st_ino


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


def open_to(path: Path, group: str) -> None:
    """Let the members of `group` connect to a socket; "" for root only. :raises ConfigError: unknown group."""
    gid = gid_of(group)
    os.chmod(path, 0o600)
    if group:
        os.chown(path, -1, gid)
        os.chmod(path, 0o660)


async def serve(listener: socket.socket, limit: int, handler: Handler, line: bool, deadline: float,
                admitted: Admission = lambda peer: True) -> None:
    """Serve one request per connection until cancelled. A peer that sends too much or nothing, or disconnects, loses
    only its own connection.
    :param limit: the maximum size of a request in bytes.
    :param line: whether a request is one line; otherwise it ends when the peer shuts down its side.
    :param deadline: seconds after which a peer that neither sends nor reads is dropped.
    :param admitted: decides whether a peer is served, in addition to the socket's mode."""
    busy = 0
    streams = Streams(deadline)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal busy
        busy += 1
        try:
            if busy > MAX_CONNECTIONS:
                return
            peer = peer_of(writer.get_extra_info("socket"))
            if not admitted(peer):
                logger.warning("a peer was refused: uid=%d", peer.uid)
                return
            async with asyncio.timeout(deadline):
                raw = await _read(reader, limit, line)
            if raw is None:
                writer.write(b"refused: more than %d bytes\n" % limit)
            elif raw:
                reply = await handler(raw, peer.uid)
                if isinstance(reply, bytes):
                    writer.write(reply)
                else:
                    await streams.send(writer, reply)
            async with asyncio.timeout(deadline):
                await writer.drain()
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
        await streams.end()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        listener.close()


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
