"""Accepting connections in an event loop, also while the process has no descriptor left for one.

asyncio's own server (3.11) logs an error and a traceback for each place of its backlog then, and tries all of them
again a second later, and more often each time: thousands of lines a second.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time

logger = logging.getLogger(__name__)

#: Between two warnings of one socket (seconds).
_WARN_EVERY = 60.0


class Acceptor:
    """Accepts the connections of one listening socket, which does not block and stays the caller's to close.
    :param pause: after an attempt that failed, as a connection is ready as soon as a descriptor is free (seconds)."""

    def __init__(self, listening: socket.socket, pause: float) -> None:
        self._listening, self._pause = listening, pause
        self._warned = -_WARN_EVERY

    async def accept(self) -> socket.socket:
        """Wait for a connection. :returns: it, and it does not block."""
        while True:
            await self._readable()
            try:
                # Not loop.sock_accept: cancelled at that moment it loses the connection.
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                continue  # the client has gone
            except OSError as err:
                self._warn(err)
                await asyncio.sleep(self._pause)
                continue
            connection.setblocking(False)
            return connection

    async def _readable(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._listening, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._listening)

    def _warn(self, err: OSError) -> None:
        again = time.monotonic() - self._warned < _WARN_EVERY
        logger.log(logging.DEBUG if again else logging.WARNING, "no connection can be accepted: %s; tried again every "
                   "%g s", err.strerror, self._pause)
        if not again:
            self._warned = time.monotonic()
