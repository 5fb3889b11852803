"""Sets the CPUs of one guest's containers through Kata's own agent (kata_agent).

It connects only for the calls of one round. A round follows every change, and repeats now and then, because the
runtime's own UpdateContainer makes the agent forget the CPUs that it should set again when a vCPU is plugged. Kata's
agent confirms a call and no effect, so a container is reported as `sent` and never as `applied`.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.cpuset import CpuSet
from vmpin.domain.guest_report import ERROR, LEFT_ALONE, NO_AGENT, PENDING, SENT, ContainerReport
from vmpin.domain.model import ContainerId
from vmpin.domain.terminal import number_of
from vmpin.errors import SourceError, WireError
from vmpin.guests.channels import Channel
from vmpin.guests.guest_session import (
    WAITING,
    GuestError,
    NoAgentFound,
    Progress,
    Session,
    SessionState,
    has_ended,
    reason,
)
from vmpin.guests.kata_agent import AgentError, KataAgent, Refused, UnknownContainer, online_cpus
from vmpin.guests.vcpu_map import CpuView, GuestVcpus, cpu_view
from vmpin.log import LineLimit
from vmpin.protocol.messages import VcpuMap

logger = logging.getLogger(__name__)

#: Lines of the log that one guest may cause at once, and the seconds for one more: it can come and go without end.
_LINES, _LINE_EVERY = 16, 60.0
#: The part by which the pause between repetitions is lengthened or shortened at random.
_JITTER = 0.25


@dataclass(frozen=True)
class KataWish:
    """What to send: this map; or, without one, all vCPUs to every container that was given CPUs."""

    vcpus: GuestVcpus
    map: VcpuMap | None = None


class _Pauses:
    """The pauses between rounds. They grow, apart for rounds that left containers pending and for the others, up to
    `kata_resend`."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self.restart()

    def restart(self) -> None:
        """Have the next repetition come soon: the wish is new."""
        self._if_pending = self._timeouts.kata_pending
        self.repeat_soon()

    def repeat_soon(self) -> None:
        """The same where nothing is pending: a call had no answer, and Kata's agent may carry it out after a newer
        one. The other pause keeps growing, else an agent that comes and goes would get some rounds a second."""
        self._if_done = self._timeouts.kata_again

    def next(self, pending: bool) -> float:
        """The pause after a round, in seconds. :param pending: whether it left a container pending."""
        resend = self._timeouts.kata_resend
        if pending:
            pause, self._if_pending = self._if_pending, min(2 * self._if_pending, resend)
        else:
            pause, self._if_done = self._if_done, resend * random.uniform(1 - _JITTER, 1 + _JITTER)
        return pause


class KataSession(Session):
    """`push` sets the wish; `run` carries it out. `progress` is DONE or UNSENT. :param kernel: reads the version of
    the guest's Linux, which may take a moment; called when a vCPU was plugged."""

    def __init__(self, name: str, channels: Callable[[], Sequence[Channel]],
                 changed: Callable[[], None] = lambda: None,
                 kernel: Callable[[], tuple[int, int] | None] = lambda: None, timeouts: Timeouts = TIMEOUTS) -> None:
        super().__init__(name, channels, changed, timeouts)
        self._kernel = kernel
        self._wish: KataWish | None = None
        #: The containers that were given CPUs, and which; an empty set where an earlier process gave them.
        self._given: dict[ContainerId, CpuSet] = {}
        self._metrics_refused = False
        self._pauses = _Pauses(timeouts)
        self._lines = LineLimit(_LINES, _LINE_EVERY)

    @property
    def refused(self) -> bool:
        return self.state is SessionState.REFUSED

    @property
    def owes(self) -> bool:
        """Whether CPUs that were given are yet to be taken back."""
        return self._wish is not None and self._wish.map is None and any(self._given.values()) and not self.done

    def adopt(self, containers: Iterable[ContainerId]) -> None:
        """Take these for containers that an earlier process may have given CPUs."""
        for container in containers:
            self._given.setdefault(container, CpuSet())

    def push(self, wish: KataWish) -> None:
        """Make this the wish, unless it is already."""
        if wish == self._wish:
            return
        self._wish, self.progress = wish, Progress.UNSENT
        self._pauses.restart()
        self.reports = self._reports_after_refusal() if self.refused else {}
        self._wake.set()
        self._changed()

    def retry_now(self) -> None:
        """Start the next round without waiting for the end of the pause."""
        self._wake.set()

    async def run(self) -> None:
        """Carry out the wish in rounds until cancelled, or until the agent's policy refuses. The pauses between rounds
        are not those of `attempts`: a round that left containers pending has reached the agent, and nothing failed."""
        from vmpin.guests.attempts import repeat

        self._pauses.restart()
        while not self.refused:
            await repeat(self._round, self._wake, self._timeouts, self.name)
            pending = any(report.state == PENDING for report in self.reports.values())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pauses.next(pending)):
                    await self._wake.wait()
                self._pauses.restart()

    async def _round(self) -> None:
        """Connect and send the whole wish. :raises Exception: why the agent was not reached."""
        self._wake.clear()
        wish = self._wish
        if wish is None or (wish.map is None and (not self._given or self.done)):
            self.progress = Progress.DONE
            self._changed()
            return
        try:
            async with await self._connect() as agent:
                self.counters.connects += 1
                self._came_up(await agent.version())
                await self._send(agent, wish)
        except (SourceError, GuestError, OSError, TimeoutError) as err:
            self._lost(err)
            raise
        self._changed()

    async def _connect(self) -> KataAgent:
        failure: Exception = NoAgentFound("no way into the guest is known")
        for channel in self._channels():
            try:
                return await KataAgent.connect(channel, self._timeouts.kata_answer)
            except (OSError, TimeoutError) as err:
                failure = err
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame: only the garbage collector would find the two

    def _came_up(self, version: str) -> None:
        self._streak.reset()
        if not self.up:
            logger.log(self._lines.spend(logging.INFO), "Kata's agent sets containers' CPUs sandbox=%s version=%r",
                       self.name, version)
        self.state, self.text = SessionState.UP, f"Kata's agent {version}"

    def _lost(self, err: Exception) -> None:
        """Record that the agent did not answer, and why."""
        self.progress = Progress.UNSENT
        self._pauses.repeat_soon()
        text = self.counters.last_error = reason(err)
        if self._streak.add(err):
            # The guest boots, or its agent creates a container, which delays every answer.
            if self.text != WAITING:
                logger.debug("Kata's agent sandbox=%s: %s", self.name, WAITING)
            self.state, self.text = SessionState.STALLED if self.up else SessionState.WAITING, WAITING
            self.reports = self._for_every_container(PENDING, WAITING)
        else:
            if text != self.text:
                level = self._lines.spend(logging.WARNING) if self.up and not has_ended(err) else logging.DEBUG
                logger.log(level, "Kata's agent sandbox=%s: %s", self.name, text)
            foreign = isinstance(err, WireError)
            self.counters.refused += foreign
            self.state, self.text = SessionState.FOREIGN if foreign else SessionState.ABSENT, text
            self.reports = self._for_every_container(ERROR if foreign else NO_AGENT, text)
        self._changed()

    def _for_every_container(self, state: str, text: str) -> dict[ContainerId, ContainerReport]:
        wanted = self._wish.map.containers if self._wish is not None and self._wish.map is not None else {}
        return {ContainerId(cid): ContainerReport(state, text) for cid in wanted}

    def _reports_after_refusal(self) -> dict[ContainerId, ContainerReport]:
        """Containers that were given CPUs before the refusal keep them."""
        return {cid: ContainerReport(SENT, self.text, wanted=cpus) if (cpus := self._given.get(cid)) else report
                for cid, report in self._for_every_container(LEFT_ALONE, self.text).items()}

    async def _send(self, agent: KataAgent, wish: KataWish) -> None:
        """Make all calls of one round; sets `reports` and `progress` unless the wish has changed meanwhile."""
        view = await self._view(agent, wish.vcpus)
        if wish.map is None:
            await self._take_back(agent, view, [*self._given])
            if view.all_cpus and wish is self._wish:
                self.progress = Progress.DONE
            return
        reports = await self._send_map(agent, wish.map, view)
        if self.refused:
            self.reports = self._reports_after_refusal()  # of the newest wish, as there is no next round
            return
        # Containers that have left the map; most of them have ended.
        await self._take_back(agent, view, [cid for cid in self._given if cid not in wish.map.containers])
        if wish is not self._wish:
            return  # the next round follows at once and sends the new one
        self.reports = reports
        if all(report.state != PENDING for report in reports.values()):
            self.progress = Progress.DONE

    async def _view(self, agent: KataAgent, vcpus: GuestVcpus) -> CpuView:
        """The guest's CPUs in this round; its kernel and metrics are read only if vCPUs were plugged."""
        if not vcpus.plugged:
            return cpu_view(vcpus, None, len(vcpus.hw))
        kernel = await asyncio.to_thread(self._kernel)
        return cpu_view(vcpus, kernel, await self._online(agent) or len(vcpus.hw))

    async def _online(self, agent: KataAgent) -> int:
        """How many CPUs are online in the guest, by the agent's metrics; 0 if it does not give them."""
        if self._metrics_refused:
            return 0
        try:
            return online_cpus(await agent.metrics())
        except AgentError as err:
            logger.log(self._lines.spend(logging.INFO), "no metrics from Kata's agent sandbox=%s: %s", self.name, err)
            self._metrics_refused = isinstance(err, Refused)
            return 0

    async def _send_map(self, agent: KataAgent, map: VcpuMap, view: CpuView) -> dict[ContainerId, ContainerReport]:
        """Set the CPUs of each container, until the agent's policy refuses."""
        if view.unnumbered:
            # This includes containers that need none of these vCPUs: they could not be given everything back.
            ids = ", ".join(str(hw) for hw in view.unnumbered[:8])
            return self._for_every_container(
                LEFT_ALONE, f"which of the guest's CPUs is the vCPU with hardware id {ids} cannot be shown")
        reports = {}
        for cid, share in map.containers.items():
            wanted = CpuSet(view.numbers[hw] for hw in share.hw)
            if view.offline.isdisjoint(share.hw):
                reports[ContainerId(cid)] = await self._set_cpus(agent, ContainerId(cid), wanted)
            else:
                text = f"{view.online} of the guest's {number_of(view.total, 'CPU is')} online"
                reports[ContainerId(cid)] = ContainerReport(PENDING, text, wanted=wanted)
            if self.refused:
                break
        return reports

    async def _set_cpus(self, agent: KataAgent, container: ContainerId, cpus: CpuSet) -> ContainerReport:
        """Set one container's CPUs. A refusal by policy makes `state` REFUSED."""
        try:
            self.counters.pushes += 1
            await agent.set_cpus(container, cpus)
        except Refused as err:
            self.state, self.text = SessionState.REFUSED, f"refused: {err}"
            logger.warning("Kata's agent refused by policy sandbox=%s: %s; its containers keep their CPUs", self.name,
                           err)
            return ContainerReport(LEFT_ALONE, self.text)
        except UnknownContainer as err:
            return ContainerReport(PENDING, err.why, wanted=cpus)
        except AgentError as err:
            return ContainerReport(ERROR, err.why, wanted=cpus)
        self.counters.answers += 1
        self._given[container] = cpus
        return ContainerReport(SENT, wanted=cpus)

    async def _take_back(self, agent: KataAgent, view: CpuView, containers: Sequence[ContainerId]) -> None:
        """Give these containers all of the guest's CPUs; one that the agent no longer has is forgotten."""
        for container in containers:
            if not view.all_cpus or self._given[container] == view.all_cpus:
                continue
            try:
                await agent.set_cpus(container, view.all_cpus)
                self._given[container] = view.all_cpus
            except AgentError as err:
                logger.debug("not given all CPUs back sandbox=%s container=%s: %s", self.name, container, err)
                del self._given[container]
