"""Unix sockets of the watcher's: root's own, with limits on the size and the time of what is asked.

What stays out: what is asked (hook and control servers in the watcher).
"""

from __future__ import annotations

import asyncio
import grp
import logging
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

from vmpin.errors import ConfigError

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64

Identity = tuple[int, int]  #: Device and inode.
Handler = Callable[[bytes, int], Awaitable[bytes]]  #: Answers one request: (bytes, uid of the peer) -> bytes.


def listen(path: Path, group: str = "") -> socket.socket:
    """A listening socket with mode 0600, or 0660 for `group`; one left by a killed watcher is replaced (the caller
    holds the lock, so no living watcher listens there). :raises ConfigError: for an unknown group."""
    _gid(group)  # before anything is made
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)  # no other user can connect in the moment before chmod
    try:
        made.bind(os.fspath(path))
    except OSError:
        made.close()
        raise
    finally:
        os.umask(before)
    open_to(path, group)
    made.listen(MAX_CONNECTIONS)
    return made


def identity(path: Path) -> Identity | None:
    """Which file a path is (device, inode); None where there is none."""
    try:
        info = path.lstat()
    except OSError:
        return None
    return info.st_dev, info.st_ino


def unlink_own(path: Path, own: Identity | None) -> None:
    """Remove a socket, unless another has been put in its place since its `identity` was taken."""
    if own is not None and identity(path) == own:
        path.unlink(missing_ok=True)


def remove_left(path: Path) -> bool:
    """Remove a socket that a killed process left behind. :returns: whether nothing is there now: what a process
    listens on stays, and what is no socket."""
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
    """Let the members of `group` connect to a socket, "" root alone. :raises ConfigError: as above."""
    gid = _gid(group)
    os.chmod(path, 0o600)
    if group:
        os.chown(path, -1, gid)
        os.chmod(path, 0o660)


def _gid(group: str) -> int:
    if not group:
        return -1
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"watch.status_group: no group {group!r} on this machine") from None


def peer_uid(connection: socket.socket) -> int:
    """The uid of who connected (SO_PEERCRED: pid, uid, gid)."""
    found: tuple[int, int, int] = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return found[1]


async def serve(made: socket.socket, limit: int, handler: Handler, line: bool, deadline: float) -> None:
    """Answer requests for ever, each a line (`line`) or all that comes until the peer shuts its side. A peer that
    sends too much, nothing, or goes away costs its own connection only.
    :param deadline: a peer that neither sends nor reads holds a connection no longer than this (seconds)."""
    busy = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal busy
        busy += 1
        try:
            if busy > MAX_CONNECTIONS:
                return
            uid = peer_uid(writer.get_extra_info("socket"))
            async with asyncio.timeout(deadline):
                raw = await _read(reader, limit, line)
            if raw is None:
                writer.write(b"refused: more than %d bytes\n" % limit)
            elif raw:
                writer.write(await handler(raw, uid))
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
                writer.transport.abort()  # it waits for a peer that does not read
            busy -= 1

    server = await asyncio.start_unix_server(answer, sock=made, limit=65536)
    async with server:
        await server.serve_forever()


async def _read(reader: asyncio.StreamReader, limit: int, line: bool) -> bytes | None:
    """A request, None when it is longer than `limit`."""
    raw = bytearray()
    while part := await reader.read(65536):
        raw += part
        if len(raw) > limit:
            return None
        if line and b"\n" in part:
            break
    return bytes(raw)
