"""AF_VSOCK: the guest has a number (CID), and the kernel connects to its ports (vhost-vsock)."""

import asyncio
import errno
import socket
from dataclasses import dataclass

from vmpin.guests.transport.channel import BUFFERED, CONNECT_DEADLINE, NotListening, Stream


@dataclass(frozen=True)
class ContestedVsock:
    """A CID that two VMMs' command lines name, so that either guest may answer: it is never connected to."""

    way: str
    other: str

    def __str__(self) -> str:
        return self.way

    async def open(self, port: int) -> Stream:
        raise OSError(errno.EBUSY, f"is also the CID on the command line of sandbox {self.other}'s VMM", self.way)


@dataclass(frozen=True)
class Vsock:
    cid: int

    def __str__(self) -> str:
        return f"vsock, CID {self.cid}"

    async def open(self, port: int) -> Stream:
        client = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            try:
                async with asyncio.timeout(CONNECT_DEADLINE):
                    await asyncio.get_running_loop().sock_connect(client, (self.cid, port))
            except OSError as err:
                # A port on which no process listens is answered with a reset
                # (net/vmw_vsock/virtio_transport_common.c).
                if err.errno in (errno.ECONNRESET, errno.ECONNREFUSED):
                    raise NotListening(err.errno, f"no process listens on port {port}", str(self)) from err
                raise
            reader, writer = await asyncio.open_connection(sock=client, limit=BUFFERED)
        except BaseException:
            client.close()
            raise
        return Stream(reader, writer)
