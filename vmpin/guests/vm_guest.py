"""One VM's guest: derives its vCPU map, sends it to the guest's agent, and reports the result.

The agent is vmpin's own where there is one, else Kata's, as `guest.via` sets. Imported when there is a VM: what it
needs takes longer to load than the rest of the watcher."""

import asyncio
import contextlib
import platform
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from vmpin.config.settings import Config
from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.guest_report import PENDING, ContainerReport, GuestReport
from vmpin.domain.model import ContainerId, SandboxId, ThreadId, Vcpu, VcpuId
from vmpin.domain.sandbox_placement import Placement
from vmpin.guests.agent_session import AgentSession
from vmpin.guests.channels import Channel, ContestedVsock, VirtioSerial, Vsock, find_channels
from vmpin.guests.guest_session import Flag, SessionState
from vmpin.guests.kata_session import KataSession, KataWish
from vmpin.guests.vcpu_map import GuestVcpus, guest_map
from vmpin.host.procfs import Procfs
from vmpin.vmm.guest_machine import hardware_ids, kernel_version
from vmpin.vmm.virtual_machine import Vm


class VmGuest:
    """One VM's guest. `update` and `unpin` set what is wanted; `run` carries it out."""

    def __init__(self, via: str, vm: Vm, agent_url: str, proc: Procfs, config: Config,
                 rival: Callable[[int, SandboxId], SandboxId | None], timeouts: Timeouts = TIMEOUTS) -> None:
        """Make the sessions that `via` allows; `run` starts them.
        :param via: `guest.via` as it applies to this VM; not `off`.
        :param agent_url: how Kata reaches its agent, "" if Kata does not record it.
        :param rival: returns another sandbox whose VMM names the same CID, as any process may write a command line."""
        self.via = via
        self.vm = vm
        self.vmm = vm.vmm.id
        self.port = config.guest.port
        self.config = config
        #: The inputs of the last `update`, kept by the manager to skip one with the same.
        self.seen: tuple[object, ...] = ()
        self._inputs: tuple[object, ...] = ()  #: What the map was last derived from.
        #: The hardware ids of the vCPUs, and the vCPUs; and before them what they were last derived from.
        self._hardware: tuple[Mapping[ThreadId, VcpuId], Sequence[Vcpu], dict[VcpuId, int], GuestVcpus] | None = None
        self.placed: Iterable[ContainerId] = ()
        #: Why no map can be made, "" if one can.
        self.trouble = ""
        self.agent: AgentSession | None = None
        self.kata: KataSession | None = None
        self._agent_url = agent_url
        self.cid = vm.type.channels.cid(vm.vmm.argv)
        #: The ways in, once found, if its command line alone shows them.
        self._fixed: Sequence[Channel] | None = None
        self._proc = proc
        self._rival = rival
        #: Set at every change of a session: for `run`, and for any number of tasks in `unpin_result`.
        self._turn = Flag()
        self._changes: asyncio.Event | None = None
        if via in ("auto", "vmpin-agent"):
            self.agent = AgentSession(vm.sandbox, self.channels, self.port, self._changed, timeouts)
        if via in ("auto", "kata-agent"):
            self.kata = KataSession(vm.sandbox, self._channels_with_ports, self._changed, self._kernel, timeouts)

    def channels(self) -> Sequence[Channel]:
        """The ways into the guest at this moment: a socket may appear later, or be replaced."""
        channels = self._fixed
        if channels is None:
            paths = self.config.paths
            channels = find_channels(self.vm, self._agent_url, self._proc, paths.kata_go, paths.kata_rs)
            if self.cid is not None:
                self._fixed = channels
        rival = None if self.cid is None else self._rival(self.cid, self.vm.sandbox)
        return [ContestedVsock(str(channel), rival) if rival is not None and isinstance(channel, Vsock) else channel
                for channel in channels]

    def _channels_with_ports(self) -> Sequence[Channel]:
        return [channel for channel in self.channels() if not isinstance(channel, VirtioSerial)]

    def _changed(self) -> None:
        self._turn.set()
        if self._changes is not None:
            self._changes.set()

    def _kernel(self) -> tuple[int, int] | None:
        if platform.machine() != "x86_64":
            return None  # vcpu_map derives CPU numbers from it for x86 only
        return kernel_version(self.vm.type.kernels(self.vm.vmm.argv), self.vmm.tid, self.vmm.starttime)

    def update(self, vm: Vm, placement: Placement | None, state: SandboxState | None) -> None:
        """Derive the map from the placement and give it to the sessions. Without a placement the guest keeps the last
        map, unless the sandbox is suspended: then everything is taken back."""
        if self.agent is not None:
            self.agent.boots = _boots(state)
        suspended = state is not None and state.suspended
        inputs = (vm.vcpus_identified, vm.vcpu_threads, suspended, self.config,
                  placement and (placement.vcpus, placement.containers))
        if not suspended and inputs == self._inputs:
            return  # a container was started, for instance
        self._inputs, self.trouble = (), ""  # one that fails is made again
        self.placed = () if placement is None else placement.containers
        if suspended:
            self.unpin(vm)
        if placement is not None:
            self._derive(vm, placement)
        self._inputs = inputs

    def _derive(self, vm: Vm, placement: Placement) -> None:
        (hw, vcpus), policy = self._vcpus(vm), self.config.guest
        wanted = None
        if vm.vcpus_identified:
            wanted = guest_map(placement, hw, policy.system, policy.export, policy.expose_host_cpus)
        if wanted is None:
            self.trouble = "its vCPUs are not identified yet"
            return
        if self.agent is not None:
            self.agent.push(wanted)
        if self.kata is not None:
            self.kata.push(KataWish(vcpus, wanted))

    def unpin(self, vm: Vm) -> None:
        """Make it the wish that everything is taken back."""
        if self.agent is not None:
            self.agent.unpin()
        if self.kata is not None:
            self.kata.push(KataWish(self._vcpus(vm)[1]))

    def _vcpus(self, vm: Vm) -> tuple[dict[VcpuId, int], GuestVcpus]:
        """The hardware id of each vCPU, and the vCPUs; the command line of a VMM does not change."""
        if self._hardware is None or self._hardware[:2] != (vm.vcpu_threads, vm.vcpus):  # threads may be of a file
            hw = hardware_ids(vm.type, vm.vmm.argv, (vcpu.id for vcpu in vm.vcpus))
            self._hardware = dict(vm.vcpu_threads), vm.vcpus, hw, guest_vcpus(vm, hw)
        return self._hardware[2:]

    def adopt(self, containers: Iterable[ContainerId]) -> None:
        """Take these for containers that an earlier process may have given CPUs."""
        if self.kata is not None:
            self.kata.adopt(containers)

    def retry_now(self) -> None:
        """Make the sessions' next attempt without waiting: an agent may have been started meanwhile."""
        for session in (self.agent, self.kata):
            if session is not None:
                session.retry_now()

    async def run(self) -> None:
        """Keep the guest's map applied until cancelled, or until Kata's agent, as the only one, refused."""
        if self.agent is None:
            assert self.kata is not None
            await self.kata.run()
        elif self.kata is None:
            await self.agent.run()
        else:
            await self._take_turns(self.agent, self.kata)

    async def _take_turns(self, agent: AgentSession, kata: KataSession) -> None:
        """Run the session with Kata's agent while vmpin's own was tried and does not answer. CPUs that Kata's agent
        was given before vmpin's answered count as original state to that one. So when everything is taken back, Kata's
        session runs as well until it has taken back its part."""
        first = self._task(agent.run())
        task: asyncio.Task[None] | None = None
        try:
            while not first.done():
                self._turn.clear()
                katas_turn = _is_katas_turn(agent, kata)
                if katas_turn and task is None:
                    task = self._task(kata.run())
                elif not katas_turn and task is not None:
                    await _cancel_all(task)
                    task = None
                await self._turn.wait()
                if task is not None and task.done():
                    task.result()  # it ended because of a refusal; any exception is a defect in vmpin
            first.result()
        finally:
            await _cancel_all(first, *(() if task is None else (task,)))

    def _task(self, session: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(session)
        task.add_done_callback(lambda _: self._turn.set())
        return task

    async def unpin_result(self, seconds: float) -> str:
        """Wait until everything is taken back, after `unpin` and while `run` runs. :returns: the result, as a text."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                self._changes = self._changes or asyncio.Event()
                while True:
                    self._changes.clear()
                    if result := self._unpin_result():
                        return result
                    await self._changes.wait()
        return f"no answer within {seconds:g} s"

    def _unpin_result(self) -> str:
        """The result as a text; "" while it is outstanding.

        vmpin's agent           Kata's agent                the text begins with
        up, failed              any                         not all is taken back
        up, done                none, or owes nothing       taken back
        not up, not tried yet   any                         nothing is taken back, once the reason is known
        not up, and no Kata     -                           the same
        none, or not up         up, done                    taken back
                                not up, done                nothing to take back
                                not up, the reason known    nothing is taken back
        """
        agent, kata = self.agent, self.kata
        if agent is not None and agent.up:
            if agent.unpin_error:
                return f"not all is taken back: {agent.unpin_error}"
            return "taken back" if agent.done and not (kata is not None and kata.owes) else ""
        if agent is not None and (kata is None or agent.state is SessionState.UNTRIED):
            return f"nothing is taken back: {agent.text}" if agent.text else ""
        assert kata is not None
        if kata.done:
            return "taken back" if kata.up else "nothing to take back"
        return f"nothing is taken back: {kata.text}" if kata.text and not kata.up else ""

    def report(self) -> GuestReport:
        """Return for the status the report of the session that sets the CPUs, or of the one that shows why none
        does."""
        agent, kata = self.agent, self.kata
        if agent is not None and (agent.up or kata is None or not (kata.up or kata.refused)):
            foreign, text = agent.state is SessionState.FOREIGN, agent.text
            if kata is not None and kata.state is SessionState.FOREIGN and not foreign:
                foreign, text = True, kata.text
            report = GuestReport("vmpin-agent" if agent.up else "", text, agent.reports, agent.system, agent.counters,
                                 foreign)
        else:
            assert kata is not None
            report = GuestReport("kata-agent" if kata.up else "", kata.text, kata.reports, None, kata.counters,
                                 kata.state is SessionState.FOREIGN)
        if not self.trouble:
            return report
        pending = dict.fromkeys(self.placed, ContainerReport(PENDING, self.trouble))  # the reports are of an older map
        return GuestReport(report.by, report.state, pending, report.system, report.counters)


def _is_katas_turn(agent: AgentSession, kata: KataSession) -> bool:
    """Whether the session with Kata's agent is to run."""
    if agent.state is SessionState.UNTRIED:
        return False  # vmpin's own may answer
    if not agent.up:
        return True
    return agent.done and kata.owes  # everything is taken back, except what Kata's agent was given before


def guest_vcpus(vm: Vm, hw: dict[VcpuId, int]) -> GuestVcpus:
    """The identified vCPUs, in the order of creation."""
    threads = sorted((thread.id.starttime, thread.id.tid, thread.vcpu) for thread in vm.vmm.threads.values()
                     if thread.vcpu is not None)
    arrived = {vcpu: hw[vcpu] for _, _, vcpu in threads if vcpu in hw}
    start = vm.type.start(tuple(vm.vmm.argv))
    # Where the command line does not have the slots, vCPUs are plugged in ascending order (Cloud Hypervisor,
    # Dragonball), or not at all.
    return GuestVcpus(arrived, start.vcpus, start.slots) if start.slots else (
        GuestVcpus(arrived, len(arrived), len(arrived)))


def _boots(state: SandboxState | None) -> bool:
    """Whether a guest may still boot: Kata creates containers through its agent, and none is known to be created."""
    return state is None or all(record.container.pause or record.requested or record.container.creating
                                for record in state.containers.values())


async def _cancel_all(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait until each has ended. (Awaiting one would swallow a cancellation of the caller.)"""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
