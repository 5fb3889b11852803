"""The guests of the node's VMs: each is told which vCPUs its containers have, and asked what became of it.

After each pass `update` looks which placements are others than before; the sessions do the rest, in tasks of their
own. A guest that answers nothing, or nonsense, costs nobody else anything, and nothing it says changes anything on the
host.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vmpin.config import Config
from vmpin.guest import PENDING, Counters, GuestData, GuestReport, Said
from vmpin.guest.together import together
from vmpin.guestmap import guest_map
from vmpin.model import ContainerId, SandboxId, ThreadId, VmmType
from vmpin.observe import Vm
from vmpin.placement import Placement
from vmpin.reconciler import Reconciler
from vmpin.vmm.guest_ports import hardware_ids
from vmpin.vmm.qemu_cmdline import parse_smp

if TYPE_CHECKING:
    from vmpin.channel import Channel
    from vmpin.channel.find import VmFacts
    from vmpin.guest.kata_session import KataSession
    from vmpin.guest.vmpin_agent import AgentSession
    from vmpin.host.procfs import Procfs

logger = logging.getLogger(__name__)

#: How long a guest is waited for that is to take everything back before nothing is told to it any more (seconds).
GOODBYE = 3.0


class Guest:
    """One VM's guest: vmpin's agent in it where there is one, else Kata's, as the configuration says."""

    def __init__(self, via: str, vmm: ThreadId, vm: VmFacts, proc: Procfs, config: Config) -> None:
        from vmpin.guest.kata_session import KataSession  # protobuf, and what else a node without VMs need not load
        from vmpin.guest.vmpin_agent import AgentSession

        self.via = via
        self.vmm = vmm
        self.vm = vm
        self.port = config.guest_port
        self.config = config
        self._proc = proc
        self._channels: list[Channel] | None = None
        self._turn = asyncio.Event()
        self.agent: AgentSession | None = None
        self.kata: KataSession | None = None
        if via in ("auto", "vmpin-agent"):
            self.agent = AgentSession(vm.sandbox, self.channels, self.port, self._turn.set)
        if via in ("auto", "kata-agent"):
            self.kata = KataSession(vm.sandbox, self._with_ports, self._turn.set)
        #: What was last seen, to know at a glance that it is the same.
        self.seen: tuple[object, ...] = ()
        #: Why nothing can be told, "" when it can.
        self.trouble = ""

    def channels(self) -> Sequence[Channel]:
        """The ways in. A socket that is not there yet is looked for again at the next attempt."""
        from vmpin.channel.find import find

        if not self._channels:
            self._channels = find(self.vm, self._proc, self.config.path("kata_go"), self.config.path("kata_rs"))
        return self._channels

    def _with_ports(self) -> Sequence[Channel]:
        from vmpin.channel.find import has_ports

        return [channel for channel in self.channels() if has_ports(channel)]

    def tell(self, vm: Vm, placement: Placement | None, held: bool, alone: ContainerId | None) -> None:
        """What is to be so. Without a placement everything stays as it was told last, unless the sandbox is `held`."""
        if held:
            self.trouble = ""
            if self.agent is not None:
                self.agent.unpin()
            if self.kata is not None:
                self.kata.push(None)
            return
        hw = hardware_ids(vm.type, vm.vmm.argv, (vcpu.id for vcpu in vm.vcpus))
        wanted = None if placement is None or not vm.known else guest_map(
            placement, hw, system=self.config.guest_system, export=self.config.guest_export)
        if placement is None or wanted is None:
            self.trouble = "" if placement is None else "its vCPUs are not known yet"
            return
        self.trouble = ""
        if self.agent is not None:
            self.agent.push(wanted)
        if self.kata is not None:
            from vmpin.guest.kata_session import KataWish
            from vmpin.guest.numbers import shown

            boot, arrived = _arrival(vm)
            self.kata.push(KataWish(wanted, {hw[vcpu]: cpu for vcpu, cpu in shown(boot, arrived).items()
                                             if vcpu in hw}, len(hw), alone))

    async def run(self) -> None:
        """Until cancelled."""
        if self.agent is None:
            assert self.kata is not None
            await self.kata.run()
        elif self.kata is None:
            await self.agent.run()
        else:
            await together(self.agent.run(), self._take_turns(self.agent, self.kata))

    async def _take_turns(self, agent: AgentSession, kata: KataSession) -> None:
        """Kata's agent is asked while vmpin's own was looked for and does not answer."""
        task: asyncio.Task[None] | None = None
        try:
            while True:
                wanted = bool(agent.state) and not agent.up
                if wanted and task is None:
                    task = asyncio.create_task(kata.run())
                elif not wanted and task is not None:
                    await _cancelled(task)
                    task = None
                await self._turn.wait()
                self._turn.clear()
        finally:
            if task is not None:
                await _cancelled(task)

    async def goodbye(self) -> None:
        """Take back what was told, if anybody answers."""
        if self.agent is not None and self.agent.up:
            self.agent.unpin()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE):
                    await self.agent.settled.wait()
        elif self.kata is not None and self.kata.up:
            self.kata.push(None)
            await asyncio.sleep(GOODBYE)

    def report(self) -> GuestReport:
        agent, kata = self.agent, self.kata
        if agent is not None and (agent.up or kata is None or not (kata.up or kata.refused)):
            return GuestReport("vmpin-agent" if agent.up else "", agent.state, agent.heard,
                               agent.system, agent.counters)
        if kata is not None:
            return GuestReport("kata-agent" if kata.up else "", kata.state, kata.heard, None,
                               kata.counters)
        return GuestReport(counters=Counters())


class Guests:
    """`run` is one of the watcher's tasks; everything else is called in the same loop."""

    def __init__(self, early: bool = False) -> None:
        """:param early: whether to load at once what the first guest takes: a twentieth of a second in which no thread
        of its VM would be placed."""
        self._early = early
        self._guests: dict[SandboxId, Guest] = {}
        self._tasks: dict[Guest, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._running = False

    async def run(self) -> None:
        """Until cancelled. The guests stay as they were told to be."""
        if self._early:
            await asyncio.to_thread(_load)
        self._running = True
        try:
            for guest in self._guests.values():
                self._start(guest)
            await asyncio.Event().wait()
        finally:
            self._running = False
            tasks = [*self._tasks.values(), *self._leaving]
            self._tasks = {}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def update(self, reconciler: Reconciler) -> None:
        """Tell the guests what is another than at the last call; takes microseconds where nothing is."""
        vms = reconciler.observer.vms
        for sandbox in self._guests.keys() - vms.keys():
            self._end(sandbox)
        for sandbox, vm in vms.items():
            state = reconciler.state.sandboxes.get(sandbox)
            placement = reconciler.placements.get(sandbox)
            guest = self._guests.get(sandbox)
            seen = (vm.vmm.id, vm.vcpus, vm.known, state, placement, reconciler.config)
            if guest is not None and _same(guest.seen, seen):
                continue
            config = reconciler.config
            via = config.guest_via("" if state is None else state.handler)
            if guest is not None and (guest.vmm != vm.vmm.id or via != guest.via or guest.port != config.guest_port):
                self._end(sandbox, goodbye=via == "off" and guest.vmm == vm.vmm.id)
                guest = None
            if via == "off":
                continue
            if guest is None:
                guest = self._begin(via, vm, reconciler)
            guest.seen = seen
            guest.config = config
            working = [container.id for container in (() if state is None else state.live()) if not container.pause]
            guest.tell(vm, placement, state is not None and state.held, working[0] if len(working) == 1 else None)

    def _begin(self, via: str, vm: Vm, reconciler: Reconciler) -> Guest:
        from vmpin.channel.find import VmFacts

        kata = reconciler.sources.sandboxes.get(vm.sandbox)
        facts = VmFacts(vm.sandbox, vm.type, vm.vmm.pid, tuple(vm.vmm.argv), "" if kata is None else kata.agent_url)
        config = reconciler.config
        made = self._guests[vm.sandbox] = Guest(via, vm.vmm.id, facts, reconciler.proc, config)
        if self._running:
            self._start(made)
        return made

    def _start(self, guest: Guest) -> None:
        self._tasks[guest] = asyncio.create_task(self._supervised(guest))

    async def _supervised(self, guest: Guest) -> None:
        while True:
            try:
                await guest.run()
            except Exception as err:
                logger.error("sandbox=%s its guest cannot be looked after: %r", guest.vm.sandbox, err)
                logger.debug("sandbox=%s", guest.vm.sandbox, exc_info=True)
            else:
                return
            await asyncio.sleep(30.0)

    def _end(self, sandbox: SandboxId, goodbye: bool = False) -> None:
        guest = self._guests.pop(sandbox)
        task = self._tasks.pop(guest, None)
        if task is None:
            return
        leaving = asyncio.create_task(_leave(guest, task, goodbye))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    def report(self, sandbox: SandboxId) -> GuestReport | None:
        """For the status; None where guests are told nothing."""
        guest = self._guests.get(sandbox)
        if guest is None:
            return None
        found = guest.report()
        if guest.trouble:
            placed = guest.seen[4].containers if isinstance(guest.seen[4], Placement) else ()
            told = dict.fromkeys(placed, Said(PENDING, guest.trouble))  # what is heard is of a map before
            return GuestReport(found.by, found.state, told, found.system, found.counters)
        return found

    def data(self, sandbox: SandboxId) -> GuestData | None:
        """What the status document has of a guest, and of each container that was placed; None as `report`."""
        found, guest = self.report(sandbox), self._guests.get(sandbox)
        if found is None or guest is None:
            return None
        placement = guest.seen[4]
        placed = placement.containers if isinstance(placement, Placement) else ()
        return found.data(), {container: found.of(container).data() for container in placed}


def _load() -> None:
    from vmpin.channel import find  # noqa: F401
    from vmpin.guest import attempts, kata_session, numbers, vmpin_agent  # noqa: F401


async def _leave(guest: Guest, task: asyncio.Task[None], goodbye: bool) -> None:
    try:
        if goodbye:
            await guest.goodbye()
    finally:
        await _cancelled(task)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """By identity: placements and states are made anew when anything in them changes."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _arrival(vm: Vm) -> tuple[int, list[Any]]:
    """How many vCPUs the VM was started with, and all it has in the order they came."""
    threads: list[tuple[ThreadId, Any]] = [(thread.id, thread.vcpu) for thread in vm.vmm.threads.values()
                                           if thread.vcpu is not None]
    arrived = [vcpu for _, vcpu in sorted(threads, key=lambda item: (item[0].starttime, item[0].tid))]
    if vm.type is VmmType.QEMU:
        return parse_smp(vm.vmm.argv).cpus, arrived
    # Cloud Hypervisor and Dragonball plug them in ascending order, the others none at all.
    return len(arrived), arrived
