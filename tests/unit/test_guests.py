"""The guests of a node: who is told what and when, over hybrid vsock as Firecracker has it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from guest_peer import Agent, serving, until
from kata_peer import Server

from vmpin import config as configuration
from vmpin import guestproto
from vmpin.config import Config
from vmpin.cpuset import CpuSet
from vmpin.events import Source
from vmpin.guests import Guests
from vmpin.host.procfs import Procfs
from vmpin.model import Container, ContainerId, SandboxId, ThreadId, ThreadRole, Vcpu, VcpuId, VmmType, VmThread
from vmpin.observe import Process, Vm
from vmpin.ownership import Node, claims, ownership
from vmpin.placement import Placement, Request, place
from vmpin.policy import Policy
from vmpin.reconciler import Reconciler
from vmpin.state import DesiredState, Known, SandboxState
from vmpin.topology import Topology

POD = SandboxId("pod-a")
WEB, LOGS = ContainerId("web"), ContainerId("logs")
NODE = Node(Topology.build(CpuSet.parse("0-7")), CpuSet.parse("0-1"))


@dataclass
class Machine:
    """A node with one VM of four vCPUs, as a reconciler shows it, and both agents in its guest."""

    root: Path
    values: dict[str, str] = field(default_factory=dict)
    agent: Agent = field(default_factory=Agent)
    kata: Server = field(default_factory=lambda: Server("web", "logs"))
    ports: set[int] = field(default_factory=lambda: {10789, 1024})
    told: list[int] = field(default_factory=list)
    guests: Guests = field(default_factory=Guests)

    def __post_init__(self) -> None:
        threads = {tid: VmThread(ThreadId(tid, tid), ThreadRole.VCPU, f"fc_vcpu {number}", os.getpid(), VcpuId(number))
                   for number, tid in enumerate(range(100, 104))}
        process = Process(os.getpid(), ThreadId(os.getpid(), 1), ThreadRole.EMULATOR, ["firecracker"], threads=threads)
        self.vm = Vm(POD, VmmType.FIRECRACKER, process, known=True,
                     vcpus=tuple(Vcpu(VcpuId(number)) for number in range(4)))
        self.reconciler = SimpleNamespace(
            observer=SimpleNamespace(vms={POD: self.vm}), state=DesiredState(), placements={}, proc=Procfs(),
            sources=SimpleNamespace(sandboxes={}), config=self.config(**self.values))
        self.give("2-3")

    def config(self, **values: str) -> Config:
        flags = {"paths.kata_go": str(self.root), "paths.kata_rs": str(self.root / "none")}
        return configuration.load(None, {}, flags | {key.replace("_", ".", 1): value for key, value in values.items()})

    def give(self, web: str, held: bool = False) -> None:
        """Place the sandbox with these CPUs for the container `web`."""
        containers = (Container(WEB, "web", CpuSet.parse(web)), Container(LOGS, "logs", CpuSet.parse("0-1")))
        known = {each.id: Known(each, Source.BUNDLE, 1) for each in containers}
        self.reconciler.state = DesiredState({POD: SandboxState(POD, containers=known, held=held, handler="kata-fc")})
        previous = self.placement.previous() if self.placement else None
        self.reconciler.placements = {} if held else {POD: place(
            Request(POD, self.vm.vcpus, containers, self.vm.known), NODE,
            ownership({POD: claims(containers, NODE)}, NODE), Policy(), previous)}
        self.update()

    @property
    def placement(self) -> Placement | None:
        found: Placement | None = self.reconciler.placements.get(POD)
        return found

    def update(self) -> None:
        self.guests.update(cast(Reconciler, self.reconciler))

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = int((await reader.readline()).split()[1])
        self.told.append(port)
        if port not in self.ports:
            return
        writer.write(b"OK 1\n")
        await (self.agent.talk if port == 10789 else self.kata.talk)(reader, writer)

    def states(self) -> dict[str, Any]:
        found = self.guests.data(POD)
        return {} if found is None else {container: said["text"] for container, said in found[1].items()}

    def by(self) -> object:
        found = self.guests.data(POD)
        return None if found is None else found[0]["by"]


@asynccontextmanager
async def running(machine: Machine) -> AsyncIterator[Machine]:
    place = machine.root / "vm" / POD
    place.mkdir(parents=True)
    async with serving(machine.talk, place / "kata.hvsock"):
        task = asyncio.create_task(machine.guests.run())
        try:
            yield machine
        finally:
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert len(asyncio.all_tasks()) == 1


def run(what: Coroutine[Any, Any, None]) -> None:
    asyncio.run(what)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(configuration, "DEFAULT_FILE", tmp_path / "none.yaml")
    monkeypatch.setattr("vmpin.guest.attempts.LAST", 0.2)


def test_vmpins_agent_comes_first_and_is_told_within_100_ms_of_a_change(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path)) as node:
            await until(lambda: node.states() == {"web": "applied", "logs": "applied"})
            assert node.by() == "vmpin-agent"
            assert node.told == [10789]
            assert {cid: share.hw for cid, share in node.agent.maps[-1].containers.items()} == {
                "web": (2, 3), "logs": (0, 1)}
            assert node.agent.maps[-1].system == (0, 1)
            took = []
            for number in range(20):
                count, began = len(node.agent.maps), time.perf_counter()
                node.give("2" if number % 2 == 0 else "2-3")
                assert node.states()["web"] == "pending"
                while len(node.agent.maps) == count:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                took.append(time.perf_counter() - began)
                await until(lambda: node.states()["web"] == "applied")
            assert sorted(took)[10] < 0.1
            count = len(node.agent.maps)
            node.update()
            node.give("2-3")  # the same in other objects
            await asyncio.sleep(0.05)
            assert len(node.agent.maps) == count
    run(test())


def test_without_it_katas_own_agent_is_asked_until_it_comes(tmp_path: Path) -> None:
    async def test() -> None:
        node = Machine(tmp_path, ports={1024})
        async with running(node):
            await until(lambda: node.states() == {"web": "sent", "logs": "sent"})
            assert node.kata.containers == {"web": "2-3", "logs": "0-1"}
            assert node.by() == "kata-agent"
            node.ports.add(10789)
            await until(lambda: node.states() == {"web": "applied", "logs": "applied"})
            assert node.by() == "vmpin-agent"
            calls = len(node.kata.calls)
            node.give("3")
            await until(lambda: node.agent.maps[-1].containers["web"].hw == (3,))
            assert len(node.kata.calls) == calls
            node.ports.discard(10789)
            assert node.agent.writer is not None
            node.agent.writer.transport.abort()
            await until(lambda: node.states() == {"web": "sent", "logs": "sent"})
            assert node.kata.containers["web"] == "3"
    run(test())


def test_nobody_there_is_no_agent_and_no_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path, ports=set())) as node:
            await until(lambda: node.told.count(1024) >= 2)
            assert all(text.startswith("no agent") for text in node.states().values())
            assert node.by() == ""
    with caplog.at_level(logging.INFO):
        run(test())
    assert caplog.records == []


@pytest.mark.parametrize(("via", "ports"), [("vmpin-agent", {10789}), ("kata-agent", {1024})])
def test_only_the_one_that_is_configured_is_asked(via: str, ports: set[int], tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path, {"guest_via": via})) as node:
            await until(lambda: node.by() == via)
            await asyncio.sleep(0.3)
            assert set(node.told) == ports
    run(test())


@pytest.mark.parametrize("values", [{"guest_via": "off"}, {"guest_disabled_handlers": "kata-tdx,kata-f*"}])
def test_a_guest_that_is_to_be_told_nothing_is_not_even_connected_to(values: dict[str, str], tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path, values)) as node:
            await asyncio.sleep(0.2)
            assert node.told == []
            assert node.guests.report(POD) is None
    run(test())


def test_unpin_takes_it_back_and_reconcile_tells_it_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path)) as node:
            await until(lambda: node.states().get("web") == "applied")
            node.give("2-3", held=True)
            await until(lambda: isinstance(node.agent.requests[-1], guestproto.Unpin))
            assert node.states() == {}
            node.give("2-3")
            await until(lambda: node.states().get("web") == "applied")
    run(test())


def test_switched_off_while_it_runs_everything_is_taken_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path)) as node:
            await until(lambda: node.states().get("web") == "applied")
            node.reconciler.config = node.config(log_level="debug")
            node.update()
            await asyncio.sleep(0.05)
            assert node.agent.connections == 1  # nothing of the guest's has changed
            node.reconciler.config = node.config(guest_system="off")
            node.update()
            await until(lambda: node.agent.maps[-1].system is None)
            node.reconciler.config = node.config(guest_via="off")
            node.update()
            assert node.guests.report(POD) is None
            await until(lambda: isinstance(node.agent.requests[-1], guestproto.Unpin))
    run(test())


def test_what_katas_agent_was_told_is_taken_back_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path, {"guest_via": "kata-agent"})) as node:
            await until(lambda: node.states().get("web") == "sent")
            node.give("2-3", held=True)
            await until(lambda: node.kata.containers == {"web": "0-3", "logs": "0-3"})
    run(test())


def test_vcpus_that_are_not_all_known_narrow_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path)) as node:
            await until(lambda: node.states().get("web") == "applied")
            count = len(node.agent.maps)
            node.vm.known = False
            node.give("2")
            await asyncio.sleep(0.05)
            assert len(node.agent.maps) == count
            assert node.states()["web"] == "pending: its vCPUs are not known yet"
            node.vm.known = True
            node.give("2")
            await until(lambda: node.states()["web"] == "applied")
    run(test())


def test_a_vm_that_ends_and_one_that_comes_in_its_place(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path)) as node:
            await until(lambda: node.states().get("web") == "applied")
            node.vm.vmm = replace(node.vm.vmm, id=ThreadId(os.getpid(), 2))
            node.update()
            await until(lambda: node.agent.connections == 2)
            await until(lambda: node.states().get("web") == "applied")
            node.reconciler.observer.vms = {}
            node.update()
            assert node.guests.report(POD) is None
            await asyncio.sleep(0.05)
            assert not isinstance(node.agent.requests[-1], guestproto.Unpin)
    run(test())


def test_the_watcher_started_again_tells_it_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path)) as node:
            await until(lambda: node.states().get("web") == "applied")
            old = node.agent.maps[-1].generation
            node.guests = Guests()
            node.update()
            task = asyncio.create_task(node.guests.run())
            await until(lambda: node.states().get("web") == "applied")
            assert node.agent.maps[-1].generation > old
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    run(test())


def test_looking_after_three_hundred_guests_in_which_nothing_changed_takes_less_than_two_ms(tmp_path: Path) -> None:
    async def test() -> None:
        node = Machine(tmp_path)
        vms, states, placements = {}, {}, {}
        for number in range(300):
            pod = SandboxId(f"pod-{number}")
            vms[pod] = replace(node.vm, sandbox=pod)
            states[pod] = replace(node.reconciler.state.sandboxes[POD], id=pod)
            placements[pod] = replace(node.reconciler.placements[POD], sandbox=pod)
        node.reconciler.observer.vms, node.reconciler.placements = vms, placements
        node.reconciler.state = DesiredState(states)
        node.update()
        took = []
        for _ in range(20):
            began = time.perf_counter()
            node.update()
            took.append(time.perf_counter() - began)
        assert min(took) < 0.002
    run(test())
