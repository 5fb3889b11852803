"""Ways into a guest: each opens a stream of bytes to a port in it. What is said over it stays out (guest/)."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from pathlib import Path
from typing import NamedTuple, Protocol

#: A guest that is there connects in a millisecond; nothing is there that has not by then (seconds).
CONNECT_DEADLINE = 2.0
#: What a stream buffers of what the guest says before it reads no more (bytes).
BUFFERED = 65536


class NotListening(OSError):
    """Nobody listens on the port, though the way into the guest may be right."""


class Stream(NamedTuple):
    """An open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        """At once: what the guest has not read yet is dropped, so that it cannot keep the connection."""
        self.writer.transport.abort()


class Channel(Protocol):
    """A way into one guest. `str()` of it names it in a log and in the status."""

    async def open(self, port: int) -> Stream:
        """Connect to a port in the guest.

        :raises NotThere: when nobody listens there. :raises OSError: when there is no way. :raises TimeoutError:
        """


async def open_unix(path: str, pid: int, peer: int | None) -> Stream:
    """Connect to a Unix socket as the process `pid` sees it: in its mount namespace, and a relative path from its
    working directory.

    :param peer: the process that has to be listening there. A path from a command line may lead anywhere.
    :raises PermissionError: when it is another. :raises NotThere: when the socket is there and nobody listens.
    """
    place = _seen_by(pid, path)
    # By descriptor, because the way through /proc is longer than the 107 bytes an address may have.
    directory = os.open(place.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        try:
            async with asyncio.timeout(CONNECT_DEADLINE):
                await asyncio.get_running_loop().sock_connect(made, f"/proc/self/fd/{directory}/{place.name}")
        except ConnectionRefusedError as err:
            raise NotListening(err.errno, err.strerror, path) from err
        except BlockingIOError as err:  # its backlog is full
            raise NotListening(err.errno, "is busy", path) from err
        if peer is not None and (found := _peer_pid(made)) != peer:
            raise PermissionError(1, f"process {found} listens there and not {peer}", path)
        reader, writer = await asyncio.open_unix_connection(sock=made, limit=BUFFERED)
    except BaseException:
        made.close()
        raise
    finally:
        os.close(directory)
    return Stream(reader, writer)


def socket_id(path: str, pid: int) -> tuple[int, int] | None:
    """Which socket it is that this process sees there (device and inode); None when it sees none."""
    try:
        info = os.stat(_seen_by(pid, path))
    except OSError:
        return None
    return (info.st_dev, info.st_ino) if stat.S_ISSOCK(info.st_mode) else None


def _seen_by(pid: int, path: str) -> Path:
    return Path(f"/proc/{pid}/root{path}" if path.startswith("/") else f"/proc/{pid}/cwd/{path}")


def _peer_pid(made: socket.socket) -> int:
    """Who called listen() (SO_PEERCRED: pid, uid, gid)."""
    found: tuple[int, int, int] = struct.unpack("3i", made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return found[0]
