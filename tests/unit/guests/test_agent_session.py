"""The session with vmpin's agent: against a scripted peer, hostile ones, and the agent itself."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from agent_sessions import C1, MAP, OTHER, QUICK, applied, session
from guest_peer import Agent, serving, until

from vmpin.cpuset import CpuSet
from vmpin.domain.guest_report import ContainerReport
from vmpin.guests.guest_session import container_report
from vmpin.guests.limits import MAX_ANSWER, longest_answer
from vmpin.protocol.frames import MAX_FRAME, encode
from vmpin.protocol.messages import (
    AgentMessage,
    Applied,
    ContainerOutcome,
    ContainerVcpus,
    Failure,
    HostMessage,
    NeedMap,
    Ping,
    Pong,
    Unpin,
    VcpuMap,
    as_json,
)
from vmpin.protocol.parsing import MAX_CONTAINERS


async def test_the_map_is_sent_and_its_outcome_is_received() -> None:
    agent = Agent()
    async with applied(agent) as ours:
        assert ours.reports[C1] == ContainerReport("applied", "", "/c1", CpuSet((2, 3)), CpuSet((2, 3)), 1, 2)
        assert ours.up
        assert "agent 0.1" in ours.text
        assert agent.maps[-1]._replace(id=None, generation=0) == MAP


async def test_the_outcome_of_a_map_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Half(Agent):
        def applied(self, request: VcpuMap) -> Applied:
            found = super().applied(request)
            return found._replace(containers={**found.containers, "c2": ContainerOutcome("error", error="EIO\x1b")})
    caplog.set_level(logging.INFO)
    for agent in Agent(), Half():
        async with applied(agent) as ours:
            for _ in range(5):
                agent.say(Applied(None, agent.generation, {"c1": ContainerOutcome("error")}))
            await until(lambda: ours.reports[C1].state == "error")
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if "containers" in record.message]
    assert lines == [("INFO", "guest containers sandbox=pod-a: applied 2"),
                     ("WARNING", "guest containers sandbox=pod-a: applied 1, error 1 (c2: EIO\\x1b)")]


async def test_a_change_is_pushed_at_once_with_a_newer_generation() -> None:
    agent = Agent()
    async with applied(agent) as ours:
        for number in range(20):
            ours.push(OTHER if number % 2 == 0 else MAP)
            assert ours.reports == {}  # what was said of the map before is over
            await until(lambda: ours.done)
        generations = [request.generation for request in agent.maps]
        assert generations == sorted(set(generations))
        count = len(agent.maps)
        ours.push(agent.maps[-1]._replace(id=None, generation=0))
        await asyncio.sleep(0.05)
        assert len(agent.maps) == count  # the same again is no change


async def test_a_restarted_agent_is_sent_the_map_again() -> None:
    agent = Agent()
    async with applied(agent) as ours:
        assert agent.writer is not None
        agent.writer.transport.abort()  # killed
        agent.generation = 0
        await until(lambda: agent.connections == 2 and ours.done)
        assert ours.reports[C1].state == "applied"
        # On a serial port there is no new connection: it asks.
        count = len(agent.maps)
        agent.say(NeedMap())
        await until(lambda: len(agent.maps) > count and ours.done)


async def test_a_restarted_host_continues_from_a_newer_generation() -> None:
    agent = Agent()
    agent.generation = 1 << 50  # of a host whose clock was ahead
    async with applied(agent) as ours:
        assert agent.maps[-1].generation == (1 << 50) + 1
        assert ours.reports[C1].state == "applied"


async def test_everything_is_taken_back() -> None:
    agent = Agent()
    async with applied(agent) as ours:
        ours.unpin()
        await until(lambda: ours.done)
        assert isinstance(agent.requests[-1], Unpin)
        assert ours.reports == {}
        ours.push(MAP)
        await until(lambda: ours.done and ours.reports)


async def test_an_answer_before_the_unpin_is_sent_takes_nothing_back() -> None:
    """Its id is of no request."""
    class Early(Agent):
        def say(self, message: AgentMessage) -> None:
            super().say(message)
            if isinstance(message, Pong):
                super().say(Applied(0, 0, {}))
    agent = Early()
    async with serving(agent.talk) as path, session(path) as ours:
        ours.unpin()
        await until(lambda: ours.done)
        assert [type(request) for request in agent.requests if isinstance(request, Unpin)] == [Unpin]


async def test_an_agent_that_stops_answering_is_dropped() -> None:
    agent = Agent()
    async with applied(agent, replace(QUICK, agent_answer=0.2, agent_idle=0.2)) as ours:
        agent.silent_on = (Ping, VcpuMap)
        await until(lambda: not ours.up)
        assert ours.reports == {}
        await until(lambda: "no answer" in ours.text)
        agent.silent_on = ()
        await until(lambda: ours.done)
        # It is asked again and again whether it is there, and it is.
        await until(lambda: ours.up and sum(isinstance(request, Ping) for request in agent.requests) > 4)


async def test_reports_about_containers_outside_the_map_are_left_out() -> None:
    class Chatty(Agent):
        def applied(self, request: VcpuMap) -> Applied:
            found = super().applied(request)
            return found._replace(containers={**found.containers, "other": ContainerOutcome("applied")})
    agent = Chatty()
    async with applied(agent) as ours:
        assert set(ours.reports) == set(MAP.containers)
        # Later it says that something changed.
        agent.say(Applied(None, agent.generation, {"c1": ContainerOutcome("error", error="gone")}))
        await until(lambda: ours.reports[C1].state == "error")
        agent.say(Applied(None, agent.generation - 1, {"c1": ContainerOutcome("applied")}))
        await asyncio.sleep(0.05)
        assert ours.reports[C1].state == "error"  # not of an older map


def test_threads_outside_are_not_applied() -> None:
    outcome = ContainerOutcome("applied", None, CpuSet((1,)), CpuSet((1,)), 1, 3, (77, 78))
    assert (container_report(outcome).state, container_report(outcome).outside) == ("pending", (77, 78))


async def test_an_error_about_the_map_is_reported_for_every_container() -> None:
    class Refusing(Agent):
        def answer(self, request: HostMessage) -> None:
            if isinstance(request, VcpuMap):
                self.say(Failure(request.id, "no \x1b[31mmap"))
            else:
                super().answer(request)
    agent = Refusing()
    async with applied(agent) as ours:
        assert ours.reports[C1] == ContainerReport("error", "no \\x1b[31mmap")
        assert ours.reports[C1].text == "error: no \\x1b[31mmap"


# --- hostile ---------------------------------------------------------------------------------------------------------


async def test_an_unpin_that_fails_is_reported_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Agent):
        fails = True

        def answer(self, request: HostMessage) -> None:
            if isinstance(request, Unpin) and self.fails:
                self.say(Failure(request.id, "the agent failed: OSError"))
            else:
                super().answer(request)
    caplog.set_level(logging.WARNING)
    agent = Failing()
    async with serving(agent.talk) as path, session(path) as ours:
        for _ in range(3):
            ours.unpin()
            assert ours.unpin_error == ""
            await until(lambda: ours.unpin_error)
            assert (ours.unpin_error, ours.done) == ("the agent failed: OSError", False)
        agent.fails = False
        ours.unpin()
        await until(lambda: ours.done)
        assert ours.unpin_error == ""
        count = len(agent.requests)
        ours.unpin()
        await asyncio.sleep(0.05)
        assert len(agent.requests) == count  # it is done
    assert [record.getMessage() for record in caplog.records] == [
        "guest containers could not be unpinned sandbox=pod-a: the agent failed: OSError"]


async def test_the_agents_note_is_in_the_text() -> None:
    class Guessing(Agent):
        def answer(self, request: HostMessage) -> None:
            if isinstance(request, Ping):
                self.say(Pong(request.id, "0.1", "guessed \x1b" + "x" * 1000))
            else:
                super().answer(request)
    agent = Guessing()
    async with serving(agent.talk) as path, session(path) as ours:
        await until(lambda: "guessed" in ours.text)
        assert ours.text.startswith("agent 0.1 over ")
        assert "; guessed \\x1bxxx" in ours.text
        assert len(ours.text) <= 400
        agent.say(Pong(None, "0.1"))
        await until(lambda: "guessed" not in ours.text)
        assert ours.up


async def test_the_answer_about_many_containers_may_be_long() -> None:
    many = MAP._replace(containers={f"{number:064x}": ContainerVcpus((0,)) for number in range(MAX_CONTAINERS)})

    class Long(Agent):
        def applied(self, request: VcpuMap) -> Applied:
            return Applied(request.id, self.generation, {
                cid: ContainerOutcome("error", None, CpuSet((0,)), error="x" * 400) for cid in request.containers})
    agent = Long()
    assert len(encode(as_json(agent.applied(many._replace(id=1))))) > 2 * MAX_ANSWER
    async with serving(agent.talk) as path, session(path) as ours:
        for number in range(3):
            ours.push(many._replace(system=(number,)))
            await until(lambda: ours.done)
        assert (len(ours.reports), ours.counters.refused) == (1024, 0)
    assert (longest_answer(0), longest_answer(10**6)) == (MAX_ANSWER, MAX_FRAME)
