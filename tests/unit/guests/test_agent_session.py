"""The session with vmpin's agent: against a scripted peer, hostile ones, and the agent itself."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
import struct
import time
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from effort import unit
from guest_peer import Agent, Talk, UnixChannel, serving, until

from vmpin.config.timeouts import Timeouts
from vmpin.cpuset import CpuSet
from vmpin.domain.guest_report import ContainerReport
from vmpin.domain.model import ContainerId
from vmpin.guests.agent_reports import PATIENCE, WAITING, container_report
from vmpin.guests.agent_session import AgentSession
from vmpin.guests.attempts import attempts
from vmpin.guests.cpu_numbers import GuestVcpus
from vmpin.guests.kata_session import KataSession, KataWish
from vmpin.guests.limits import MAX_ANSWER, MAX_RESENDS, RateLimit, longest_answer
from vmpin.guests.session_state import NoAgentFound, SessionEnded, SessionState
from vmpin.guests.tasks import Flag
from vmpin.guests.transport import Channel, NotListening, Stream
from vmpin.protocol.frames import MAX_FRAME, FrameDecoder, ProtocolError, encode
from vmpin.protocol.messages import (
    AgentMessage,
    Applied,
    ContainerOutcome,
    ContainerVcpus,
    Failure,
    GuestContainer,
    GuestCpu,
    GuestEvent,
    HostMessage,
    Inventory,
    NeedMap,
    Ping,
    Pong,
    Subscribe,
    Unpin,
    VcpuMap,
)
from vmpin.protocol.parsing import MAX_CONTAINERS, MAX_NUMBER

#: No test waits minutes for the next attempt.
QUICK = Timeouts(agent_last=0.3)
MAP = VcpuMap(None, 0, "pod-a", {"c1": ContainerVcpus((2, 3), True), "c2": ContainerVcpus((0, 1))}, (0, 1))
OTHER = MAP._replace(containers={"c1": ContainerVcpus((1, 2), True)})
C1 = ContainerId("c1")


def run(what: Coroutine[Any, Any, None]) -> None:
    asyncio.run(what)


@asynccontextmanager
async def session(*paths: Path, timeouts: Timeouts = QUICK) -> AsyncIterator[AgentSession]:
    """A running one."""
    made = AgentSession("pod-a", lambda: [UnixChannel(path) for path in paths], 10789, timeouts=timeouts)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        assert not task.done(), task.exception()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_map_is_told_and_what_became_of_it_is_heard() -> None:
    async def test() -> None:
        agent = Agent()
        async with serving(agent.talk) as path, session(path) as ours:
            ours.push(MAP)
            await until(lambda: ours.settled)
            assert ours.reports[C1] == ContainerReport("applied", "", "/c1", CpuSet((2, 3)), CpuSet((2, 3)), 1, 2)
            assert ours.up
            assert "agent 0.1" in ours.text
            assert agent.maps[-1]._replace(id=None, generation=0) == MAP
            assert any(isinstance(request, Subscribe) for request in agent.requests)
    run(test())


def test_what_became_of_a_map_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Half(Agent):
        def applied(self, request: VcpuMap) -> Applied:
            found = super().applied(request)
            return found._replace(containers={**found.containers, "c2": ContainerOutcome("error", error="EIO\x1b")})

    async def test() -> None:
        for agent in Agent(), Half():
            async with serving(agent.talk) as path, session(path) as ours:
                ours.push(MAP)
                await until(lambda: ours.settled)
                for _ in range(5):
                    agent.say(Applied(None, agent.generation, {"c1": ContainerOutcome("error")}))
                await until(lambda: ours.reports[C1].state == "error")
    with caplog.at_level(logging.INFO):
        run(test())
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if "containers" in record.message]
    assert lines == [("INFO", "sandbox=pod-a guest containers: applied 2"),
                     ("WARNING", "sandbox=pod-a guest containers: applied 1, error 1 (c2: EIO\\x1b)")]


def test_a_change_is_pushed_at_once_with_a_newer_generation() -> None:
    async def test() -> None:
        agent = Agent()
        async with serving(agent.talk) as path, session(path) as ours:
            ours.push(MAP)
            await until(lambda: ours.settled)
            for number in range(20):
                ours.push(OTHER if number % 2 == 0 else MAP)
                assert ours.reports == {}  # what was said of the map before is over
                await until(lambda: ours.settled)
            generations = [request.generation for request in agent.maps]
            assert generations == sorted(set(generations))
            count = len(agent.maps)
            ours.push(agent.maps[-1]._replace(id=None, generation=0))
            await asyncio.sleep(0.05)
            assert len(agent.maps) == count  # the same again is no change
    run(test())


def test_an_agent_that_was_started_again_is_told_again() -> None:
    async def test() -> None:
        agent = Agent()
        async with serving(agent.talk) as path, session(path) as ours:
            ours.push(MAP)
            await until(lambda: ours.settled)
            assert agent.writer is not None
            agent.writer.transport.abort()  # killed
            agent.generation = 0
            await until(lambda: agent.connections == 2 and ours.settled)
            assert ours.reports[C1].state == "applied"
            # On a serial port there is no new connection: it asks.
            count = len(agent.maps)
            agent.say(NeedMap())
            await until(lambda: len(agent.maps) > count and ours.settled)
    run(test())


def test_a_host_that_was_started_again_goes_on_from_a_newer_generation() -> None:
    async def test() -> None:
        agent = Agent()
        agent.generation = 1 << 50  # of a host whose clock was ahead
        async with serving(agent.talk) as path, session(path) as ours:
            ours.push(MAP)
            await until(lambda: ours.settled)
            assert agent.maps[-1].generation == (1 << 50) + 1
            assert ours.reports[C1].state == "applied"
    run(test())


def test_everything_is_taken_back() -> None:
    async def test() -> None:
        agent = Agent()
        async with serving(agent.talk) as path, session(path) as ours:
            ours.push(MAP)
            await until(lambda: ours.settled)
            ours.unpin()
            await until(lambda: ours.settled)
            assert isinstance(agent.requests[-1], Unpin)
            assert ours.reports == {}
            ours.push(MAP)
            await until(lambda: ours.settled and ours.reports)
    run(test())


def test_an_answer_before_the_unpin_is_sent_takes_nothing_back() -> None:
    """Its id is that of no request."""
    class Early(Agent):
        def say(self, message: AgentMessage) -> None:
            super().say(message)
            if isinstance(message, Pong):
                super().say(Applied(0, 0, {}))

    async def test() -> None:
        agent = Early()
        async with serving(agent.talk) as path, session(path) as ours:
            ours.unpin()
            await until(lambda: ours.settled)
            assert [type(request) for request in agent.requests if isinstance(request, Unpin)] == [Unpin]
    run(test())


def test_no_agent_is_normal_and_the_one_that_comes_late_is_found(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        agent, path = Agent(), tmp_path / "late.sock"
        async with serving(agent.talk, tmp_path / "other.sock"):
            pass
        with caplog.at_level(logging.WARNING):
            async with session(path) as ours:
                ours.push(MAP)
                await until(lambda: ours.text)
                assert not ours.up
                async with serving(agent.talk, path):
                    await until(lambda: ours.settled)
    run(test())


def test_nobody_who_listens_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    class Nobody:
        async def open(self, port: int) -> Stream:
            raise NotListening(111, "no process listens", "here")

    async def test() -> None:
        made = AgentSession("pod-a", lambda: [Nobody()], 10789, timeouts=QUICK)
        task = asyncio.create_task(made.run())
        await until(lambda: made.text == "no process listens")
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    with caplog.at_level(logging.INFO):
        run(test())
    assert caplog.records == []


def test_a_guest_that_does_not_answer_yet_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """As while it boots: its vsock is there, and nothing takes the connection."""
    states: list[str] = []

    class Boots:
        times = 0

        async def open(self, port: int) -> Stream:
            self.times += 1
            raise TimeoutError

    guest = Boots()

    async def test() -> None:
        made = AgentSession("pod-a", lambda: [guest], 10789, lambda: states.append(made.text), QUICK)
        task = asyncio.create_task(made.run())
        await until(lambda: made.text == "no answer in time")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    with caplog.at_level(logging.INFO):
        run(test())
    assert guest.times >= PATIENCE
    assert states == [WAITING, "no answer in time"]
    assert [record.getMessage() for record in caplog.records] == ["sandbox=pod-a guest agent: no answer in time"]


def test_the_next_way_is_tried_when_nobody_answers_on_one() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def test() -> None:
        agent = Agent()
        async with serving(deaf) as silent, serving(agent.talk) as path, session(
                silent, path, timeouts=replace(QUICK, agent_answer=0.2)) as ours:
            ours.push(MAP)
            await until(lambda: ours.settled)
    run(test())


def test_one_that_stops_answering_is_dropped() -> None:
    async def test() -> None:
        agent = Agent()
        async with serving(agent.talk) as path, session(
                path, timeouts=replace(QUICK, agent_answer=0.2, agent_idle=0.2)) as ours:
            ours.push(MAP)
            await until(lambda: ours.settled)
            agent.silent_on = (Ping, VcpuMap)
            await until(lambda: not ours.up)
            assert ours.reports == {}
            await until(lambda: "no answer" in ours.text)
            agent.silent_on = ()
            await until(lambda: ours.settled)
            # It is asked again and again whether it is there, and it is.
            await until(lambda: ours.up and sum(isinstance(each, Ping) for each in agent.requests) > 4)
    run(test())


def test_what_it_says_of_containers_nobody_asked_about_is_left_out() -> None:
    class Chatty(Agent):
        def applied(self, request: VcpuMap) -> Applied:
            found = super().applied(request)
            return found._replace(containers={**found.containers, "other": ContainerOutcome("applied")})

    async def test() -> None:
        agent = Chatty()
        async with serving(agent.talk) as path, session(path) as ours:
            ours.push(MAP)
            await until(lambda: ours.settled)
            assert set(ours.reports) == set(MAP.containers)
            # Later it says that something changed.
            agent.say(Applied(None, agent.generation, {"c1": ContainerOutcome("error", error="gone")}))
            await until(lambda: ours.reports[C1].state == "error")
            agent.say(Applied(None, agent.generation - 1, {"c1": ContainerOutcome("applied")}))
            agent.say(GuestEvent("containers", started=("c9",)))
            await asyncio.sleep(0.05)
            assert ours.reports[C1].state == "error"  # not of an older map
    run(test())


def test_threads_outside_are_not_applied() -> None:
    outcome = ContainerOutcome("applied", None, CpuSet((1,)), CpuSet((1,)), 1, 3, (77, 78))
    assert (container_report(outcome).state, container_report(outcome).outside) == ("pending", (77, 78))


def test_an_error_about_the_map_is_every_containers() -> None:
    class Refusing(Agent):
        def answer(self, request: HostMessage) -> None:
            if isinstance(request, VcpuMap):
                self.say(Failure(request.id, "no \x1b[31mmap"))
            else:
                super().answer(request)

    async def test() -> None:
        agent = Refusing()
        async with serving(agent.talk) as path, session(path) as ours:
            ours.push(MAP)
            await until(lambda: ours.settled)
            assert ours.reports[C1] == ContainerReport("error", "no \\x1b[31mmap")
            assert ours.reports[C1].text == "error: no \\x1b[31mmap"
    run(test())


# --- hostile ---------------------------------------------------------------------------------------------------------

def frame(body: bytes, length: int | None = None) -> bytes:
    return struct.pack(">I", len(body) if length is None else length) + body


NEED = encode(NeedMap().message())
PADDED = frame(b'{"v":1,"type":"need_map","x":"' + b"x" * 60_000 + b'"}')
PONG = encode(Pong(1, "0.1", "b", 1.0).message())
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
    "a flood": PONG + frame(b'{"v":1,"type":"event","kind":"cpus"}') * 700,
    "bytes": PONG + frame(b'{"v":1,"type":"event","kind":"' + b"x" * 200_000 + b'"}') * 25,
    "a long message": PONG + frame(b'{"v":1,"type":"event","kind":"' + b"x" * 300_000 + b'"}'),
    "the map again": PONG + NEED * 20,
    "the map again before it is up": NEED * 20,
    "the map again, padded": PONG + PADDED * 20,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_garbage_for_ever_is_dropped_with_backoff_and_counted(what: str, caplog: pytest.LogCaptureFixture) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HOSTILE[what])
        await reader.read()
        await reader.read()

    async def test() -> None:
        async with serving(talk) as path, session(path) as ours:
            ours.push(MAP)
            await until(lambda: ours.counters.refused >= 4)
            # Some begin well each time.
            await until(lambda: not ours.up and ours.reports == {})
            assert "not version 1 of the protocol" in ours.counters.last_error
            assert ours.counters.pushes <= ours.counters.connects * (1 + MAX_RESENDS)
    with caplog.at_level(logging.WARNING):
        run(test())
    # A line for each trouble or two, not for each attempt.
    assert len(caplog.records) <= 4


def test_one_that_says_garbage_is_tried_ever_more_seldom() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HOSTILE["bytes"])
        await reader.read()

    async def test() -> None:
        async with serving(talk) as path, session(path) as ours:
            ours.push(MAP)
            await until(lambda: ours.counters.refused >= 4)
            began, count = time.monotonic(), ours.counters.connects
            await until(lambda: ours.counters.connects >= count + 3)
            # The pause has grown to 0.3 s and more by now.
            assert time.monotonic() - began >= 2 * 0.3
    run(test())


@pytest.mark.parametrize("says", [NEED, PADDED, NEED * 3])
def test_a_guest_that_wants_every_map_again_is_dropped_with_backoff(says: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(PONG)
        decoder = FrameDecoder()
        while data := await reader.read(65536):
            writer.write(says * sum(message["type"] in ("map", "unpin") for message in decoder.feed(data)))

    async def test() -> None:
        for unpin in False, True:
            async with serving(talk) as path, session(path) as ours:
                if unpin:
                    ours.unpin()
                else:
                    ours.push(MAP)
                await until(lambda: ours.counters.refused >= 4)
                assert 4 <= ours.counters.pushes <= ours.counters.connects * (1 + MAX_RESENDS)
    run(test())


def test_what_the_guest_has_sent_again_allows_it_nothing() -> None:
    async def test() -> None:
        agent = Agent()
        async with serving(agent.talk) as path, session(path) as ours:
            for wanted in MAP, OTHER:
                ours.push(wanted)
                await until(lambda: ours.settled)
                count, own = ours.counters.pushes, ours.rate.requests
                agent.say(NeedMap())
                await until(lambda: ours.counters.pushes > count and ours.settled)  # noqa: B023
                assert ours.rate.requests == own
    run(test())


def test_one_that_answers_with_an_error_is_nobody_and_says_why() -> None:
    """So that Kata's agent is asked instead (vm_guest)."""
    class Odd(Agent):
        def answer(self, request: HostMessage) -> None:
            self.say(Failure(request.id, "no\x1b such thing"))

    async def test() -> None:
        async with serving(Odd().talk) as path, session(path) as ours:
            ours.push(MAP)
            await until(lambda: ours.text)
            assert (ours.text, ours.up, ours.state is SessionState.FOREIGN) == ("no\\x1b such thing", False, False)
    run(test())


@pytest.mark.parametrize("says", [NEED, encode(GuestEvent("cpus").message())])
def test_before_a_pong_nothing_else_is_an_answer(says: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(says)
            await asyncio.sleep(0.1)

    async def test() -> None:
        async with serving(talk) as path, session(path, timeouts=replace(QUICK, agent_answer=0.3)) as ours:
            ours.push(MAP)
            await until(lambda: ours.text)
            assert ours.text == "no answer within 0.3 s"
            assert ours.counters.pushes == 0
    run(test())


def test_an_unpin_that_fails_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Agent):
        fails = True

        def answer(self, request: HostMessage) -> None:
            if isinstance(request, Unpin) and self.fails:
                self.say(Failure(request.id, "the agent failed: OSError"))
            else:
                super().answer(request)

    async def test() -> None:
        agent = Failing()
        async with serving(agent.talk) as path, session(path) as ours:
            for _ in range(3):
                ours.unpin()
                assert ours.unpin_error == ""
                await until(lambda: ours.unpin_error)
                assert (ours.unpin_error, ours.settled) == ("the agent failed: OSError", False)
            agent.fails = False
            ours.unpin()
            await until(lambda: ours.settled)
            assert ours.unpin_error == ""
            count = len(agent.requests)
            ours.unpin()
            await asyncio.sleep(0.05)
            assert len(agent.requests) == count  # it is done
    with caplog.at_level(logging.WARNING):
        run(test())
    assert [record.getMessage() for record in caplog.records] == [
        "sandbox=pod-a guest containers could not be unpinned: the agent failed: OSError"]


def test_what_it_says_of_itself_is_in_the_state() -> None:
    class Guessing(Agent):
        def answer(self, request: HostMessage) -> None:
            if isinstance(request, Subscribe):
                self.say(Inventory(request.id, (), (), "v2", "3.11", "guessed \x1b" + "x" * 1000))
            else:
                super().answer(request)

    async def test() -> None:
        agent = Guessing()
        async with serving(agent.talk) as path, session(path) as ours:
            await until(lambda: "guessed" in ours.text)
            assert ours.text.startswith("agent 0.1 over ")
            assert "; guessed \\x1bxxx" in ours.text
            assert len(ours.text) <= 400
            agent.say(Inventory(None, (), (), "v2", "3.11"))
            await until(lambda: "guessed" not in ours.text)
            assert ours.up
    run(test())


def test_the_answer_about_many_containers_may_be_long() -> None:
    many = MAP._replace(containers={f"{number:064x}": ContainerVcpus((0,)) for number in range(MAX_CONTAINERS)})

    class Long(Agent):
        def applied(self, request: VcpuMap) -> Applied:
            return Applied(request.id, self.generation, {
                cid: ContainerOutcome("error", None, CpuSet((0,)), error="x" * 400) for cid in request.containers})

    async def test() -> None:
        agent = Long()
        assert len(encode(agent.applied(many._replace(id=1)).message())) > 2 * MAX_ANSWER
        async with serving(agent.talk) as path, session(path) as ours:
            for number in range(8):
                ours.push(many._replace(system=(number,)))
                await until(lambda: ours.settled)
            assert (len(ours.reports), ours.counters.refused) == (1024, 0)
    run(test())
    assert (longest_answer(0), longest_answer(10**6)) == (MAX_ANSWER, MAX_FRAME)


def test_it_ends_when_it_is_told_to_whatever_the_guest_does_just_then(caplog: pytest.LogCaptureFixture) -> None:
    hasty = Timeouts(agent_first=0.001, agent_last=0.002)
    caplog.set_level(logging.ERROR)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HOSTILE["no json"])
        await reader.read()

    async def test() -> None:
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
    run(test())


def never_ends() -> Talk:
    """Valid messages, as fast as they are taken, and as dear as they can be: more containers than anybody asked about,
    and CPU lists that are long when written out."""
    outcome = {"state": "applied", "wanted": "0-8190:1/2", "effective": ",".join(map(str, range(0, 300, 2)))}
    dear = frame(json.dumps({"v": 1, "type": "applied", "generation": 1, "containers": {
        cid: outcome for cid in ("c1", "c2", *(f"x{number}" for number in range(400)))}}).encode())
    assert 200_000 < len(dear) < MAX_ANSWER
    event = encode(GuestEvent("containers", started=tuple(f"c{n}" for n in range(100))).message())

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(PONG)
        while True:
            writer.write(dear + event * 20)
            await writer.drain()
    return talk


def test_a_guest_that_never_ends_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving(never_ends()) as path, session(path) as ours:
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
    with caplog.at_level(logging.INFO):
        run(test())
    assert len(caplog.records) <= 4


def test_a_guest_that_never_ends_takes_no_memory() -> None:
    async def test() -> None:
        async with serving(never_ends()) as path, session(path) as ours:
            ours.push(MAP)
            sizes: list[int] = []
            while len(sizes) < 4:
                count = ours.counters.refused
                await until(lambda: ours.counters.refused > count)  # noqa: B023
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
            assert max(sizes) - min(sizes) < 1 << 20  # whatever is on its way just then
            assert tracemalloc.get_traced_memory()[1] < 12 << 20
    tracemalloc.start()
    try:
        run(test())
    finally:
        tracemalloc.stop()


def test_what_is_too_much_is_counted_anew_each_minute_and_questions_allow_for_answers() -> None:
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


@pytest.mark.parametrize("says", [b"", encode(NeedMap().message())])
def test_a_guest_that_comes_and_goes_is_not_always_looked_for_at_once(says: bytes,
                                                                      caplog: pytest.LogCaptureFixture) -> None:
    """And whatever names it gives itself are not all in the log."""
    count = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        writer.write(encode(Pong(1, f"0.{count}\x1b[31m", "b", 1.0).message()) + says)
        await reader.read(10)

    async def test() -> None:
        async with serving(talk) as path, session(path, timeouts=Timeouts(agent_first=0.0125)) as ours:
            ours.push(MAP)
            await until(lambda: count >= 3)
            began, before = time.monotonic(), count
            await asyncio.sleep(1.5)
            await until(lambda: count - before >= 2)
            assert count - before <= (time.monotonic() - began) / 0.15 + 1
            ours.log_once.texts |= {str(number) for number in range(16)}
            caplog.clear()
            before = count
            await until(lambda: count >= before + 3)
            assert caplog.records == []
    with caplog.at_level(logging.INFO):
        run(test())
    assert "\x1b" not in caplog.text


def test_pauses_grow_to_minutes_and_a_change_makes_them_short_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        wake, real, slept = asyncio.Event(), asyncio.timeout, list[float]()

        def timeout(seconds: float) -> asyncio.Timeout:
            slept.append(seconds)
            return real(0)
        monkeypatch.setattr(asyncio, "timeout", timeout)
        timeouts = Timeouts(agent_early=0.01)
        async for attempt in attempts(wake, timeouts):
            with attempt:
                if len(slept) == 25:
                    wake.set()
                if len(slept) < 30:
                    raise SessionEnded("it went") if len(slept) == 29 else NoAgentFound("nobody")
        for at, seconds in enumerate(slept[:26]):
            assert 0.74 <= seconds / (0.1 * 2 ** at if at < 7 else 300.0) <= 1.26
        assert slept[26] < 0.13  # woken, and after the attempt that came of it
        assert slept[28] > slept[27] > slept[26]
        wake.clear()
        slept.clear()
        async for attempt in attempts(wake, timeouts):
            with attempt:
                if len(slept) < 12:
                    raise SessionEnded("it went") if len(slept) == 11 else NoAgentFound("nobody")
        assert slept[10] > 70
        assert slept[11] < 2.1  # it was there a moment ago
        slept.clear()
        async for attempt in attempts(wake, timeouts):
            with attempt:
                if len(slept) < 24:
                    raise TimeoutError
        assert max(slept[:PATIENCE - 1]) < 2.1  # it boots, as it may be
        assert slept[23] > 200  # it hangs
    run(test())


def test_a_failed_attempt_leaves_nothing_for_the_garbage_collector() -> None:
    """Its frames would be kept until that one runs: with a thousand guests in which no agent is to be found, 2 MiB."""
    class Gone(OSError):
        """Unlike an OSError it can be referred to weakly."""

    made: list[weakref.ref[Gone]] = []

    class Nothing:
        async def open(self, port: int) -> Stream:
            err = Gone(2, "no such thing", "here")
            made.append(weakref.ref(err))
            try:
                raise err
            finally:
                del err

    async def test() -> None:
        kata = KataSession("pod-a", lambda: [Nothing()])
        kata.push(KataWish(GuestVcpus({}, 0, 0), MAP))
        for ours in AgentSession("pod-a", lambda: [Nothing()], 10789), kata:
            made.clear()
            task = asyncio.create_task(ours.run())
            await until(lambda: len(made) >= 3)
            task.cancel()
            await asyncio.wait([task])
            assert [each() for each in made[:2]] == [None, None]
    gc.disable()
    try:
        run(test())
    finally:
        gc.enable()


def test_a_flag_wakes_the_one_that_waits() -> None:
    async def test() -> None:
        flag = Flag()
        task = asyncio.create_task(flag.wait())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="two tasks"):
            await flag.wait()
        flag.set()
        flag.set()
        flag.clear()
        await asyncio.wait_for(task, 60)  # though it is clear again by now
        task = asyncio.create_task(flag.wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        flag.set()
        await asyncio.wait_for(flag.wait(), 60)
        assert flag.is_set()
    run(test())


async def _refused(ours: AgentSession) -> None:
    await until(lambda: ours.counters.refused)


def test_a_guest_that_claims_ever_newer_maps_is_dropped() -> None:
    class Runaway(Agent):
        def applied(self, request: VcpuMap) -> Applied:
            return super().applied(request)._replace(generation=request.generation + 1000)

    class Last(Agent):
        def applied(self, request: VcpuMap) -> Applied:
            return super().applied(request)._replace(generation=MAX_NUMBER)

    async def test() -> None:
        for agent in Runaway(), Last():
            async with serving(agent.talk) as path, session(path) as ours:
                ours.push(MAP)
                await _refused(ours)
                assert ours.reports == {}
    run(test())


def test_a_guest_that_does_not_read_is_dropped() -> None:
    big = MAP._replace(containers={f"c{number}" + "x" * 100: ContainerVcpus((0,)) for number in range(1000)})

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(PONG)
        await asyncio.sleep(60)

    async def test() -> None:
        async with serving(talk) as path, session(path, timeouts=replace(QUICK, agent_answer=0.3)) as ours:
            await until(lambda: ours.up)
            for number in range(20):
                ours.push(big._replace(system=(number,)))
                await asyncio.sleep(0.01)
            await until(lambda: ours.counters.connects >= 2)
    run(test())


def test_fifty_thousand_spoilt_messages_change_nothing() -> None:
    """Straight into the session: nothing but ProtocolError may come of it."""
    chance = random.Random(7)
    outcome = ContainerOutcome("applied", "/x", CpuSet((1,)), CpuSet((1,)), 1, 2, (5,))
    seeds: Sequence[AgentMessage] = (
        Pong(1, "0.1", "b", 1.0), NeedMap(), Failure(2, "no"),
        Applied(2, 5, {"c1": outcome}, outcome), Applied(None, 5, {"c1": outcome}),
        GuestEvent("cpus", CpuSet((0, 1))), Inventory(
            3, [GuestCpu(0, 0, True, 0)], [GuestContainer("c1", "/c1", 3)], "v2", "3.9"))
    raws = [encode(each.message()) for each in seeds]
    nothing: list[Channel] = []
    ours = AgentSession("pod-a", lambda: nothing, 1)
    ours.push(MAP)
    ours.receive(Pong(1, "0.1", "b", 1.0).message())
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
