"""Hybrid vsock: vsock for the guest, and for the host a Unix socket of the VMM on which the port is requested.

Used by Firecracker, Cloud Hypervisor, Dragonball, and vhost-device-vsock for QEMU (firecracker/docs/vsock.md):
`CONNECT 1024\\n` is answered with `OK <port of the host>\\n`, or closed if no process listens in the guest."""

import asyncio
import errno
import re
from dataclasses import dataclass

from vmpin.guests.transport.channel import CONNECT_DEADLINE, NotListening, Stream, open_unix

_OK = re.compile(rb"OK [0-9]{1,10}\n")
_LONGEST = 32


@dataclass(frozen=True)
class HybridVsock:
    """`path` is resolved as by process `pid`; `peer` is the process that must be listening there (None: any)."""

    path: str
    pid: int
    peer: int | None = None
    #: For the answer to CONNECT (s).
    deadline: float = CONNECT_DEADLINE

    def __str__(self) -> str:
        return f"hybrid vsock {self.path}"

    async def open(self, port: int) -> Stream:
        stream = await open_unix(self.path, self.pid, self.peer)
        try:
            stream.writer.write(b"CONNECT %d\n" % port)
            async with asyncio.timeout(self.deadline):
                answer = await _line(stream.reader)
            if not answer:
                raise ConnectionResetError
            if not _OK.fullmatch(answer):
                raise OSError(errno.EPROTO, f"answered {answer!r} to CONNECT", self.path)
        except BaseException as err:
            stream.close()
            if isinstance(err, ConnectionError):
                raise NotListening(errno.ECONNREFUSED, f"no process listens on port {port}", self.path) from err
            raise
        return stream


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Read a line byte by byte, as what follows is the guest's; at most _LONGEST bytes."""
    line = b""
    while len(line) < _LONGEST and not line.endswith(b"\n"):
        byte = await reader.read(1)
        if not byte:
            break
        line += byte
    return line
