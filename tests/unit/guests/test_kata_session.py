"""Sessions with Kata's agent: what is sent, refused, waited for and taken back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from agent_sessions import C1, MAP
from guest_peer import UnixChannel, serving, until
from kata_peer import Server

from vmpin.config.timeouts import Timeouts
from vmpin.cpuset import CpuSet
from vmpin.domain.guest_report import ContainerReport
from vmpin.domain.model import ContainerId, VcpuId
from vmpin.guests.channels import Channel
from vmpin.guests.guest_session import WAITING
from vmpin.guests.kata_agent import METHODS, AgentError, UnknownContainer
from vmpin.guests.kata_session import KataSession, KataWish
from vmpin.guests.vcpu_map import GuestVcpus
from vmpin.protocol.messages import ContainerVcpus
from vmpin.wire import ttrpc

C2 = ContainerId("c2")
#: All four were there at boot; or the last two were plugged in from above, which shows on an old Linux only.
BOOT = GuestVcpus({VcpuId(number): number for number in range(4)}, 4, 4)
PLUGGED = GuestVcpus({VcpuId(number): number for number in (0, 1, 7, 6)}, 2, 8)
WISH = KataWish(BOOT, MAP)
ONE = MAP._replace(containers={"c1": ContainerVcpus((1,), True)})
OLD = (6, 1)
QUICK = Timeouts(agent_first=0.02, agent_last=0.05, agent_early=0.02, kata_answer=120.0, kata_again=0.1,
                 kata_resend=0.3, kata_pending=0.05)
#: For tests in which an answer does not come.
IMPATIENT = replace(QUICK, kata_answer=0.1)


@asynccontextmanager
async def session(server: Server, kernel: tuple[int, int] | None = OLD,
                  timeouts: Timeouts = QUICK) -> AsyncIterator[KataSession]:
    async with serving(server.talk) as path:
        made = KataSession("pod-a", lambda: [UnixChannel(path)], kernel=lambda: kernel, timeouts=timeouts)
        task = asyncio.create_task(made.run())
        try:
            yield made
        finally:
            assert not task.done() or made.refused
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_success_is_reported_as_sent() -> None:
    server = Server()
    async with session(server) as ours:
        ours.push(WISH)
        await until(lambda: ours.reports)
        assert server.containers == {"c1": "2-3", "c2": "0-1"}
        assert [(report.state, report.wanted) for report in ours.reports.values()] == [
            ("sent", CpuSet((2, 3))), ("sent", CpuSet((0, 1)))]
        assert ours.up
        assert ours.text == "Kata's agent 4.1.0"
        # The runtime may have made it forget: it is sent again.
        server.containers["c1"] = ""
        await until(lambda: server.containers["c1"] == "2-3")
        ours.push(KataWish(BOOT, ONE))
        # What has left the map is given everything again.
        await until(lambda: server.containers == {"c1": "1", "c2": "0-3"})
    assert set(server.calls) == METHODS - {("grpc.AgentService", "GetMetrics")}


class Flapping(Server):
    """Each second answer is none of the protocol's, so that the agent is lost and there again without end."""

    def answer(self, request: ttrpc.Call) -> ttrpc.Reply:
        answer = super().answer(request)
        return answer._replace(stream=answer.stream + 2 * (self.connections % 2))


async def test_a_guest_that_comes_and_goes_gets_its_rounds_ever_more_rarely() -> None:
    server = Flapping("none of the map's")
    began = time.monotonic()
    async with session(server, timeouts=replace(QUICK, kata_pending=0.01, kata_resend=3600.0)) as ours:
        ours.push(WISH)
        await until(lambda: server.connections >= 16)
    assert time.monotonic() - began >= 0.01 * (2**7 - 1), "seven pauses, each twice as long as the one before"


async def test_a_guest_that_comes_and_goes_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server = Flapping("none of the map's")
    async with session(server) as ours:
        ours.push(WISH)
        await until(lambda: server.connections > 60)
    assert len(caplog.records) < 20


async def test_a_refusal_by_policy_is_reported_once_and_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    server = Server()
    server.policy.add("UpdateContainer")
    async with session(server) as ours:
        ours.push(WISH)
        await until(lambda: ours.reports)
        assert {report.state for report in ours.reports.values()} == {"left alone"}
        assert "blocked by policy" in ours.reports[C1].text
        assert not ours.up
        count = len(server.calls)
        ours.push(KataWish(BOOT, ONE))
        await asyncio.sleep(0.8)
        assert len(server.calls) == count
        assert ours.reports[C1].state == "left alone"
        assert sum(method == "UpdateContainer" for _, method in server.calls) == 1
    assert len(caplog.records) == 1


async def test_an_agent_that_refused_is_sent_the_newest_wish_too() -> None:
    class Late(Server):
        meanwhile: Callable[[], None]

        def answer(self, request: ttrpc.Call) -> ttrpc.Reply:
            self.meanwhile()
            return super().answer(request)
    server = Late()
    server.policy.add("UpdateContainer")
    async with session(server) as ours:
        server.meanwhile = lambda: ours.push(KataWish(BOOT, ONE))
        ours.push(WISH)
        await until(lambda: ours.refused)
        await until(lambda: ours.reports)
        assert {cid: report.state for cid, report in ours.reports.items()} == {"c1": "left alone"}


async def test_a_container_given_cpus_before_a_refusal_is_not_left_alone() -> None:
    class Second(Server):
        def answer(self, request: ttrpc.Call) -> ttrpc.Reply:
            found = super().answer(request)
            if request.method == "UpdateContainer":
                self.policy.add("UpdateContainer")
            return found
    server = Second()
    async with session(server) as ours:
        ours.push(WISH)
        await until(lambda: ours.refused)
        await until(lambda: ours.reports)
        assert server.containers == {"c1": "2-3", "c2": ""}
        assert [(report.state, report.wanted) for report in ours.reports.values()] == [
            ("sent", CpuSet((2, 3))), ("left alone", CpuSet())]
        ours.push(KataWish(BOOT, ONE))  # it cannot be sent any more
        assert (ours.reports[C1].state, ours.reports[C1].wanted) == ("sent", CpuSet((2, 3)))


async def test_a_session_works_without_metrics() -> None:
    server = Server()
    server.policy.add("GetMetrics")
    async with session(server) as ours:
        ours.push(KataWish(PLUGGED, PLUGGED_MAP))
        await until(lambda: server.connections >= 3)
        assert ours.reports[C1].state == "sent"
        assert sum(method == "GetMetrics" for _, method in server.calls) == 1


async def test_an_unknown_container_waits_until_the_agent_knows_it_and_the_others_do_not() -> None:
    server = Server("c2")
    async with session(server) as ours:
        ours.push(WISH)
        await until(lambda: ours.reports)
        assert ours.reports[C1].state == "pending"
        assert ours.reports[C2].state == "sent"
        server.containers["c1"] = ""
        await until(lambda: ours.reports[C1].state == "sent")


PLUGGED_MAP = MAP._replace(containers={"c1": ContainerVcpus((6, 7), True), "c2": ContainerVcpus((0, 1))})


async def test_a_cpu_that_is_not_online_is_waited_for() -> None:
    server = Server()
    server.online = 3
    async with session(server) as ours:
        ours.push(KataWish(PLUGGED, PLUGGED_MAP))
        await until(lambda: ours.reports)
        assert ours.reports[C1].text == "pending: 3 of the guest's 4 CPUs are online"
        assert server.containers == {"c1": "", "c2": "0-1"}
        assert not ours.done
        server.online = 4
        await until(lambda: server.containers["c1"] == "2-3")
        await until(lambda: ours.done)


async def test_the_guests_kernel_version_shows_the_cpus_of_plugged_vcpus() -> None:
    for kernel, cpus in (OLD, "2-3"), ((6, 12), "6-7"):
        server = Server()
        async with session(server, kernel) as ours:
            ours.push(KataWish(PLUGGED, PLUGGED_MAP))
            await until(lambda: ours.done)
        assert server.containers == {"c1": cpus, "c2": "0-1"}


async def test_a_vcpu_without_a_certain_number_leaves_every_container_alone() -> None:
    """Also those without that vCPU: they could not be given it back."""
    server = Server()
    async with session(server, None) as ours:
        ours.push(KataWish(PLUGGED, PLUGGED_MAP))
        await until(lambda: ours.reports)
        assert {report.state for report in ours.reports.values()} == {"left alone"}
        assert "hardware id 6, 7 cannot be shown" in ours.reports[C1].error
        assert server.containers == {"c1": "", "c2": ""}


async def test_given_cpus_are_taken_back() -> None:
    server = Server("c1", "c2", "c3")
    async with session(server) as ours:
        ours.push(WISH)
        await until(lambda: ours.done)
        owed = [ours.owes]
        ours.push(KataWish(BOOT))
        owed.append(ours.owes)
        await until(lambda: ours.done)
        assert server.containers == {"c1": "0-3", "c2": "0-3", "c3": ""}
        assert ours.reports == {}
        assert [*owed, ours.owes] == [False, True, False]
        count = len(server.calls)
        await asyncio.sleep(0.5)
        assert len(server.calls) == count  # no agent is asked for nothing
        # A vCPU more: it is every container's.
        ours.push(KataWish(GuestVcpus({**BOOT.hw, VcpuId(7): 7}, 4, 8)))
        server.user, server.idle, server.online = [0.0] * 5, [0.0] * 5, 5
        await until(lambda: server.containers == {"c1": "0-4", "c2": "0-4", "c3": ""})


async def test_cpus_that_an_earlier_process_gave_are_taken_back_and_ended_containers_are_ignored() -> None:
    server = Server("c1")
    server.containers["c1"] = "2"
    async with session(server) as ours:
        ours.adopt([C1, C2])
        ours.push(KataWish(BOOT))
        await until(lambda: ours.done)
        assert server.containers == {"c1": "0-3"}


async def test_a_dead_slow_or_foreign_agent_is_tried_with_backoff_until_it_answers(tmp_path: Path) -> None:
    server = Server()
    nowhere: list[Channel] = []
    paths = nowhere
    ours = KataSession("pod-a", lambda: paths, timeouts=IMPATIENT)
    task = asyncio.create_task(ours.run())
    ours.push(WISH)
    await until(lambda: ours.reports)
    assert ours.reports[C1].state == "no agent"
    async with serving(server.talk) as path:
        server.raw = b"\xff" * 100
        paths = [UnixChannel(tmp_path / "none.sock"), UnixChannel(path)]
        await until(lambda: ours.counters.refused >= 2)
        server.raw, server.slow = None, 1.0
        await until(lambda: ours.text == "no answer in time")
        server.slow = 0.0
        await until(lambda: ours.reports.get(C1) and ours.reports[C1].state == "sent")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_vm_that_ends_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    async with serving(server.talk) as path:
        channels = [UnixChannel(path)]
        ours = KataSession("pod-a", lambda: channels, timeouts=QUICK)
        task = asyncio.create_task(ours.run())
        ours.push(WISH)
        await until(lambda: ours.up)
        channels[:] = [UnixChannel(tmp_path / "ended.sock")]
        ours.retry_now()
        await until(lambda: not ours.up)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_an_agent_that_is_slow_once_is_given_time(caplog: pytest.LogCaptureFixture) -> None:
    """It creates a container before it answers."""
    server = Server()
    async with session(server, timeouts=IMPATIENT) as ours:
        ours.push(WISH)
        await until(lambda: ours.reports.get(C1) and ours.reports[C1].state == "sent")
        server.slow = 100.0
        ours.retry_now()
        await until(lambda: ours.text == WAITING)
        assert ours.up
        assert ours.reports[C1] == ContainerReport("pending", WAITING)
        server.slow = 0.0
        await until(lambda: ours.reports[C1].state == "sent")
        assert ours.text.startswith("Kata's agent ")
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        # One that stays silent is lost.
        server.slow = 100.0
        ours.retry_now()
        await until(lambda: ours.text == "no answer in time")
        assert (ours.up, ours.reports[C1].state) == (False, "no agent")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "Kata's agent sandbox=pod-a: no answer in time"]


async def test_a_call_that_is_carried_out_late_is_overridden_soon() -> None:
    """The agent created a container meanwhile: a call without an answer may be carried out after a newer one."""
    server = Server()
    async with session(server, timeouts=replace(IMPATIENT, kata_resend=3600.0)) as ours:
        ours.push(WISH)
        await until(lambda: ours.reports.get(C1) and ours.reports[C1].state == "sent")
        server.slow = 100.0
        await until(lambda: ours.text == WAITING)  # the repetition
        ours.push(KataWish(BOOT, ONE))
        server.slow = 0.0
        await until(lambda: ours.done)
        server.containers["c1"] = "0-3"
        await until(lambda: server.containers["c1"] == "1")


async def test_any_other_error_is_that_containers_error() -> None:
    class Failing(Server):
        def answer(self, request: ttrpc.Call) -> ttrpc.Reply:
            if request.method == "UpdateContainer":
                return ttrpc.Reply(request.stream, 13, "EIO\nsecond line")
            return super().answer(request)
    server = Failing()
    async with session(server) as ours:
        ours.push(WISH)
        await until(lambda: ours.reports)
        assert ours.reports[C1].text == "error: code 13: EIOsecond line"
    assert issubclass(UnknownContainer, AgentError)
