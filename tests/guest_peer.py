"""Ends of a guest's channel, held by a test: Unix sockets on which a script of the test's answers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from vmpin.cpuset import CpuSet
from vmpin.guests.channels import Stream, open_unix
from vmpin.protocol.frames import FrameDecoder, encode
from vmpin.protocol.messages import (
    AgentMessage,
    Applied,
    ContainerOutcome,
    HostMessage,
    NeedMap,
    Ping,
    Pong,
    Unpin,
    VcpuMap,
    as_json,
)
from vmpin.protocol.parsing import parse_request

#: Longer than anything takes on a machine that is busy; nothing waits for it otherwise (seconds).
PATIENCE = 120.0

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class UnixChannel:
    """A way into a guest that is a plain Unix socket."""

    path: Path

    async def open(self, port: int) -> Stream:
        return await open_unix(str(self.path), os.getpid(), None)


@contextlib.asynccontextmanager
async def serving(talk: Talk, path: Path | None = None) -> AsyncIterator[Path]:
    """A listening socket; each connection is `talk`ed with, and closed after it."""
    tasks: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
                await talk(reader, writer)
                await writer.drain()
                writer.close()
        finally:
            if not writer.is_closing():
                writer.transport.abort()

    with tempfile.TemporaryDirectory() as place:
        path = path or Path(place) / "guest.sock"
        server = await asyncio.start_unix_server(answer, path=path)
        try:
            yield path
        finally:
            await asyncio.sleep(0.01)  # who has just connected is talked with, too
            server.close()
            path.unlink(missing_ok=True)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.01)  # what was closed is gone by then


async def until(holds: Callable[[], object]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Agent:
    """A scripted agent that keeps to the protocol; a subclass or attribute changes its answers."""

    def __init__(self) -> None:
        self.requests: list[HostMessage] = []
        self.connections = 0
        self.writer: asyncio.StreamWriter | None = None
        #: Of the map it holds.
        self.generation = 0
        self.need_map = True
        self.silent_on: tuple[type, ...] = ()

    @property
    def maps(self) -> list[VcpuMap]:
        return [request for request in self.requests if isinstance(request, VcpuMap)]

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writer = writer
        decoder = FrameDecoder()
        if self.need_map:
            self.say(NeedMap())
        while data := await reader.read(65536):
            for message in decoder.feed(data):
                request = parse_request(message)
                self.requests.append(request)
                if not isinstance(request, self.silent_on):
                    self.answer(request)

    def say(self, message: AgentMessage) -> None:
        assert self.writer is not None
        self.writer.write(encode(as_json(message)))

    def answer(self, request: HostMessage) -> None:
        match request:
            case Ping():
                self.say(Pong(request.id, "0.1"))
            case VcpuMap():
                self.generation = max(self.generation, request.generation)
                self.say(self.applied(request))
            case Unpin():
                self.say(Applied(request.id, self.generation, {}))

    def applied(self, request: VcpuMap) -> Applied:
        return Applied(request.id, self.generation, {
            cid: ContainerOutcome("applied", f"/{cid}", CpuSet(share.hw), CpuSet(share.hw), 1, 2)
            for cid, share in request.containers.items()})
