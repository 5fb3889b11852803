"""The session with vmpin's agent against guests that send garbage, too much, or never end."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import random
import struct
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from agent_sessions import MAP, OTHER, QUICK, session
from effort import unit
from guest_peer import Agent, Talk, UnixChannel, serving, until

from vmpin.config.timeouts import Timeouts
from vmpin.cpuset import CpuSet
from vmpin.guests.agent_session import AgentSession
from vmpin.guests.channels import Channel
from vmpin.guests.guest_session import SessionState
from vmpin.guests.limits import BURST, MAX_ANSWER, MAX_RESENDS, SHARE, TURN, RateLimit, TimeBudget
from vmpin.protocol.frames import FrameDecoder, ProtocolError, encode
from vmpin.protocol.messages import (
    AgentMessage,
    Applied,
    ContainerOutcome,
    ContainerVcpus,
    Failure,
    HostMessage,
    NeedMap,
    Pong,
    VcpuMap,
    as_json,
)
from vmpin.protocol.parsing import MAX_NUMBER


def frame(body: bytes, length: int | None = None) -> bytes:
    return struct.pack(">I", len(body) if length is None else length) + body


NEED = encode(as_json(NeedMap()))


PADDED = frame(b'{"v":1,"type":"need_map","x":"' + b"x" * 60_000 + b'"}')


PONG = encode(as_json(Pong(1, "0.1")))


#: Of no request of this connection.
IGNORED = encode(as_json(Applied(99, 1, {})))


HOSTILE = {
    "random": random.Random(5).randbytes(5000),
    "a gigabyte": frame(b"{}", 1 << 30),
    "deep": frame(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "no json": frame(b"{]"),
    "no object": frame(b"[1]"),
    "another version": frame(b'{"v":2,"type":"pong","id":1}'),
    "a bad outcome": PONG + frame(b'{"v":1,"type":"applied","id":1,"generation":1,"containers":{"c1":{"state":7}}}'),
    "a list for a container": PONG + frame(b'{"v":1,"type":"applied","id":1,"generation":1,"containers":{"c1":[]}}'),
    "huge numbers": PONG + frame(b'{"v":1,"type":"applied","id":1,"generation":1' + b"0" * 5000 + b"}"),
    "a flood": PONG + IGNORED * 700,
    "bytes": PONG + frame(b'{"v":1,"type":"error","error":"' + b"x" * 200_000 + b'"}') * 25,
    "a long message": PONG + frame(b'{"v":1,"type":"error","error":"' + b"x" * 300_000 + b'"}'),
    "the map again": PONG + NEED * 20,
    "the map again before it is up": NEED * 20,
    "the map again, padded": PONG + PADDED * 20,
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_endless_garbage_is_dropped_with_backoff_and_counted(what: str,
                                                                    caplog: pytest.LogCaptureFixture) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HOSTILE[what])
        await reader.read()
        await reader.read()
    caplog.set_level(logging.WARNING)
    async with serving(talk) as path, session(path) as ours:
        ours.push(MAP)
        await until(lambda: ours.counters.refused >= 4)
        # Some begin well each time.
        await until(lambda: not ours.up and ours.reports == {})
        assert "not version 1 of the protocol" in ours.counters.last_error
        assert ours.counters.pushes <= ours.counters.connects * (1 + MAX_RESENDS)
    # A line for each trouble or two, not for each attempt.
    assert len(caplog.records) <= 4


async def test_a_guest_that_sends_garbage_is_tried_more_and_more_rarely() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HOSTILE["bytes"])
        await reader.read()
    async with serving(talk) as path, session(path, timeouts=Timeouts(agent_last=0.3)) as ours:
        ours.push(MAP)
        await until(lambda: ours.counters.refused >= 4)
        began, count = time.monotonic(), ours.counters.connects
        await until(lambda: ours.counters.connects >= count + 3)
        # The pause has grown to 0.3 s by now, or three quarters of that; the first of three may be half over.
        assert time.monotonic() - began >= 2 * 0.3 * 0.75


@pytest.mark.parametrize("says", [NEED, PADDED, NEED * 3])
async def test_a_guest_that_wants_every_map_again_is_dropped_with_backoff(says: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(PONG)
        decoder = FrameDecoder()
        while data := await reader.read(65536):
            writer.write(says * sum(message["type"] in ("map", "unpin") for message in decoder.feed(data)))
    for unpin in False, True:
        async with serving(talk) as path, session(path) as ours:
            if unpin:
                ours.unpin()
            else:
                ours.push(MAP)
            await until(lambda: ours.counters.refused >= 4)
            assert 4 <= ours.counters.pushes <= ours.counters.connects * (1 + MAX_RESENDS)


async def test_a_map_sent_again_on_request_raises_no_limit() -> None:
    agent = Agent()
    async with serving(agent.talk) as path, session(path) as ours:
        for wanted in MAP, OTHER:
            ours.push(wanted)
            await until(lambda: ours.done)
            count, own = ours.counters.pushes, ours.rate.requests
            agent.say(NeedMap())
            await until(lambda: ours.counters.pushes > count and ours.done)  # noqa: B023
            assert ours.rate.requests == own


async def test_an_error_as_first_answer_counts_as_no_agent_with_a_reason() -> None:
    """So that Kata's agent is asked instead (vm_guest)."""
    class Odd(Agent):
        def answer(self, request: HostMessage) -> None:
            self.say(Failure(request.id, "no\x1b such thing"))
    async with serving(Odd().talk) as path, session(path) as ours:
        ours.push(MAP)
        await until(lambda: ours.text)
        assert (ours.text, ours.up, ours.state is SessionState.FOREIGN) == ("no\\x1b such thing", False, False)


@pytest.mark.parametrize("says", [NEED, IGNORED])
async def test_before_a_pong_no_other_message_is_an_answer(says: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(says)
            await asyncio.sleep(0.1)
    async with serving(talk) as path, session(path, timeouts=replace(QUICK, agent_answer=0.3)) as ours:
        ours.push(MAP)
        await until(lambda: ours.text)
        assert ours.text == "no answer within 0.3 s"
        assert ours.counters.pushes == 0


def never_ends() -> Talk:
    """Valid messages, as fast as they are taken, and as dear as they can be: more containers than were asked about,
    and CPU lists that are long."""
    wanted, effective = (",".join(map(str, range(0, 300, step))) for step in (3, 2))
    outcome = {"state": "applied", "wanted": wanted, "effective": effective}
    dear = frame(json.dumps({"v": 1, "type": "applied", "generation": 1, "containers": {
        cid: outcome for cid in ("c1", "c2", *(f"x{number}" for number in range(240)))}}).encode())
    assert 200_000 < len(dear) < MAX_ANSWER

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(PONG)
        while True:
            writer.write(dear + IGNORED * 20)
            await writer.drain()
    return talk


async def test_a_guest_that_never_ends_delays_no_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving(never_ends()) as path, session(path) as ours:
        ours.budget = Clocks().budget()  # by which nothing takes any time: else it would take an hour
        ours.push(MAP)
        # Of this thread's own time, not of what others of the machine had of the CPU: 3 ms, half a unit, is usual.
        most, took, last = 10 * unit(), [], time.thread_time()
        while ours.counters.refused < 4:
            await asyncio.sleep(0)
            now = time.thread_time()
            took.append(now - last)
            last = now
        assert sorted(took)[-10] < most
        assert set(ours.reports) <= set(MAP.containers)
    assert len(caplog.records) <= 4


async def test_a_guest_that_never_ends_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        async with serving(never_ends()) as path, session(path) as ours:
            ours.budget = Clocks().budget()  # by which nothing takes any time: else it would take an hour
            ours.push(MAP)
            sizes: list[int] = []
            while len(sizes) < 4:
                count = ours.counters.refused
                await until(lambda: ours.counters.refused > count)  # noqa: B023
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
            assert max(sizes) - min(sizes) < 1 << 20  # whatever is on its way just then
            assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


def test_limits_are_counted_anew_each_minute_and_requests_raise_them() -> None:
    limit = RateLimit(0.0)
    for second in range(0, 600, 20):
        limit.add_received(1 << 20, 100, float(second))
    limit = RateLimit(0.0)
    limit.add_received(4 << 20, 600, 1.0)
    limit.add_request()
    limit.add_received(1000, 1, 2.0)
    with pytest.raises(ProtocolError, match="more than 600 messages"):
        limit.add_received(0, 4, 3.0)
    with pytest.raises(ProtocolError):
        RateLimit(0.0).add_received((4 << 20) + 1, 0, 1.0)


async def test_a_guest_that_claims_ever_newer_maps_is_dropped() -> None:
    class Runaway(Agent):
        def applied(self, request: VcpuMap) -> Applied:
            return super().applied(request)._replace(generation=request.generation + 1000)

    class Last(Agent):
        def applied(self, request: VcpuMap) -> Applied:
            return super().applied(request)._replace(generation=MAX_NUMBER)
    for agent in Runaway(), Last():
        async with serving(agent.talk) as path, session(path) as ours:
            ours.push(MAP)
            await _refused(ours)
            assert ours.reports == {}


async def test_a_guest_that_does_not_read_is_dropped() -> None:
    big = MAP._replace(containers={f"c{number}" + "x" * 100: ContainerVcpus((0,)) for number in range(1000)})

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(PONG)
        await asyncio.sleep(60)
    async with serving(talk) as path, session(path, timeouts=replace(QUICK, agent_answer=0.3)) as ours:
        await until(lambda: ours.up)
        for number in range(20):
            ours.push(big._replace(system=(number,)))
            await asyncio.sleep(0.01)
        await until(lambda: ours.counters.connects >= 2)


def test_fifty_thousand_damaged_messages_change_nothing() -> None:
    """Straight into the session: nothing but ProtocolError may come of it."""
    chance = random.Random(7)
    outcome = ContainerOutcome("applied", "/x", CpuSet((1,)), CpuSet((1,)), 1, 2, (5,))
    seeds: Sequence[AgentMessage] = (
        Pong(1, "0.1", "guessed"), NeedMap(), Failure(2, "no"),
        Applied(2, 5, {"c1": outcome}, outcome), Applied(None, 5, {"c1": outcome}))
    raws = [encode(as_json(message)) for message in seeds]
    nothing: list[Channel] = []
    ours = AgentSession("pod-a", lambda: nothing, 1)
    ours.push(MAP)
    ours.receive(as_json(Pong(1, "0.1")))
    refused = 0
    for _ in range(50_000):
        raw = bytearray(b"".join(chance.choices(raws, k=chance.randrange(1, 3))))
        for _ in range(chance.randrange(4)):
            at = chance.randrange(4, len(raw)) if chance.random() < 0.9 else chance.randrange(4)
            if chance.random() < 0.7:
                raw[at] = chance.choice(b'{}[]",:0123456789-e\x00\xffatrue') if chance.random() < 0.8 else 1 << at % 8
            else:
                del raw[at:at + chance.randrange(1, 9)]
                if len(raw) < 5:
                    raw += b"xxxxx"
        try:
            for message in FrameDecoder().feed(bytes(raw)):
                ours.rate = RateLimit(0.0)
                ours.receive(message)
        except ProtocolError:
            refused += 1
        assert set(ours.reports) <= set(MAP.containers)
        assert (ours.wish, ours.counters.pushes, ours.unpin_error) == (MAP, 0, "")
    assert refused > 1000


async def test_it_ends_when_cancelled_whatever_the_guest_does_just_then(caplog: pytest.LogCaptureFixture) -> None:
    hasty = Timeouts(agent_first=0.001, agent_last=0.002)
    caplog.set_level(logging.ERROR)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HOSTILE["no json"])
        await reader.read()
    random_ = random.Random(11)
    async with serving(talk) as path:
        for _ in range(300):
            session = AgentSession("pod-a", lambda: [UnixChannel(path)], 10789, timeouts=hasty)
            task = asyncio.create_task(session.run())
            for _ in range(random_.randrange(80)):
                await asyncio.sleep(0)
            task.cancel()
            _, left = await asyncio.wait([task], timeout=120)
            assert not left


async def _refused(ours: AgentSession) -> None:
    await until(lambda: ours.counters.refused)


class Clocks:
    """The clocks of a budget: `now` goes on while nothing is done, both while something is."""

    def __init__(self) -> None:
        self.time = self.cpu = 0.0

    def work(self, seconds: float) -> None:
        self.time += seconds
        self.cpu += seconds

    def budget(self) -> TimeBudget:
        return TimeBudget(lambda: self.time, lambda: self.cpu)


def test_a_guests_messages_take_their_share_of_the_time_and_no_more() -> None:
    clocks = Clocks()
    budget = clocks.budget()
    for _ in range(1000):
        budget.begin()
        clocks.work(0.02)
        clocks.time += budget.end()
    assert clocks.cpu / clocks.time == pytest.approx(SHARE, rel=0.1)


def test_a_guest_that_was_quiet_does_not_wait() -> None:
    clocks = Clocks()
    budget = clocks.budget()
    for _ in range(20):
        budget.begin()
        clocks.work(BURST / 10)
        assert budget.end() == 0.0
        clocks.time += BURST / 10 / SHARE
    for _ in range(9):
        budget.begin()
        clocks.work(BURST / 10)
        assert budget.end() == 0.0
    budget.begin()
    clocks.work(BURST)
    assert budget.end() > 1.0


def test_a_turn_ends_when_its_time_is_used_up() -> None:
    clocks = Clocks()
    budget = clocks.budget()
    budget.begin()
    assert not budget.is_over()
    clocks.work(TURN)
    assert budget.is_over()


async def test_many_messages_leave_turns_to_other_work_and_their_cost_outlasts_the_connection(
) -> None:
    clocks, happened = Clocks(), []

    class Slow(AgentSession):
        """Each message takes a turn."""

        def receive(self, message: Mapping[str, object]) -> None:
            clocks.work(TURN)
            happened.append("message")
            super().receive(message)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(PONG + IGNORED * 8)
        await writer.drain()
        writer.close()

    async def other() -> None:
        while True:
            happened.append("other")
            await asyncio.sleep(0)
    async with serving(flood) as path:
        ours = Slow("pod", lambda: [UnixChannel(path)], 1, timeouts=QUICK)
        ours.budget = clocks.budget()
        task, beside = asyncio.create_task(ours.run()), asyncio.create_task(other())
        try:
            await until(lambda: ours.counters.connects >= 2 and happened.count("message") >= 18)
            seen = happened.copy()  # once both are cancelled, the session's last step has no other work beside it
        finally:
            for task_ in (task, beside):
                task_.cancel()
            await asyncio.gather(task, beside, return_exceptions=True)
        ours.budget.begin()
        clocks.work(BURST)
        assert ours.budget.end() >= 18 * TURN / SHARE - clocks.time  # what was paid off meanwhile
    first, last = seen.index("message"), len(seen) - seen[::-1].index("message")
    assert not any(one == other == "message" for one, other in itertools.pairwise(seen[first:last]))
