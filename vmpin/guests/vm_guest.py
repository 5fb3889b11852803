"""One VM's guest: who in it is told which vCPUs its containers have, and what is known of what became of it.

vmpin's own agent where there is one, else Kata's, as the configuration says. Imported when there is a VM: what it
needs takes longer to load than the rest of the watcher. What stays out: which VMs there are, and tasks (guests).
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from vmpin.config.settings import Config
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.guest_report import PENDING, ContainerReport, GuestReport
from vmpin.domain.model import ContainerId, SandboxId, VcpuId, VmmType
from vmpin.guests.agent_session import AgentSession
from vmpin.guests.cpu_numbers import GuestVcpus
from vmpin.guests.kata_session import KataSession, KataWish
from vmpin.guests.tasks import Flag, cancel_all
from vmpin.guests.transport import Channel
from vmpin.guests.transport.discovery import GuestAddress, find_channels, has_ports
from vmpin.guests.transport.vsock import ContestedVsock, Vsock
from vmpin.guests.vcpu_map import guest_map
from vmpin.host.procfs import Procfs
from vmpin.placement.rules import Placement
from vmpin.vmm.guest_kernel import kernel_version
from vmpin.vmm.guest_ports import guest_cid, hardware_ids
from vmpin.vmm.inventory import Vm
from vmpin.vmm.qemu_cmdline import parse_smp


class VmGuest:
    """`tell` what is to be so; `run` makes it so."""

    def __init__(self, via: str, vm: Vm, agent_url: str, proc: Procfs, config: Config,
                 rival: Callable[[int, SandboxId], SandboxId | None]) -> None:
        """:param agent_url: how Kata reaches its agent, where it keeps that.
        :param rival: another sandbox that says that a CID is its own: a command line is anybody's to write."""
        self.via = via
        self.vm = vm
        self.vmm = vm.vmm.id
        self.port = config.guest.port
        self.config = config
        #: What was last seen, to know at a glance that it is the same.
        self.seen: tuple[object, ...] = ()
        self.placed: Iterable[ContainerId] = ()
        #: Why nothing can be told, "" when it can.
        self.trouble = ""
        self.agent: AgentSession | None = None
        self.kata: KataSession | None = None
        self._facts = GuestAddress(vm.sandbox, vm.type, vm.vmm.pid, tuple(vm.vmm.argv), agent_url)
        self.cid = guest_cid(vm.vmm.argv)
        self._proc = proc
        self._rival = rival
        #: Set at everything that is heard, for each that waits for it: `run`, and any number of `taken_back`.
        self._turn = Flag()
        self._news: asyncio.Event | None = None
        if via in ("auto", "vmpin-agent"):
            self.agent = AgentSession(vm.sandbox, self.channels, self.port, self._changed)
        if via in ("auto", "kata-agent"):
            self.kata = KataSession(vm.sandbox, self._with_ports, self._changed, self._kernel)

    def channels(self) -> Sequence[Channel]:
        """The ways in, as they are at this moment: a socket or its daemon may come later, or be another by now."""
        found = find_channels(self._facts, self._proc, self.config.paths.kata_go,
                              self.config.paths.kata_rs)
        rival = None if self.cid is None else self._rival(self.cid, self._facts.sandbox)
        return [ContestedVsock(str(way), rival) if rival is not None and isinstance(way,
                                                                                    Vsock) else way for way in found]

    def _changed(self) -> None:
        self._turn.set()
        if self._news is not None:
            self._news.set()

    def _with_ports(self) -> Sequence[Channel]:
        return [channel for channel in self.channels() if has_ports(channel)]

    def _kernel(self) -> tuple[int, int] | None:
        # What follows from it (guest/numbers) is so on x86.
        return kernel_version(self._facts.argv, self._facts.pid, self.vmm.starttime) \
            if platform.machine() == "x86_64" else None

    def tell(self, vm: Vm, placement: Placement | None, state: SandboxState | None) -> None:
        """What is to be so. Without a placement everything stays as it was told last, unless the sandbox is held."""
        self.trouble = ""
        self.placed = () if placement is None else placement.containers
        if state is not None and state.suspended:
            self.take_back(vm)
        if placement is None:
            return
        hw = _hardware(vm)
        wanted = None if not vm.known else guest_map(
            placement, hw, system=self.config.guest.system, export=self.config.guest.export,
            host_cpus=self.config.guest.expose_host_cpus)
        if wanted is None:
            self.trouble = "its vCPUs are not known yet"
            return
        if self.agent is not None:
            self.agent.push(wanted)
        if self.kata is not None:
            working = [container.id for container in (() if state is None else state.live()) if not container.pause]
            self.kata.push(KataWish(vcpus(vm, hw), wanted, working[0] if len(working) == 1 else None))

    def take_back(self, vm: Vm) -> None:
        """Everything is to be as it was before."""
        if self.agent is not None:
            self.agent.unpin()
        if self.kata is not None:
            self.kata.push(KataWish(vcpus(vm, _hardware(vm))))

    def adopt(self, containers: Iterable[ContainerId]) -> None:
        """A process before this one may have told somebody about these."""
        if self.kata is not None:
            self.kata.adopt(containers)

    def look(self) -> None:
        """Whoever is there may have changed: try now."""
        for session in (self.agent, self.kata):
            if session is not None:
                session.look()

    async def run(self) -> None:
        """Until cancelled, or until nobody is to be told anything any more."""
        if self.agent is None:
            assert self.kata is not None
            await self.kata.run()
        elif self.kata is None:
            await self.agent.run()
        else:
            await self._take_turns(self.agent, self.kata)

    async def _take_turns(self, agent: AgentSession, kata: KataSession) -> None:
        """Kata's agent is asked while vmpin's own was looked for and does not answer. What it was told before that one
        came, vmpin's takes for what was there before: so when all is taken back it is asked, too."""
        first = self._task(agent.run())
        task: asyncio.Task[None] | None = None
        try:
            while not first.done():
                self._turn.clear()
                wanted = bool(agent.state) and (not agent.up or (kata.owes and agent.settled.is_set()))
                if wanted and task is None:
                    task = self._task(kata.run())
                elif not wanted and task is not None:
                    await cancel_all(task)
                    task = None
                await self._turn.wait()
                if task is not None and task.done():
                    task.result()  # refused, for ever; anything else is a mistake of ours
            first.result()
        finally:
            await cancel_all(first, *(() if task is None else (task,)))

    def _task(self, session: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        made = asyncio.create_task(session)
        made.add_done_callback(self._over)
        return made

    def _over(self, _: object) -> None:
        self._turn.set()

    async def taken_back(self, seconds: float) -> str:
        """Wait until what was told is taken back (`tell` came before, `run` runs). :returns: what became of it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                self._news = self._news or asyncio.Event()
                while True:
                    self._news.clear()
                    if word := self._taken_back():
                        return word
                    await self._news.wait()
        return f"no answer within {seconds:g} s"

    def _taken_back(self) -> str:
        """Nothing as long as it is not known."""
        agent, kata = self.agent, self.kata
        if agent is not None and agent.up:
            if agent.unpin_error:
                return f"not all is taken back: {agent.unpin_error}"
            return "taken back" if agent.settled.is_set() and not (kata is not None and kata.owes) else ""
        if agent is not None and (kata is None or not agent.state):
            return f"nothing is taken back: {agent.state}" if agent.state else ""
        assert kata is not None
        if kata.settled.is_set():
            return "taken back" if kata.up else "nothing to take back"
        return f"nothing is taken back: {kata.state}" if kata.state and not kata.up else ""

    def report(self) -> GuestReport:
        agent, kata = self.agent, self.kata
        if agent is not None and (agent.up or kata is None or not (kata.up or kata.refused)):
            odd = agent.odd or (kata is not None and kata.odd)
            state = agent.state if kata is None or agent.odd or not kata.odd else kata.state
            found = GuestReport("vmpin-agent" if agent.up else "", state, agent.heard, agent.system, agent.counters,
                                odd)
        else:
            assert kata is not None
            found = GuestReport("kata-agent" if kata.up else "", kata.state, kata.heard, None, kata.counters, kata.odd)
        if not self.trouble:
            return found
        told = dict.fromkeys(self.placed, ContainerReport(PENDING, self.trouble))  # what is heard is of a map before
        return GuestReport(found.by, found.state, told, found.system, found.counters)


def _hardware(vm: Vm) -> dict[VcpuId, int]:
    return hardware_ids(vm.type, vm.vmm.argv, (vcpu.id for vcpu in vm.vcpus))


def vcpus(vm: Vm, hw: dict[VcpuId, int]) -> GuestVcpus:
    """All that are known, in the order they came."""
    threads = sorted((thread.id.starttime, thread.id.tid, thread.vcpu) for thread in vm.vmm.threads.values()
                     if thread.vcpu is not None)
    arrived = {vcpu: hw[vcpu] for _, _, vcpu in threads if vcpu in hw}
    if vm.type is VmmType.QEMU:
        smp = parse_smp(vm.vmm.argv)
        return GuestVcpus(arrived, smp.cpus, smp.maxcpus)
    # Cloud Hypervisor and Dragonball plug them in ascending order, the others none at all.
    return GuestVcpus(arrived, len(arrived), len(arrived))
