"""Kata's agent, as a server of the test's own speaks it: plain ttrpc over a Unix socket, or behind hybrid vsock."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import tracemalloc
from pathlib import Path

import pytest
from agent_sessions import C1
from guest_peer import UnixChannel, serving
from kata_peer import Server

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.errors import SourceError, WireError
from vmpin.guests.channels import HybridVsock, Stream
from vmpin.guests.kata_agent import (
    MAX_ANSWER,
    METHODS,
    KataAgent,
    Refused,
    UnknownContainer,
    agent_messages,
    online_cpus,
)
from vmpin.wire import ttrpc


async def test_the_calls_and_their_answers() -> None:
    server = Server()
    async with serving(server.talk) as path, await KataAgent.connect(UnixChannel(path)) as agent:
        assert await agent.version() == "4.1.0"
        await agent.set_cpus(C1, CpuSet((2, 3)))
        assert server.containers["c1"] == "2-3"
        assert 'cpu="3",item="user"' in await agent.metrics()
        with pytest.raises(UnknownContainer, match="invalid container id"):
            await agent.set_cpus(ContainerId("c9"), CpuSet((1,)))
        with pytest.raises(ValueError, match="no CPU"):
            await agent.set_cpus(C1, CpuSet())
        server.policy.add("UpdateContainer")
        with pytest.raises(Refused) as caught:
            await agent.set_cpus(C1, CpuSet((1,)))
        assert "\x1b" not in str(caught.value)
    assert set(server.calls) == METHODS


async def test_it_is_reached_behind_hybrid_vsock() -> None:
    server = Server()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"CONNECT 1024\n"
        writer.write(b"OK 1073741825\n")
        await server.talk(reader, writer)
    async with serving(talk) as path, await KataAgent.connect(
            HybridVsock(str(path), os.getpid(), os.getpid())) as agent:
        assert await agent.version() == "4.1.0"


async def test_an_agent_that_does_not_listen_costs_no_library_and_no_thread(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest without one is tried again and again."""
    monkeypatch.setattr(asyncio, "to_thread", None)
    agent_messages.cache_clear()
    with pytest.raises(FileNotFoundError):
        await KataAgent.connect(UnixChannel(tmp_path / "none.sock"))
    assert agent_messages.cache_info().currsize == 0
    agent_messages()
    async with serving(Server().talk) as path, await KataAgent.connect(UnixChannel(path)) as agent:
        assert await agent.version() == "4.1.0"


RIGHT = ttrpc.encode(ttrpc.Reply(
    1, payload=agent_messages()["VersionCheckResponse"](agent_version="4").SerializeToString()))
GARBAGE = {
    "random": random.Random(3).randbytes(4000),
    "4 GB": b"\xff\xff\xff\xff\x00\x00\x00\x01\x02\x00",
    "too long": b"\x00\x20\x00\x00\x00\x00\x00\x01\x02\x00" + b"x" * 100,
    "a question": ttrpc.encode(ttrpc.Call(1, "a", "b")),
    "another call": ttrpc.encode(ttrpc.Reply(7)),
    "no protobuf": ttrpc.encode(ttrpc.Reply(1, payload=b"\x12\xff")),
    "much": struct.pack(">IIBB", 3 << 20, 1, 3, 0) + b"x" * (3 << 20),
    "no text": ttrpc.encode(ttrpc.Reply(1, payload=b"\x12\x01\xff")),
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_is_a_wire_error(what: str) -> None:
    server = Server()
    server.raw = GARBAGE[what]
    async with serving(server.talk) as path, await KataAgent.connect(UnixChannel(path), 0.5) as agent:
        with pytest.raises((WireError, TimeoutError)):
            await agent.version()


async def test_slow_and_dead() -> None:
    server = Server()
    server.slow = 30
    async with serving(server.talk) as path, await KataAgent.connect(UnixChannel(path), 0.5) as agent:
        with pytest.raises(TimeoutError):
            await agent.version()

    async def dead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
    async with serving(dead) as path, await KataAgent.connect(UnixChannel(path), 0.5) as agent:
        with pytest.raises(ConnectionError):
            await agent.version()


def test_a_guests_metrics_are_not_copied_line_by_line() -> None:
    """A guest may send a million empty lines at once: a list of them takes 8 MB, and the loop 140 ms."""
    metrics = "\n" * MAX_ANSWER
    tracemalloc.start()
    assert online_cpus(metrics) == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_ANSWER


async def test_fifty_thousand_spoilt_answers_are_no_more_than_source_errors() -> None:
    chance = random.Random(11)
    right = [ttrpc.encode(ttrpc.Reply(1)), RIGHT, ttrpc.encode(ttrpc.Reply(1, 7, "blocked")),
             ttrpc.encode(ttrpc.Reply(1, payload=agent_messages()["Metrics"](metrics="x" * 50).SerializeToString()))]
    class Writer:
        def write(self, raw: bytes) -> None:
            pass

        async def drain(self) -> None:
            pass

    odd = 0
    for _ in range(50_000):
        raw = bytearray(chance.choice(right))
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(raw))
            raw[at] = chance.randrange(256)
        reader = asyncio.StreamReader()
        reader.feed_data(bytes(raw))
        reader.feed_eof()
        agent = KataAgent(Stream(reader, Writer()), agent_messages())  # type: ignore[arg-type]
        try:
            await agent.version() if chance.random() < 0.5 else await agent.metrics()
        except (SourceError, ConnectionError):
            odd += 1
    assert odd > 10_000
