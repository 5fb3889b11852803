"""A virtio-serial port: QEMU's Unix socket on the host, a character device in the guest.

It is a single stream without connections: the rest of an incomplete message of one client on the host precedes the
messages of the next. QEMU serves one client at a time; a second one waits."""

from dataclasses import dataclass

from vmpin.guests.transport.channel import Stream, open_unix


@dataclass(frozen=True)
class VirtioSerial:
    """`path` is resolved as by the QEMU with this pid, which must be the process listening there."""

    path: str
    pid: int

    def __str__(self) -> str:
        return f"virtio-serial {self.path}"

    async def open(self, port: int) -> Stream:
        """Connect. `port` has no meaning here: a serial port has a name."""
        return await open_unix(self.path, self.pid, self.pid)
