"""What no peer would send: random, cut, changed and hostile bytes, a hundred thousand and more each run.

Nothing but WireError may come of it, and no more memory than the limits. In CI always the same bytes.
"""

from __future__ import annotations

import logging
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from effort import effort
from nri_peer import container, pod

from vmpin.errors import WireError
from vmpin.sources.nri.nri_events import NriCounters, UndecodedCall
from vmpin.sources.nri.session import NriSession
from vmpin.wire import ttrpc
from vmpin.wire.nri_messages import MESSAGES, PLUGIN_SERVICE

SEED = 4 if os.environ.get("CI") else time.time_ns()
ROUNDS = 40_000


def whole() -> list[bytes]:
    """Messages that are right, to be spoilt."""
    messages: list[ttrpc.Call | ttrpc.Reply] = [
        ttrpc.Reply(1),
        ttrpc.Reply(1, 2, "plugin name is taken"),
        ttrpc.Reply(3, payload=b"\x0a\x03\x0a\x01c"),
        ttrpc.Call(1, PLUGIN_SERVICE, "Configure", MESSAGES["ConfigureRequest"](
            runtime_name="containerd", runtime_version="v2.1.9").SerializeToString(), 2_000_000_000),
        ttrpc.Call(3, PLUGIN_SERVICE, "Synchronize", MESSAGES["SynchronizeRequest"](
            pods=[pod(annotations={"a": "b"})], containers=[container(cpus="0-3")], more=True).SerializeToString()),
        ttrpc.Call(5, PLUGIN_SERVICE, "Shutdown"),
        ttrpc.Call(7, PLUGIN_SERVICE, "Unknown", b"x"),
    ]
    messages += [ttrpc.Call(9, PLUGIN_SERVICE, "StateChange", MESSAGES["StateChangeEvent"](
        event=event, pod=pod(pid=7), container=container(cpus="1,3", annotations={"k": "v"})).SerializeToString())
        for event in range(1, 16)]
    return [ttrpc.encode(message) for message in messages]


def spoilt(chance: random.Random, seeds: list[bytes]) -> bytes:
    """A few right messages with something wrong: bits, cuts, lengths, repetitions; or nothing right at all."""
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(1, 200))
    raw = bytearray(b"".join(chance.choice(seeds) for _ in range(chance.randrange(1, 4))))
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(raw)) if raw else 0
        match chance.randrange(5):
            case 0 if raw:
                raw[at] ^= 1 << chance.randrange(8)
            case 1:
                del raw[at : at + chance.randrange(1, 20)]
            case 2:
                raw[at:at] = chance.randbytes(chance.randrange(1, 20))
            case 3:
                raw[at : at + 4] = struct.pack(">I", chance.choice([0, 1, 9, 4096, 4 << 20, (4 << 20) + 1, 2**32 - 1]))
            case 4:
                raw[at:at] = raw[at : at + chance.randrange(1, 60)]
    return bytes(raw)


def pieces(chance: random.Random, raw: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        step = chance.choice([1, 3, 17, 1000])
        yield raw[at : at + step]
        at += step


def run(feed: Callable[[], Callable[[bytes], object]], raw: Callable[[random.Random], bytes], what: str) -> int:
    """:returns: how many were refused."""
    chance = random.Random(f"{SEED} {what}")
    refused = 0
    for number in range(ROUNDS):
        data = raw(chance)
        taken = feed()
        try:
            for piece in pieces(chance, data):
                taken(piece)
        except WireError:
            refused += 1
        except Exception as err:
            pytest.fail(f"seed {SEED}, {what} {number}: {err!r} of {data.hex()}")
    return refused


def test_the_multiplexer_survives_anything() -> None:
    seeds = [ttrpc.frames(1 + number % 3, message) for number, message in enumerate(whole())]
    assert 0 < run(lambda: ttrpc.Demux().feed, lambda chance: spoilt(chance, seeds), "mux") < ROUNDS


def test_ttrpc_survives_anything() -> None:
    seeds = whole()
    assert 0 < run(lambda: ttrpc.TtrpcDecoder().feed, lambda chance: spoilt(chance, seeds), "ttrpc") < ROUNDS


def test_a_session_survives_anything(caplog: pytest.LogCaptureFixture) -> None:
    """Spoilt at every depth: frames, calls in whole frames, and NRI's messages in whole calls."""
    caplog.set_level(logging.CRITICAL)
    messages = whole()
    calls = [message[10:] for message in messages]
    whole_calls = [(message.method, message.payload) for raw in messages for message in ttrpc.TtrpcDecoder().feed(raw)
                   if isinstance(message, ttrpc.Call)]

    def raw(chance: random.Random) -> bytes:
        depth = chance.random()
        if depth < 0.2:
            return spoilt(chance, [ttrpc.frames(1, message) for message in messages])
        if depth < 0.5:
            body = spoilt(chance, calls)
            header = struct.pack(">IIBB", len(body), chance.randrange(8), chance.choice([1, 1, 1, 2, 3]), 0)
            return ttrpc.frames(chance.choice([1, 1, 2]), header + body)
        method, payload = chance.choice(whole_calls)
        payload = spoilt(chance, [payload or b"x"])
        return ttrpc.frames(1, ttrpc.encode(ttrpc.Call(1, PLUGIN_SERVICE, method, payload)))

    counters = NriCounters()

    def feed() -> Callable[[bytes], object]:
        session = NriSession("vmpin", "90", counters, set(), {}, 0)
        session.register()
        return lambda data: [event.event() for _, outcome, _ in session.feed(data) for event in outcome.events
                             if isinstance(event, UndecodedCall)]

    assert 0 < run(feed, raw, "session") < ROUNDS
    assert counters.events > 1000
    assert counters.unknown > 1000
    assert counters.dropped > 10


def test_a_hostile_list_is_left_out_at_little_cost() -> None:
    """A message of the largest size, with nothing in it but empty containers: two million of them."""
    body = b"\x12\x00" * (1 << 20)
    raw = ttrpc.frames(1, ttrpc.encode(ttrpc.Call(1, PLUGIN_SERVICE, "Synchronize", body)))

    def refuse() -> None:
        with pytest.raises(WireError, match="lists 1048576 pods and containers"):
            list(NriSession("vmpin", "90", NriCounters(), set(), {}, 0).feed(raw))

    assert effort(refuse, 1) < 2000


def test_a_frame_is_not_kept() -> None:
    demux = ttrpc.Demux()

    def feed() -> None:
        for _ in range(25):
            demux.feed(struct.pack(">II", 1, 4 << 20))
            for _ in range(64):
                demux.feed(bytes(65536))

    assert peak(feed) < 1 << 20


def test_no_more_than_one_message_is_kept() -> None:
    decoder = ttrpc.TtrpcDecoder()

    def feed() -> None:
        for kind in 3, 7, 1:
            decoder.feed(struct.pack(">IIBB", 4 << 20, 1, kind, 0))
            for _ in range(63):
                decoder.feed(bytes(65536))
            if kind != 1:
                decoder.feed(bytes(65536))

    assert peak(feed) < 8 << 20


def test_a_list_without_an_end_is_refused() -> None:
    part = MESSAGES["SynchronizeRequest"](
        pods=[pod(annotations={"a": "x" * (1 << 20)})], more=True).SerializeToString()
    session = NriSession("vmpin", "90", NriCounters(), set(), {}, 0)

    def listed() -> None:
        for stream in range(1, 400, 2):
            call = ttrpc.Call(stream, PLUGIN_SERVICE, "Synchronize", part)
            assert list(session.feed(ttrpc.frames(1, ttrpc.encode(call))))

    with pytest.raises(WireError, match="lists 64 pods and containers"):
        listed()


def peak(run: Callable[[], object]) -> int:
    """The most memory (bytes) that Python took meanwhile."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
