"""A way into a guest, the stream that it opens to a port there, and connecting to a Unix socket as a process sees
it."""

import asyncio
import os
import socket
import stat
import struct
from pathlib import Path
from typing import NamedTuple, Protocol

#: The longest wait for a connection (seconds); a guest that accepts takes a millisecond.
CONNECT_DEADLINE = 2.0
#: The most input that a stream buffers before it stops reading (bytes).
BUFFERED = 65536


class NotListening(OSError):
    """No process listens on the port; the channel itself may be right."""


class Stream(NamedTuple):
    """An open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        """Close at once and drop what the guest has not read, so that it cannot hold the connection."""
        self.writer.transport.abort()


class Channel(Protocol):
    """A way into one guest. `str()` of it appears in the log and in the status."""

    async def open(self, port: int) -> Stream:
        """Connect to a port in the guest. :raises NotListening: no process listens there. :raises OSError: the guest
        cannot be reached. :raises TimeoutError: there was no answer."""


async def open_unix(path: str, pid: int, peer: int | None) -> Stream:
    """Connect to a Unix socket at a path as process `pid` resolves it: in its mount namespace, and relative to its
    working directory.
    :param peer: the process that must be the one listening, as a path from a command line may lead anywhere; None:
        any.
    :raises PermissionError: another process listens. :raises NotListening: the socket exists and no process listens.
    """
    place = _seen_by(pid, path)
    # By descriptor, as the path through /proc is longer than the 107 bytes of an address.
    directory = os.open(place.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        try:
            async with asyncio.timeout(CONNECT_DEADLINE):
                await asyncio.get_running_loop().sock_connect(client, f"/proc/self/fd/{directory}/{place.name}")
        except (ConnectionRefusedError, BlockingIOError) as err:  # the second where the backlog is full
            busy = isinstance(err, BlockingIOError)
            raise NotListening(err.errno, "is busy" if busy else err.strerror, path) from err
        # The process that called listen() (struct ucred: pid, uid, gid).
        listener, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if peer is not None and listener != peer:
            raise PermissionError(1, f"process {listener} listens there and not {peer}", path)
        reader, writer = await asyncio.open_unix_connection(sock=client, limit=BUFFERED)
    except BaseException:
        client.close()
        raise
    finally:
        os.close(directory)
    return Stream(reader, writer)


def socket_id(path: str, pid: int) -> tuple[int, int] | None:
    """The (device, inode) of the socket at a path as process `pid` resolves it; None if there is none."""
    try:
        info = os.stat(_seen_by(pid, path))
    except OSError:
        return None
    return (info.st_dev, info.st_ino) if stat.S_ISSOCK(info.st_mode) else None


def _seen_by(pid: int, path: str) -> Path:
    return Path(f"/proc/{pid}/root{path}" if path.startswith("/") else f"/proc/{pid}/cwd/{path}")
