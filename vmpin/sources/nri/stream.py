"""A non-blocking connection for one thread: wait for bytes, send what the kernel takes, keep the rest."""

from __future__ import annotations

import os
import select
import socket
import sys

from vmpin.errors import WireError

MAX_UNSENT = 1 << 20  #: Bytes of answers that the runtime may leave unread; an answer has some bytes.


class NriStream:
    """:param wake: an eventfd; writing to it ends a `receive`."""

    def __init__(self, connection: socket.socket, wake: int, max_unsent: int = MAX_UNSENT) -> None:
        connection.setblocking(False)
        self._connection, self._wake, self._max_unsent = connection, wake, max_unsent
        self._unsent = b""
        self._poll = select.poll()
        self._poll.register(wake, select.POLLIN)
        self._poll.register(connection, select.POLLIN)

    @property
    def flushed(self) -> bool:
        """Whether everything has been sent."""
        return not self._unsent

    @property
    def peer_pid(self) -> int:
        """The pid of the process at the other end; 0 where the kernel does not show it."""
        peer = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # struct ucred: pid, uid, gid
        return int.from_bytes(peer[:4], sys.byteorder)

    def send(self, data: bytes) -> None:
        """Send as much as goes at once, and the rest with the next `receive`.
        :raises WireError: when the peer does not read. :raises OSError: when the connection is broken."""
        self._unsent += data
        self._flush()
        if len(self._unsent) > self._max_unsent:
            raise WireError("NRI", f"the runtime does not read {len(self._unsent)} bytes of answers")

    def receive(self, seconds: float | None) -> bytes | None:
        """Wait for bytes, at most so long (None: for ever).
        :returns: them, b"" at the end of the connection, None where `wake` or the time has ended the wait.
        :raises OSError: when the connection broke."""
        self._poll.modify(self._connection, select.POLLIN | (0 if self.flushed else select.POLLOUT))
        ready = dict(self._poll.poll(None if seconds is None else max(0.0, seconds) * 1000 + 1))
        if self._wake in ready:
            os.eventfd_read(self._wake)
        if self._connection.fileno() not in ready:
            return None
        self._flush()
        try:
            return self._connection.recv(65536)
        except BlockingIOError:
            return None

    def _flush(self) -> None:
        while self._unsent:
            try:
                self._unsent = self._unsent[self._connection.send(self._unsent, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                break
