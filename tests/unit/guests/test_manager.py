"""The guests of a node: who is told what and when, over hybrid vsock as Firecracker has it."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from effort import effort
from guest_peer import Agent, serving, until
from kata_peer import Server

from vmpin.config import loading as configuration
from vmpin.config.settings import Config
from vmpin.config.timeouts import Timeouts
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import ContainerRecord, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.model import Container, ContainerId, SandboxId, ThreadId, ThreadRole, Vcpu, VcpuId, VmmType, VmThread
from vmpin.domain.topology import Topology
from vmpin.guests.manager import GuestManager
from vmpin.guests.transport.vsock import Vsock
from vmpin.guests.vm_guest import guest_vcpus
from vmpin.host.procfs import Procfs
from vmpin.placement.ownership import Node, claims_of, ownership
from vmpin.placement.policy import Policy
from vmpin.placement.rules import Placement, PlacementRequest, place
from vmpin.protocol.messages import Failure, HostMessage, Unpin, VcpuMap
from vmpin.reconcile.view import NodeView
from vmpin.vmm.virtual_machine import Process, VcpuState, Vm

POD = SandboxId("pod-a")
QUICK = Timeouts(agent_last=0.2)
WEB, LOGS = ContainerId("web"), ContainerId("logs")
NODE = Node(Topology.build(CpuSet.parse("0-7")), CpuSet.parse("0-1"))


T = TypeVar("T")


def changed(made: T, **attributes: object) -> T:
    """A copy with other attributes."""
    other = copy.copy(made)
    vars(other).update(attributes)
    return other


@dataclass
class Machine:
    """A node with one VM of four vCPUs, as a view shows it, and both agents in its guest."""

    root: Path
    values: dict[str, str] = field(default_factory=dict)
    agent: Agent = field(default_factory=Agent)
    kata: Server = field(default_factory=lambda: Server("web", "logs"))
    ports: set[int] = field(default_factory=lambda: {10789, 1024})
    told: list[int] = field(default_factory=list)
    guests: GuestManager = field(default_factory=lambda: GuestManager(timeouts=QUICK))

    def __post_init__(self) -> None:
        threads = {tid: VmThread(ThreadId(tid, tid), ThreadRole.VCPU, f"fc_vcpu {number}", os.getpid(), VcpuId(number))
                   for number, tid in enumerate(range(100, 104))}
        process = Process(os.getpid(), ThreadId(os.getpid(), 1), ThreadRole.EMULATOR, ["firecracker"], threads=threads)
        self.vm = Vm(POD, VmmType.FIRECRACKER, process, known=True,
                     vcpus=tuple(Vcpu(VcpuId(number)) for number in range(4)))
        self.view = SimpleNamespace(vms={POD: self.vm}, sandboxes={}, placements={}, proc=Procfs(),
                                    kata=lambda sandbox: None, config=self.config(**self.values))
        self.give("2-3")

    def config(self, **values: str) -> Config:
        flags = {"paths.kata_go": str(self.root), "paths.kata_rs": str(self.root / "none")}
        return configuration.load(None, {}, flags | {key.replace("_", ".", 1): value for key, value in values.items()})

    def give(self, web: str, held: bool = False) -> None:
        """Place the sandbox with these CPUs for the container `web`."""
        containers = (Container(WEB, "web", CpuSet.parse(web)), Container(LOGS, "logs", CpuSet.parse("0-1")))
        known = {each.id: ContainerRecord(each, Source.BUNDLE, 1) for each in containers}
        self.view.sandboxes = {POD: SandboxState(POD, containers=known, suspended=held, handler="kata-fc")}
        previous = self.placement.as_previous() if self.placement else None
        self.view.placements = {} if held else {POD: place(
            PlacementRequest(POD, self.vm.vcpus, containers, self.vm.known), NODE,
            ownership({POD: claims_of(containers, NODE)}, NODE), Policy(), previous)}
        self.update()

    @property
    def placement(self) -> Placement | None:
        found: Placement | None = self.view.placements.get(POD)
        return found

    def update(self) -> None:
        self.guests.update(cast(NodeView, self.view))

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not (line := await reader.readline()):
            return  # ended while it connected
        port = int(line.split()[1])
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


def test_vmpins_agent_comes_first_and_is_told_of_each_change(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path)) as node:
            await until(lambda: node.states() == {"web": "applied", "logs": "applied"})
            assert node.by() == "vmpin-agent"
            assert node.told == [10789]
            assert {cid: share.hw for cid, share in node.agent.maps[-1].containers.items()} == {
                "web": (2, 3), "logs": (0, 1)}
            assert node.agent.maps[-1].system == (0, 1)
            for number in range(20):  # how soon is the bench's to say (guest_apply)
                count = len(node.agent.maps)
                node.give("2" if number % 2 == 0 else "2-3")
                assert node.states()["web"] == "pending"
                await until(lambda: len(node.agent.maps) > count)  # noqa: B023
                await until(lambda: node.states()["web"] == "applied")
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
            await until(lambda: isinstance(node.agent.requests[-1], Unpin))
            assert node.states() == {}
            node.give("2-3")
            await until(lambda: node.states().get("web") == "applied")
    run(test())


def test_switched_off_while_it_runs_everything_is_taken_back(tmp_path: Path) -> None:
    async def test() -> None:
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
    run(test())


@pytest.mark.parametrize("excluded", [True, False])
def test_the_guest_of_a_sandbox_that_is_excluded_takes_everything_back(tmp_path: Path, excluded: bool) -> None:
    """Which one that has ended need not."""
    async def test() -> None:
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
    run(test())


@pytest.mark.parametrize("pause", [0.0, 0.3])
def test_another_way_begins_when_the_one_before_has_taken_everything_back(pause: float, tmp_path: Path) -> None:
    async def test() -> None:
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
    run(test())


def test_off_and_on_again_at_once_ends_with_the_map(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path)) as node:
            await until(lambda: node.states().get("web") == "applied")
            for _ in range(5):
                for via in ("off", "vmpin-agent"):
                    node.view.config = node.config(guest_via=via)
                    node.update()
            await until(lambda: node.states().get("web") == "applied")
            assert isinstance([each for each in node.agent.requests if isinstance(
                each, VcpuMap | Unpin)][-1], VcpuMap)
    run(test())


def test_unpin_says_what_became_of_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path)) as node:
            await until(lambda: node.states().get("web") == "applied")
            node.give("2-3", held=True)
            assert await node.guests.unpin_results([POD, SandboxId("another")]) == {POD: "taken back"}
    run(test())


def test_what_a_guest_cannot_take_back_is_said(tmp_path: Path) -> None:
    class Stubborn(Agent):
        def answer(self, request: HostMessage) -> None:
            if isinstance(request, Unpin):
                self.say(Failure(request.id, "read-only file system"))
            else:
                super().answer(request)

    async def test() -> None:
        async with running(Machine(tmp_path, agent=Stubborn())) as node:
            await until(lambda: node.states().get("web") == "applied")
            node.give("2-3", held=True)
            assert await node.guests.unpin_results([POD]) == {
                POD: "not all is taken back: read-only file system"}
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
            node.vm.vcpu_state = VcpuState.UNIDENTIFIED
            node.give("2")
            await asyncio.sleep(0.05)
            assert len(node.agent.maps) == count
            assert node.states()["web"] == "pending: its vCPUs are not identified yet"
            node.vm.vcpu_state = VcpuState.IDENTIFIED
            node.give("2")
            await until(lambda: node.states()["web"] == "applied")
    run(test())


def test_a_vm_that_ends_and_one_that_comes_in_its_place(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path)) as node:
            await until(lambda: node.states().get("web") == "applied")
            node.vm.vmm = changed(node.vm.vmm, id=ThreadId(os.getpid(), 2))
            node.update()
            await until(lambda: node.agent.connections == 2)
            await until(lambda: node.states().get("web") == "applied")
            node.view.vms = {}
            node.update()
            assert node.guests.report(POD) is None
            await asyncio.sleep(0.05)
            assert not isinstance(node.agent.requests[-1], Unpin)
    run(test())


def test_the_watcher_started_again_tells_it_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with running(Machine(tmp_path)) as node:
            await until(lambda: node.states().get("web") == "applied")
            old = node.agent.maps[-1].generation
            node.guests = GuestManager(timeouts=QUICK)
            node.update()
            task = asyncio.create_task(node.guests.run())
            await until(lambda: node.states().get("web") == "applied")
            assert node.agent.maps[-1].generation > old
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    run(test())


def test_what_katas_agent_was_told_before_vmpins_came_is_taken_back_with_the_rest(tmp_path: Path) -> None:
    """What vmpin's agent found is for it what was there before."""
    async def test() -> None:
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
    run(test())


def test_one_that_speaks_nonsense_is_an_error_with_a_counter_in_the_status(tmp_path: Path) -> None:
    class Mad(Agent):
        async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\x00\x00\x00\x09[\x1b[31m\x07]]]")
            await reader.read()

    async def test() -> None:
        async with running(Machine(tmp_path, {"guest_via": "vmpin-agent"}, agent=Mad())) as node:
            await until(lambda: counted(node)["refused"] >= 3)
            assert set(node.states().values()) == {f"error: {counted(node)['state']}"}
            assert "not version 1 of the protocol" in counted(node)["last_error"]
            assert counted(node)["last_error"].isprintable()
            node.agent = Agent()
            await until(lambda: node.states() == {"web": "applied", "logs": "applied"})
            assert counted(node)["refused"] >= 3
    run(test())


def counted(node: Machine) -> dict[str, Any]:
    found = node.guests.data(POD)
    assert found is not None
    return found[0]


def test_an_agent_that_comes_late_is_found_when_somebody_asks(tmp_path: Path) -> None:
    rare = GuestManager(timeouts=Timeouts(agent_first=60.0, agent_last=60.0, agent_early=0.05))

    async def test() -> None:
        async with running(Machine(tmp_path, ports=set(), guests=rare)) as node:
            await until(lambda: node.told == [10789, 1024])
            node.ports = {10789, 1024}
            await asyncio.sleep(0.1)
            assert node.told == [10789, 1024]
            node.guests.retry_now()
            await until(lambda: node.states() == {"web": "applied", "logs": "applied"})
    run(test())


# Without a watcher

def take_back(node: Machine) -> dict[SandboxId, str]:
    found: dict[SandboxId, str] = {}

    async def test() -> None:
        place = node.root / "vm" / POD
        place.mkdir(parents=True)
        async with serving(node.talk, place / "kata.hvsock"):
            node.view.placements = {}
            found.update(await node.guests.unpin_once(cast(NodeView, node.view), [POD, SandboxId("other")]))
        assert len(asyncio.all_tasks()) == 1
    run(test())
    return found


def test_without_a_watcher_vmpins_agent_takes_it_back(tmp_path: Path) -> None:
    node = Machine(tmp_path)
    assert take_back(node) == {POD: "taken back"}
    assert sum(isinstance(request, Unpin) for request in node.agent.requests) == 1
    assert node.agent.maps == []
    assert node.told == [10789]


def test_without_a_watcher_katas_agent_is_told_of_every_container(tmp_path: Path) -> None:
    node = Machine(tmp_path, ports={1024})
    node.kata.containers |= {"web": "2-3", "logs": "0-1"}
    assert take_back(node) == {POD: "taken back"}
    assert node.kata.containers == {"web": "0-3", "logs": "0-3"}


@pytest.mark.parametrize(("values", "ports", "word"), [
    ({}, set(), "nothing is taken back: no process listens"),
    ({"guest_via": "vmpin-agent"}, {1024}, "nothing is taken back: no process listens"),
    ({"guest_via": "off"}, {10789}, None), ({"guest_disabled_handlers": "kata-*"}, {10789}, None),
])
def test_without_a_watcher_it_is_said_who_takes_nothing_back(
        values: dict[str, str], ports: set[int], word: str | None, tmp_path: Path) -> None:
    node = Machine(tmp_path, values, ports=ports)
    assert take_back(node) == ({} if word is None else {POD: word})
    assert node.told == [] or word is not None


def test_without_a_watcher_one_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    node = Machine(tmp_path, guests=GuestManager(timeouts=Timeouts(guest_unpin=0.3)))
    node.agent.silent_on = (Unpin,)
    assert take_back(node) == {POD: "no answer within 0.3 s"}


def test_vcpus_in_the_order_they_came(tmp_path: Path) -> None:
    node = Machine(tmp_path)
    threads = {tid: VmThread(ThreadId(tid, began), ThreadRole.VCPU, f"CPU {vcpu}/KVM", 1, VcpuId(vcpu))
               for tid, began, vcpu in ((500, 9, 6), (400, 7, 1), (401, 7, 0), (402, 9, 7), (600, 1, 2))}
    argv = ["/usr/bin/qemu-system-x86_64", "-smp", "2,cores=1,threads=1,sockets=8,maxcpus=8"]
    vmm = changed(node.vm.vmm, argv=argv, threads={**threads, 700: threads[500]._replace(
        id=ThreadId(700, 1), role=ThreadRole.EMULATOR, vcpu=None)})
    found = guest_vcpus(changed(node.vm, type=VmmType.QEMU, vmm=vmm), {VcpuId(number): number for number in (0, 1, 6,
    7)})
    assert ([*found.hw], found.boot, found.most, found.plugged) == ([1, 0, 7, 6], 2, 8, [7, 6])
    assert guest_vcpus(node.vm, {VcpuId(number): number for number in range(4)}).plugged == []


def test_looking_after_three_hundred_guests_in_which_nothing_changed_costs_little(tmp_path: Path) -> None:
    async def test() -> None:
        node = Machine(tmp_path)
        vms, states, placements = {}, {}, {}
        for number in range(300):
            pod = SandboxId(f"pod-{number}")
            vms[pod] = changed(node.vm, sandbox=pod)
            states[pod] = node.view.sandboxes[POD]._replace(id=pod)
            placements[pod] = node.view.placements[POD]._replace(sandbox=pod)
        node.view.vms, node.view.placements = vms, placements
        node.view.sandboxes = states
        node.update()
        assert effort(node.update, 20) < 0.6
    run(test())


def test_what_goes_wrong_with_the_guests_is_told_once_and_stops_nothing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "vmpin.guests.vm_guest", None)  # as if a library were not there
        machine = Machine(tmp_path)
        machine.update()
    assert len(caplog.records) == 1
    assert "guest not updated" in caplog.text
    assert machine.guests.data(POD) is None
    machine.update()
    assert machine.guests.data(POD) is not None


def test_a_cid_that_two_claim_is_nobodys(tmp_path: Path) -> None:
    """A command line is its process's to write; the kernel gives a CID to one VM."""
    async def test() -> None:
        node = Machine(tmp_path, {"guest_via": "off"})
        argv = ["qemu-system-x86_64", "-smp", "4", "-device", "vhost-vsock-pci,guest-cid=77"]
        pods = [SandboxId("pod-a"), SandboxId("pod-b")]
        vms = {pod: changed(node.vm, sandbox=pod, type=VmmType.QEMU, vmm=changed(node.vm.vmm, argv=argv))
               for pod in pods}
        node.view.config = node.config()
        node.view.vms = {pods[0]: vms[pods[0]]}
        node.update()
        (alone,) = node.guests.channels(pods[0])
        assert isinstance(alone, Vsock)
        node.view.vms = vms
        node.update()
        for pod, other in zip(pods, reversed(pods), strict=True):
            (way,) = node.guests.channels(pod)
            with pytest.raises(OSError, match=f"sandbox {other}'s VMM"):
                await way.open(10789)
        node.view.vms = {pods[1]: vms[pods[1]]}
        node.update()
        (alone,) = node.guests.channels(pods[1])
        assert isinstance(alone, Vsock)
    run(test())
