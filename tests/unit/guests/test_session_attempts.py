"""The attempts of a session with a guest's agent: pauses, log lines, and memory."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import random
import time
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from agent_sessions import MAP, QUICK, session
from guest_peer import Agent, serving, until

from vmpin.config.timeouts import Timeouts
from vmpin.domain.desired_state import ContainerRecord, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.model import Container, ContainerId, SandboxId
from vmpin.guests.agent_session import AgentSession
from vmpin.guests.attempts import SILENT, GuestBackoff, repeat
from vmpin.guests.channels import NotListening, Stream
from vmpin.guests.guest_session import (
    BOOT_PATIENCE,
    PATIENCE,
    WAITING,
    Flag,
    NoAgentFound,
    SessionEnded,
    TimeoutStreak,
)
from vmpin.guests.kata_session import KataSession, KataWish
from vmpin.guests.vcpu_map import GuestVcpus
from vmpin.guests.vm_guest import _boots
from vmpin.protocol.frames import encode
from vmpin.protocol.messages import NeedMap, Pong, as_json


async def test_a_missing_agent_is_normal_and_a_late_one_is_connected_to(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent, path = Agent(), tmp_path / "late.sock"
    async with serving(agent.talk, tmp_path / "other.sock"):
        pass
    with caplog.at_level(logging.WARNING):
        async with session(path) as ours:
            ours.push(MAP)
            await until(lambda: ours.text)
            assert not ours.up
            async with serving(agent.talk, path):
                await until(lambda: ours.done)


async def test_a_socket_without_a_listener_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Unanswered:
        async def open(self, port: int) -> Stream:
            raise NotListening(111, "no process listens", "here")
    caplog.set_level(logging.INFO)
    made = AgentSession("pod-a", lambda: [Unanswered()], 10789, timeouts=QUICK)
    task = asyncio.create_task(made.run())
    await until(lambda: made.text == "no process listens")
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert caplog.records == []


@pytest.mark.parametrize("number", [errno.ENODEV, errno.ENOENT])
async def test_a_vm_that_ends_is_no_warning(number: int, caplog: pytest.LogCaptureFixture) -> None:
    class Gone:
        async def open(self, port: int) -> Stream:
            raise OSError(number, os.strerror(number))
    caplog.set_level(logging.INFO)
    made = AgentSession("pod-a", lambda: [Gone()], 10789, timeouts=QUICK)
    task = asyncio.create_task(made.run())
    await until(lambda: made.text)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert caplog.records == []


async def test_a_guest_that_does_not_answer_yet_is_given_time(caplog: pytest.LogCaptureFixture) -> None:
    """As while it boots: its vsock is there, and nothing takes the connection."""
    states: list[str] = []

    class Boots:
        times = 0

        async def open(self, port: int) -> Stream:
            self.times += 1
            raise TimeoutError

    guest = Boots()
    caplog.set_level(logging.INFO)
    made = AgentSession("pod-a", lambda: [guest], 10789, lambda: states.append(made.text), QUICK)
    task = asyncio.create_task(made.run())
    await until(lambda: made.text == "no answer in time")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert guest.times >= PATIENCE
    assert states == [WAITING, "no answer in time"]
    assert [record.getMessage() for record in caplog.records] == ["guest agent sandbox=pod-a: no answer in time"]


async def test_the_next_channel_is_tried_when_one_has_no_answer() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
    agent = Agent()
    async with serving(deaf) as silent, serving(agent.talk) as path, session(
            silent, path, timeouts=replace(QUICK, agent_answer=0.2)) as ours:
        ours.push(MAP)
        await until(lambda: ours.done)


@pytest.mark.parametrize("says", [b"", encode(as_json(NeedMap()))])
async def test_a_guest_that_comes_and_goes_is_not_always_retried_at_once(says: bytes,
                                                                      caplog: pytest.LogCaptureFixture) -> None:
    """Not all the names that it gives itself are logged."""
    count = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        writer.write(encode(as_json(Pong(1, f"0.{count}\x1b[31m"))) + says)
        await reader.read(10)
    caplog.set_level(logging.INFO)
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
    assert "\x1b" not in caplog.text


async def test_pauses_grow_to_minutes_and_a_change_makes_them_short_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wake, real, slept = Flag(), asyncio.timeout, list[float]()

    def timeout(seconds: float) -> asyncio.Timeout:
        slept.append(seconds)
        return real(0)
    monkeypatch.setattr(asyncio, "timeout", timeout)
    timeouts = Timeouts(agent_early=0.01)

    async def until_thirty() -> None:
        if len(slept) == 25:
            wake.set()
        if len(slept) < 30:
            raise SessionEnded("it went") if len(slept) == 29 else NoAgentFound("none")

    await repeat(until_thirty, wake, timeouts, "")
    for at, seconds in enumerate(slept[:26]):
        assert 0.74 <= seconds / (0.1 * 2 ** at if at < 7 else 300.0) <= 1.26
    assert slept[26] < 0.13  # woken, and after the attempt that came of it
    assert not wake.is_set()
    assert slept[28] > slept[27] > slept[26]
    wake.clear()
    slept.clear()

    async def until_twelve() -> None:
        if len(slept) < 12:
            raise SessionEnded("it went") if len(slept) == 11 else NoAgentFound("none")

    await repeat(until_twelve, wake, timeouts, "")
    assert slept[10] > 70
    assert slept[11] < 2.1  # it was there a moment ago
    slept.clear()

    async def until_24() -> None:
        if len(slept) < 24:
            raise TimeoutError

    await repeat(until_24, wake, timeouts, "")
    assert max(slept[:PATIENCE - 1]) < 2.1  # it boots, as it may be
    assert slept[23] > 200  # it hangs


async def test_the_end_of_the_task_is_no_failed_attempt() -> None:
    task = asyncio.create_task(repeat(Flag().wait, Flag(), QUICK, ""))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def attempts_after_change(backoff: GuestBackoff) -> list[float]:
    """When a guest that has no agent is tried after a change of its map, in seconds since then."""
    backoff.reset()
    times = [0.0]
    while (pause := backoff.after(NoAgentFound("none"))) < 200:
        times.append(times[-1] + pause)
    return times


def test_a_long_silent_guest_is_tried_less_often_after_a_change_and_an_agent_is_found_4_s_later_at_most(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random.Random, "uniform", lambda _, least, most: (least + most) / 2)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    backoff = GuestBackoff(Timeouts(), "pod-a")
    while backoff.pause() < 200:
        pass
    others = attempts_after_change(backoff)
    now += SILENT
    silent = attempts_after_change(backoff)
    assert (len(others), len(silent)) == (8, 4)
    begun = [0.01 * number for number in range(1, int(100 * others[-1]))]  # when an agent starts
    assert max(min(at for at in silent if at >= start) - min(at for at in others if at >= start)
               for start in begun) <= 4
    assert backoff.early(now - 100, 1.0) == 1.0  # for the next change, too
    assert GuestBackoff(Timeouts(), "pod-b").early(now - 100, 1.0) == -99.0
    backoff.reset()
    assert [backoff.after(TimeoutError()) <= 2.1 for _ in range(PATIENCE - 1)] == [True] * (PATIENCE - 1)  # it boots


async def test_a_failed_attempt_leaves_nothing_for_the_garbage_collector() -> None:
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

    gc.disable()
    try:
        kata = KataSession("pod-a", lambda: [Nothing()])
        kata.push(KataWish(GuestVcpus({}, 0, 0), MAP))
        for ours in AgentSession("pod-a", lambda: [Nothing()], 10789), kata:
            made.clear()
            task = asyncio.create_task(ours.run())
            await until(lambda: len(made) >= 3)
            task.cancel()
            await asyncio.wait([task])
            assert [attempt() for attempt in made[:2]] == [None, None]
    finally:
        gc.enable()


async def test_a_flag_wakes_the_waiting_task() -> None:
    flag = Flag()
    task = asyncio.create_task(flag.wait())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two tasks"):
        await flag.wait()
    flag.set()
    flag.set()
    flag.clear()
    await asyncio.wait_for(task, 120)  # though it is clear again by now
    task = asyncio.create_task(flag.wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    flag.set()
    await asyncio.wait_for(flag.wait(), 120)
    assert flag.is_set()


def test_a_guest_without_a_container_is_given_time_to_boot() -> None:
    for boots, patience in (False, PATIENCE), (True, BOOT_PATIENCE):
        streak = TimeoutStreak()
        assert [streak.add(TimeoutError(), boots) for _ in range(patience)] == [True] * (patience - 1) + [False]
        assert not streak.add(OSError(), boots)


def record(pause: bool = False, creating: bool = False) -> ContainerRecord:
    return ContainerRecord(Container(ContainerId("c"), pause=pause, creating=creating), Source.NRI, 1)


@pytest.mark.parametrize(("container", "boots"), [
    (None, True), (record(), False), (record(pause=True), True), (record(creating=True), True),
    (record()._replace(requested=True), True)])
def test_a_guest_boots_until_a_container_is_created_in_it(container: ContainerRecord | None, boots: bool) -> None:
    state = SandboxState(SandboxId("a"), containers={} if container is None else {container.container.id: container})
    assert _boots(state) is boots
    assert _boots(None)
