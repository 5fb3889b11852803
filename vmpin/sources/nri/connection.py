"""Connections to a container runtime's NRI: over the runtime's socket, or inherited from the runtime, which starts the
programs in its plugin directory with one. `NriStream` reads and writes a connection without blocking."""

from __future__ import annotations

import os
import select
import socket
import stat
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path

from vmpin.bounded import MAX_FD, parse_whole
from vmpin.errors import ConfigError, WireError

_DEADLINE = 2.0  #: Seconds for one attempt.
MAX_UNSENT = 1 << 20  #: Bytes of answers that the runtime may leave unread; an answer has some bytes.


def connect_to(path: Path) -> Callable[[], socket.socket]:
    """Return a function that connects to the runtime's socket, for NriPlugin. Its OSErrors name the path."""
    def connect() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.settimeout(_DEADLINE)
            connection.connect(os.fspath(path))
        except OSError as err:
            connection.close()
            raise OSError(err.errno or 0, err.strerror or str(err), os.fspath(path)) from err
        return connection
    return connect


def inherited(environ: MutableMapping[str, str]) -> tuple[socket.socket, str, str] | None:
    """If the runtime started this process as a plugin: the connection, and the plugin's name and index (from its
    file's name); else None. Removes NRI's variables from `environ`, and makes the descriptor close-on-exec.
    :raises ConfigError: if the descriptor is no socket."""
    number = environ.pop("NRI_PLUGIN_SOCKET", "")
    name, index = environ.pop("NRI_PLUGIN_NAME", "vmpin"), environ.pop("NRI_PLUGIN_IDX", "90")
    if not number:
        return None
    try:
        fd = parse_whole(number, MAX_FD)
        if fd is None or not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise ValueError
        os.set_inheritable(fd, False)
        return socket.socket(fileno=fd), name, index
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"NRI_PLUGIN_SOCKET={number[:40]!r} in the environment is no open socket", "a container "
                          "runtime sets it when it starts vmpin as its plugin; unset it otherwise") from None


def explained(err: OSError) -> str:
    """Why there is no connection, with advice for a missing socket."""
    text = f"{err.filename}: {err.strerror}" if err.filename else f"{err.strerror or err}"
    if isinstance(err, FileNotFoundError):
        text += (": no container runtime with NRI listens there (containerd 1.7 has it off: disable = false under "
                 "plugins.'io.containerd.nri.v1.nri'; CRI-O: enable_nri under crio.nri)")
    return text


class NriStream:
    """A non-blocking connection for one thread: sends what the kernel takes, and keeps the rest.
    :param wake: an eventfd; writing to it ends a `receive`."""

    def __init__(self, connection: socket.socket, wake: int, max_unsent: int = MAX_UNSENT) -> None:
        connection.setblocking(False)
        self._connection, self._wake, self._max_unsent = connection, wake, max_unsent
        self._unsent = b""
        self._poll = select.poll()
        self._poll.register(wake, select.POLLIN)
        self._awaited = select.POLLIN
        self._poll.register(connection, self._awaited)

    @property
    def flushed(self) -> bool:
        """Whether everything has been sent."""
        return not self._unsent

    @property
    def peer_pid(self) -> int:
        """The pid of the peer; 0 if the kernel does not show it."""
        peer = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # struct ucred: pid, uid, gid
        return int.from_bytes(peer[:4], sys.byteorder)

    def send(self, data: bytes) -> None:
        """Send as much as possible now, and the rest with the next `receive`.
        :raises WireError: if the peer does not read. :raises OSError: if the connection is broken."""
        self._unsent += data
        self._flush()
        if len(self._unsent) > self._max_unsent:
            raise WireError("NRI", f"the runtime does not read {len(self._unsent)} bytes of answers")

    def receive(self, seconds: float | None) -> bytes | None:
        """Wait for bytes, at most `seconds` (None: no limit).
        :returns: the bytes; b"" at the end of the connection; None if `wake` or the time limit ended the wait.
        :raises OSError: if the connection is broken."""
        awaited = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        if awaited != self._awaited:
            self._awaited = awaited
            self._poll.modify(self._connection, awaited)
        readable = False
        for fd, _ in self._poll.poll(None if seconds is None else max(0.0, seconds) * 1000 + 1):
            if fd == self._wake:
                os.eventfd_read(fd)
            else:
                readable = True
        if not readable:
            return None
        if self._unsent:
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
