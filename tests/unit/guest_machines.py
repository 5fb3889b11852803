"""A node with one VM and both agents in its guest, for the tests of the guest manager."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from guest_peer import Agent, serving
from kata_peer import Server
from ruled import claims

from vmpin.config import loading as configuration
from vmpin.config.settings import Config
from vmpin.config.timeouts import Timeouts
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import ContainerRecord, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.model import (
    Container,
    ContainerId,
    SandboxId,
    ThreadId,
    ThreadRole,
    Vcpu,
    VcpuId,
    VcpuState,
    VmThread,
)
from vmpin.domain.policy import Policy
from vmpin.domain.sandbox_placement import Placement
from vmpin.domain.topology import Topology
from vmpin.guests.manager import GuestManager
from vmpin.host.procfs import Procfs
from vmpin.placement.ownership import Node, ownership
from vmpin.placement.rules import PlacementRequest, place
from vmpin.reconcile.view import NodeView
from vmpin.vmm.firecracker import FIRECRACKER
from vmpin.vmm.virtual_machine import Process, Vm

POD = SandboxId("pod-a")


#: Attempts follow soon; nothing is given up or repeated because the machine is slow.
QUICK = Timeouts(agent_last=0.2, agent_answer=120.0, kata_answer=120.0, kata_again=3600.0, guest_unpin=120.0)


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
    asked: list[int] = field(default_factory=list)
    guests: GuestManager = field(default_factory=lambda: GuestManager(timeouts=QUICK))

    def __post_init__(self) -> None:
        threads = {tid: VmThread(ThreadId(tid, tid), ThreadRole.VCPU, f"fc_vcpu {number}", os.getpid(), VcpuId(number))
                   for number, tid in enumerate(range(100, 104))}
        process = Process(os.getpid(), ThreadId(os.getpid(), 1), ThreadRole.EMULATOR, ["firecracker"])
        process.threads, self.vm = threads, Vm(POD, FIRECRACKER, process)
        self.vm.vcpu_state, self.vm.vcpus = VcpuState.IDENTIFIED, tuple(Vcpu(VcpuId(number)) for number in range(4))
        self.view = SimpleNamespace(vms={POD: self.vm}, sandboxes={}, placements={}, proc=Procfs(),
                                    kata=lambda sandbox: None, config=self.config(**self.values))
        self.give("2-3")

    def config(self, **values: str) -> Config:
        file = self.root / "vmpin.yaml"
        file.write_text("{}")
        flags = {"paths.kata_go": str(self.root), "paths.kata_rs": str(self.root / "none")}
        return configuration.load(file, {}, flags | {key.replace("_", ".", 1): value for key, value in values.items()})

    def give(self, web: str, held: bool = False) -> None:
        """Place the sandbox with these CPUs for the container `web`."""
        containers = (Container(WEB, "web", CpuSet.parse(web)), Container(LOGS, "logs", CpuSet.parse("0-1")))
        records = {each.id: ContainerRecord(each, Source.BUNDLE, 1) for each in containers}
        self.view.sandboxes = {POD: SandboxState(POD, containers=records, suspended=held, handler="kata-fc")}
        previous = self.placement.as_previous() if self.placement else None
        self.view.placements = {} if held else {POD: place(
            PlacementRequest(POD, self.vm.vcpus, containers, self.vm.vcpu_state), NODE,
            ownership({POD: claims(containers, NODE)}, NODE), Policy(), previous)}
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
        self.asked.append(port)
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
