"""The agents in the story's guests: each answers on its VM's hybrid vsock, and can be killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from pathlib import Path

from guest_peer import Agent

from vmpin.protocol.frames import ProtocolError
from vmpin.protocol.messages import Unpin, VcpuMap

PORT = 10789
#: Seconds in which the watcher surely connects again to an agent that it has lost. Later it does so every five minutes
#: only, or when it is asked to (guests/attempts.py).
SOON = 5.0
#: What a peer that goes away shows as.
ENDED = (OSError, EOFError, IndexError, ValueError, ProtocolError)


class Guest:
    """One VM's. `listener` is bound; the process that listens on it is the VMM."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True)
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.setblocking(False)
        self.agent: Agent | None = Agent()
        self.task: asyncio.Task[None] | None = None
        #: When the watcher lost the agent, by time.monotonic().
        self.lost = time.monotonic()

    async def serve(self) -> None:
        loop, talks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        try:
            while True:
                connection, _ = await loop.sock_accept(self.listener)
                talks.add(task := asyncio.create_task(self._talk(connection)))
                task.add_done_callback(talks.discard)
        finally:
            for task in talks:
                task.cancel()
            await asyncio.gather(*talks, return_exceptions=True)

    async def _talk(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            with contextlib.suppress(*ENDED):
                port = int((await reader.readline()).split()[1])
                if self.agent is not None and port == PORT:
                    writer.write(b"OK 1\n")
                    await self.agent.talk(reader, writer)
        finally:
            writer.transport.abort()

    def toggle(self) -> None:
        """Kill the agent, or start a new one, which has no map."""
        if self.agent is None:
            self.agent = Agent()
            return
        if self.agent.writer is not None:
            self.agent.writer.transport.abort()
            self.lost = time.monotonic()
        self.agent = None

    @property
    def given_up(self) -> bool:
        """The agent is there, and so late that the watcher may not connect again by itself."""
        return self.agent is not None and self.agent.writer is None and time.monotonic() - self.lost > SOON

    def sent_map(self) -> VcpuMap | None:
        """The map that the agent has, None while it has none."""
        requests = [] if self.agent is None else [
            request for request in self.agent.requests if isinstance(request, VcpuMap | Unpin)]
        last = requests[-1] if requests else None
        return last if isinstance(last, VcpuMap) else None


class Agents:
    """All of them, in a thread of their own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def serve(self, guest: Guest) -> None:
        """When its VMM listens."""
        async def start() -> None:
            guest.task = asyncio.create_task(guest.serve())

        asyncio.run_coroutine_threadsafe(start(), self.loop).result(120)

    def toggle(self, guest: Guest) -> None:
        async def toggle() -> None:
            guest.toggle()

        asyncio.run_coroutine_threadsafe(toggle(), self.loop).result(120)

    def end(self, guest: Guest) -> None:
        async def stop() -> None:
            if guest.task is not None:
                guest.task.cancel()
                await asyncio.gather(guest.task, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self.loop).result(120)
        guest.listener.close()
        guest.path.unlink(missing_ok=True)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
