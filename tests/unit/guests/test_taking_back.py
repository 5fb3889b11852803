"""Taking back what a guest was sent: by the manager, and without a watcher."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from guest_machines import POD, Machine, running
from guest_peer import Agent, serving, until

from vmpin.config.timeouts import Timeouts
from vmpin.domain.model import SandboxId
from vmpin.guests.manager import GuestManager
from vmpin.protocol.messages import Failure, HostMessage, Unpin, VcpuMap
from vmpin.reconcile.view import NodeView


async def test_unpin_takes_it_back_and_reconcile_sends_it_again(tmp_path: Path) -> None:
    async with running(Machine(tmp_path)) as node:
        await until(lambda: node.states().get("web") == "applied")
        node.give("2-3", held=True)
        await until(lambda: isinstance(node.agent.requests[-1], Unpin))
        assert node.states() == {}
        node.give("2-3")
        await until(lambda: node.states().get("web") == "applied")


async def test_switched_off_while_it_runs_everything_is_taken_back(tmp_path: Path) -> None:
    async with running(Machine(tmp_path)) as node:
        await until(lambda: node.states().get("web") == "applied")
        node.view.config = node.config(log_level="debug")
        node.update()
        await asyncio.sleep(0.05)
        assert node.agent.connections == 1  # nothing of the guest's has changed
        node.view.config = node.config(guest_system="off")
        node.update()
        await until(lambda: node.agent.maps[-1].system is None)
        node.view.config = node.config(guest_via="off")
        node.update()
        assert node.guests.report(POD) is None
        await until(lambda: isinstance(node.agent.requests[-1], Unpin))


@pytest.mark.parametrize("excluded", [True, False])
async def test_the_guest_of_a_sandbox_that_is_excluded_takes_everything_back(tmp_path: Path, excluded: bool) -> None:
    """The guest of a VM that has ended need not."""
    async with running(Machine(tmp_path)) as node:
        await until(lambda: node.states().get("web") == "applied")
        if excluded:
            node.view.config = node.config(watch_only="another*")
        node.view.vms.clear()
        node.update()
        assert node.guests.report(POD) is None
        leaving = list(node.guests.leaving.values())
        await asyncio.wait(leaving)
        assert isinstance(node.agent.requests[-1], Unpin) is excluded


@pytest.mark.parametrize("pause", [0.0, 0.3])
async def test_another_agent_begins_when_the_one_before_has_taken_everything_back(
        pause: float, tmp_path: Path) -> None:
    async with running(Machine(tmp_path)) as node:
        await until(lambda: node.states().get("web") == "applied")
        for via in ("off", "kata-agent") if pause else ("kata-agent",):
            node.view.config = node.config(guest_via=via)
            node.update()
            await asyncio.sleep(pause)
        await until(lambda: node.states().get("web") == "sent")
        assert isinstance(node.agent.requests[-1], Unpin)
        assert node.kata.containers == {"web": "2-3", "logs": "0-1"}
        count = len(node.agent.maps)
        node.view.config = node.config(guest_via="vmpin-agent")
        node.update()
        await until(lambda: node.states().get("web") == "applied")
        assert node.kata.containers == {"web": "0-3", "logs": "0-3"}
        assert len(node.agent.maps) == count + 1


async def test_off_and_on_again_at_once_ends_with_the_map(tmp_path: Path) -> None:
    async with running(Machine(tmp_path)) as node:
        await until(lambda: node.states().get("web") == "applied")
        for _ in range(5):
            for via in ("off", "vmpin-agent"):
                node.view.config = node.config(guest_via=via)
                node.update()
        await until(lambda: node.states().get("web") == "applied")
        assert isinstance([request for request in node.agent.requests if isinstance(
            request, VcpuMap | Unpin)][-1], VcpuMap)


async def test_unpin_reports_the_result_in_each_guest(tmp_path: Path) -> None:
    async with running(Machine(tmp_path)) as node:
        await until(lambda: node.states().get("web") == "applied")
        node.give("2-3", held=True)
        assert await node.guests.unpin_results([POD, SandboxId("another")]) == {POD: "taken back"}


async def test_what_a_guest_cannot_take_back_is_reported(tmp_path: Path) -> None:
    class Stubborn(Agent):
        def answer(self, request: HostMessage) -> None:
            if isinstance(request, Unpin):
                self.say(Failure(request.id, "read-only file system"))
            else:
                super().answer(request)
    async with running(Machine(tmp_path, agent=Stubborn())) as node:
        await until(lambda: node.states().get("web") == "applied")
        node.give("2-3", held=True)
        assert await node.guests.unpin_results([POD]) == {
            POD: "not all is taken back: read-only file system"}


async def test_katas_agents_map_is_taken_back_too(tmp_path: Path) -> None:
    async with running(Machine(tmp_path, {"guest_via": "kata-agent"})) as node:
        await until(lambda: node.states().get("web") == "sent")
        node.give("2-3", held=True)
        await until(lambda: node.kata.containers == {"web": "0-3", "logs": "0-3"})


async def test_katas_agents_map_from_before_vmpins_came_is_taken_back_with_the_rest(tmp_path: Path) -> None:
    """vmpin's agent takes the CPUs that Kata's had set for the original ones."""
    async with running(Machine(tmp_path, ports={1024})) as node:
        await until(lambda: node.states() == {"web": "sent", "logs": "sent"})
        node.ports.add(10789)
        node.guests.retry_now()
        await until(lambda: node.states() == {"web": "applied", "logs": "applied"})
        assert node.kata.containers == {"web": "2-3", "logs": "0-1"}
        node.give("2-3", held=True)
        await until(lambda: node.kata.containers == {"web": "0-3", "logs": "0-3"})
        unpinned = [type(request) for request in node.agent.requests].index(Unpin)
        assert not any(isinstance(request, VcpuMap) for request in node.agent.requests[unpinned:])
        node.give("2-3")
        await until(lambda: node.states() == {"web": "applied", "logs": "applied"})
        updates = node.kata.calls.count(("grpc.AgentService", "UpdateContainer"))
        node.give("2-3", held=True)
        await until(lambda: isinstance(node.agent.requests[-1], Unpin))
        await asyncio.sleep(0.05)
        assert node.kata.calls.count(("grpc.AgentService", "UpdateContainer")) == updates


async def take_back(node: Machine) -> dict[SandboxId, str]:
    place = node.root / "vm" / POD
    place.mkdir(parents=True)
    async with serving(node.talk, place / "kata.hvsock"):
        node.view.placements = {}
        results = await node.guests.unpin_once(cast(NodeView, node.view), [POD, SandboxId("other")])
    assert len(asyncio.all_tasks()) == 1
    return results


async def test_without_a_watcher_vmpins_agent_takes_it_back(tmp_path: Path) -> None:
    node = Machine(tmp_path)
    assert await take_back(node) == {POD: "taken back"}
    assert sum(isinstance(request, Unpin) for request in node.agent.requests) == 1
    assert node.agent.maps == []
    assert node.asked == [10789]


async def test_without_a_watcher_katas_agent_is_sent_every_container(tmp_path: Path) -> None:
    node = Machine(tmp_path, ports={1024})
    node.kata.containers |= {"web": "2-3", "logs": "0-1"}
    assert await take_back(node) == {POD: "taken back"}
    assert node.kata.containers == {"web": "0-3", "logs": "0-3"}


@pytest.mark.parametrize(("values", "ports", "word"), [
    ({}, set(), "nothing is taken back: no process listens"),
    ({"guest_via": "vmpin-agent"}, {1024}, "nothing is taken back: no process listens"),
    ({"guest_via": "off"}, {10789}, None), ({"guest_disabled_handlers": "kata-*"}, {10789}, None),
])
async def test_without_a_watcher_guests_that_keep_their_map_are_named(
        values: dict[str, str], ports: set[int], word: str | None, tmp_path: Path) -> None:
    node = Machine(tmp_path, values, ports=ports)
    assert await take_back(node) == ({} if word is None else {POD: word})
    assert node.asked == [] or word is not None


async def test_without_a_watcher_a_silent_agent_is_given_up(tmp_path: Path) -> None:
    node = Machine(tmp_path, guests=GuestManager(timeouts=Timeouts(guest_unpin=0.3)))
    node.agent.silent_on = (Unpin,)
    assert await take_back(node) == {POD: "no answer within 0.3 s"}
