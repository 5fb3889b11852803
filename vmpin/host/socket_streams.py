"""Streaming replies on Unix sockets: parts are sent until the peer or the server ends the stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

Stream = AsyncGenerator[bytes, None]


class Streams:
    """The streams of one server. :param deadline: seconds after which a peer that does not read is dropped."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        #: The sending task of each stream, with the task of its connection.
        self._running: dict[asyncio.Task[None], asyncio.Task[object] | None] = {}

    async def send(self, writer: asyncio.StreamWriter, parts: Stream) -> None:
        """Send parts until there are no more, or `end` is called. :raises OSError: the peer is gone.
        :raises TimeoutError: the peer does not read."""
        task = asyncio.create_task(self._send(writer, parts))
        self._running[task] = asyncio.current_task()
        try:
            await asyncio.wait((task,))
        finally:
            del self._running[task]
        if not task.cancelled():
            task.result()

    async def _send(self, writer: asyncio.StreamWriter, parts: Stream) -> None:
        async with contextlib.aclosing(parts):
            async for part in parts:
                writer.write(part)
                async with asyncio.timeout(self._deadline):
                    await writer.drain()

    async def end(self) -> None:
        """End all streams: they are endless, and since Python 3.12 closing a server waits for all connections."""
        connections = [task for task in self._running.values() if task is not None]
        for task in self._running:
            task.cancel()
        if connections:
            await asyncio.wait(connections, timeout=2 * self._deadline)
