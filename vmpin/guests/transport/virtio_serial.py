"""A virtio-serial port: QEMU's Unix socket on the host, a character device in the guest.

It is one stream, whoever opens it: there are no connections in the guest, and what one of the host's clients left half
said comes out before what the next one says. QEMU serves one client at a time; a second one waits, unheard.
"""

from __future__ import annotations

from dataclasses import dataclass

from vmpin.guests.transport import Stream, open_unix


@dataclass(frozen=True)
class VirtioSerial:
    """`path` as the QEMU with this pid sees it; it has to be that one that listens there."""

    path: str
    pid: int

    def __str__(self) -> str:
        return f"virtio-serial {self.path}"

    async def open(self, port: int) -> Stream:
        """The port's number means nothing here: the port has a name."""
        return await open_unix(self.path, self.pid, self.pid)
