"""Accepts connections in an event loop and survives running out of file descriptors (EMFILE).

asyncio's own server (3.11) then logs an error with a traceback for every slot of its backlog, and retries ever more
often: thousands of lines a second.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time

logger = logging.getLogger(__name__)

#: Seconds between two warnings about one socket.
_WARN_EVERY = 60.0


class Acceptor:
    """Accepts the connections of one non-blocking listening socket. The caller closes the socket.
    :param pause: seconds to wait after a failed accept(). The socket stays readable while no descriptor is free, so
        without a pause the loop would spin."""

    def __init__(self, listening: socket.socket, pause: float) -> None:
        self._listening, self._pause = listening, pause
        self._warned = -_WARN_EVERY

    async def accept(self) -> socket.socket:
        """Wait for a connection. :returns: its socket, set to non-blocking."""
        while True:
            await self._readable()
            try:
                # Not loop.sock_accept: a cancellation between accept() and its result loses the connection.
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
