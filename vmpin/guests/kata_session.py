"""Keeps one guest's containers where they should be by way of Kata's own agent (kata_agent).

Connected only for the moments of a round: at every change, and every now and then, because the runtime's own
UpdateContainer makes the agent forget the CPUs it should set again when a vCPU is plugged. What stays out: which guest
CPU is which vCPU (numbers), and what the agent's metrics show (metrics).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vmpin.cpuset import CpuSet
from vmpin.domain.guest_report import (
    APPLIED,
    ERROR,
    LEFT_ALONE,
    NO_AGENT,
    PENDING,
    SENT,
    ContainerReport,
    GuestCounters,
    GuestError,
    NoAgentFound,
)
from vmpin.domain.model import ContainerId
from vmpin.errors import SourceError, WireError
from vmpin.guests.agent_reports import WAITING, TimeoutStreak, reason
from vmpin.guests.cpu_numbers import GuestVcpus, guest_cpu_numbers
from vmpin.guests.kata_agent import AgentError, KataAgent, Refused, UnknownContainer
from vmpin.guests.kata_metrics import Reading, reading, shows
from vmpin.guests.tasks import Flag
from vmpin.guests.transport import Channel
from vmpin.protocol.messages import VcpuMap

logger = logging.getLogger(__name__)

#: Everything is sent again so many seconds after a change, and then every RESEND, a little more or less. (At a change
#: of the vCPUs there is a change of ours, so the agent seldom needs to be reminded.)
AGAIN, RESEND = 10.0, 300.0
#: A container that the agent does not know yet, or a CPU that is not online yet, is tried again after these seconds,
#: and each time after twice as many.
SOON = 0.25


@dataclass(frozen=True)
class KataWish:
    """What is wanted: this map, or, without one, that every container which was given CPUs gets all of them. `alone`
    is the one container that does any work, None when there are several or none."""

    vcpus: GuestVcpus
    map: VcpuMap | None = None
    alone: ContainerId | None = None


class KataSession:
    """:param channels: the ways to try in turn. :param changed: called whenever `heard` or `state` has changed.
    :param kernel: reads which Linux the guest runs, which may take a moment; asked when a vCPU was plugged.
    """

    def __init__(self, name: str, channels: Callable[[], Sequence[Channel]],
                 changed: Callable[[], None] = lambda: None,
                 kernel: Callable[[], tuple[int, int] | None] = lambda: None) -> None:
        self.name = name
        self.counters = GuestCounters()
        self.heard: dict[ContainerId, ContainerReport] = {}
        #: The agent's version while it answers, else why it does not.
        self.state = ""
        self.up = False
        #: Its policy's words, when it does not let this be done; then it is never asked again.
        self.refused = ""
        #: What answers there is not Kata's agent.
        self.odd = False
        #: Set as long as all of the newest wish was sent.
        self.settled = Flag()
        self._channels = channels
        self._changed = changed
        self._kernel = kernel
        self._wish: KataWish | None = None
        self._wake = Flag()
        #: Who was given CPUs, and which.
        self._given: dict[ContainerId, CpuSet] = {}
        self._before: Reading | None = None
        self._silence = TimeoutStreak()
        self._no_metrics = False

    @property
    def owes(self) -> bool:
        """Whether something that was given is yet to be taken back."""
        return self._wish is not None and self._wish.map is None and any(self._given.values()) and \
            not self.settled.is_set()

    def adopt(self, containers: Iterable[ContainerId]) -> None:
        """These may have been given CPUs by a process before this one."""
        for container in containers:
            self._given.setdefault(container, CpuSet())

    def push(self, wish: KataWish) -> None:
        """From now on this is to be so."""
        if wish == self._wish:
            return
        self._wish = wish
        self._before = None
        self.settled.clear()
        self.heard = {} if not self.refused else self._left()
        self._wake.set()
        self._changed()

    def look(self) -> None:
        """Do not wait for the next round."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled, or refused."""
        from vmpin.guests.attempts import attempts
        from vmpin.host.retry import JITTER

        soon, again = SOON, True
        while not self.refused:
            async for attempt in attempts(self._wake):
                with attempt:
                    await self._round()
            if any(said.state == PENDING for said in self.heard.values()):
                pause, soon = soon, min(2 * soon, RESEND)
            else:
                pause, again = AGAIN if again else RESEND * random.uniform(1 - JITTER, 1 + JITTER), False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
                soon, again = SOON, True

    async def _round(self) -> None:
        """Say all that is wanted. :raises Exception: when nobody can be told."""
        self._wake.clear()
        wish = self._wish
        if wish is None or (wish.map is None and (not self._given or self.settled.is_set())):
            self.settled.set()
            self._changed()
            return
        try:
            async with await self._connect() as agent:
                self.counters.connects += 1
                version = await agent.version()
                self._silence.over()
                if not self.up:
                    logger.info("sandbox=%s Kata's agent %r sets the containers' CPUs", self.name, version)
                self.up, self.odd, self.state = True, False, f"Kata's agent {version}"
                await self._tell(agent, wish)
        except (SourceError, GuestError, OSError, TimeoutError) as err:
            self._lost(err)
            raise
        self._changed()

    async def _connect(self) -> KataAgent:
        trouble: Exception = NoAgentFound("no way into the guest is known")
        for channel in self._channels():
            try:
                return await KataAgent.connect(channel)
            except (OSError, TimeoutError) as err:
                trouble = err
        try:
            raise trouble
        finally:
            del trouble  # its traceback has this frame: only the garbage collector would find the two

    def _lost(self, err: Exception) -> None:
        self.odd = isinstance(err, WireError)
        self.counters.refused += self.odd
        self.settled.clear()
        if self._silence.waits(err):
            # It boots, or creates a container, which it does before it answers: no reason to give it up.
            if self.state != WAITING:
                logger.debug("sandbox=%s Kata's agent: %s", self.name, WAITING)
            self.state, self.counters.last_error = WAITING, reason(err)
            self.heard = self._everyone(PENDING, WAITING)
            self._changed()
            return
        state = reason(err)
        if state != self.state:
            logger.log(logging.WARNING if self.up else logging.DEBUG, "sandbox=%s Kata's agent: %s", self.name, state)
        self.up, self.state, self.counters.last_error = False, state, state
        self.heard = self._everyone(ERROR if self.odd else NO_AGENT, state)
        self._changed()

    def _everyone(self, state: str, text: str) -> dict[ContainerId, ContainerReport]:
        wanted = self._wish.map.containers if self._wish is not None and self._wish.map is not None else {}
        return {ContainerId(cid): ContainerReport(state, text) for cid in wanted}

    def _left(self) -> dict[ContainerId, ContainerReport]:
        """After a refusal: who was given CPUs before it keeps them."""
        return {cid: ContainerReport(SENT, self.refused, wanted=given) if (given := self._given.get(cid)) else said
                for cid, said in self._everyone(LEFT_ALONE, self.refused).items()}

    async def _tell(self, agent: KataAgent, wish: KataWish) -> None:
        plugged = wish.vcpus.plugged
        kernel = await asyncio.to_thread(self._kernel) if plugged else None
        cpus = guest_cpu_numbers(wish.vcpus, kernel)
        numbers = {wish.vcpus.hw[vcpu]: cpu for vcpu, cpu in cpus.items()}
        now = await self._metrics(agent) if plugged or wish.alone is not None else None
        online = len(now.cpus) if now is not None and now.cpus else len(wish.vcpus.hw)
        # Which of the plugged ones are not online yet nobody tells; those of the boot are, unless somebody was there.
        late = {wish.vcpus.hw[vcpu] for vcpu in plugged} if online < len(wish.vcpus.hw) else set()
        every = CpuSet(cpu for number, cpu in numbers.items() if number not in late)
        if wish.map is None:
            await self._take_back(agent, every, [*self._given])
            if every and wish is self._wish:
                self.settled.set()
            return
        heard: dict[ContainerId, ContainerReport] = {}
        hidden = sorted(set(wish.vcpus.hw.values()) - numbers.keys())
        if hidden:
            # Not even those that need none of these: it could not be taken back.
            heard = self._everyone(LEFT_ALONE, "which of the guest's CPUs is the vCPU with hardware id "
                                               f"{', '.join(map(str, hidden[:8]))} cannot be shown")
        for cid, share in wish.map.containers.items() if not hidden else ():
            wanted = CpuSet(numbers[number] for number in share.hw)
            heard[ContainerId(cid)] = (await self._one(agent, ContainerId(cid), wanted) if late.isdisjoint(share.hw)
                                       else ContainerReport(PENDING,
                                                            f"{online} of the guest's {len(wish.vcpus.hw)} CPUs are "
                                                          "online", wanted=wanted))
            if self.refused:
                self.up, self.state = False, self.refused
                self.heard = self._left()  # of the newest wish: there is no next round
                return
        # Those that have gone, most of all.
        await self._take_back(agent, every, [each for each in self._given if each not in wish.map.containers])
        if wish is not self._wish:
            return  # changed meanwhile: the next round, which comes at once, tells the new one
        if now is not None and online == len(wish.vcpus.hw) and not hidden:
            self._prove(wish, heard, now, numbers)
        self.heard = heard
        if all(said.state != PENDING for said in heard.values()):
            self.settled.set()

    async def _take_back(self, agent: KataAgent, every: CpuSet, containers: Sequence[ContainerId]) -> None:
        for container in containers:
            if every and self._given[container] != every:
                try:
                    await agent.set_cpus(container, every)
                    self._given[container] = every
                except AgentError as err:
                    logger.debug("sandbox=%s container=%s is not given its CPUs back: %s", self.name, container, err)
                    del self._given[container]

    async def _one(self, agent: KataAgent, container: ContainerId, cpus: CpuSet) -> ContainerReport:
        try:
            self.counters.pushes += 1
            await agent.set_cpus(container, cpus)
        except Refused as err:
            self.refused = f"refused: {err}"
            logger.warning("sandbox=%s its containers stay as they are: %s", self.name, err)
            return ContainerReport(LEFT_ALONE, self.refused)
        except UnknownContainer as err:
            return ContainerReport(PENDING, err.why, wanted=cpus)
        except AgentError as err:
            return ContainerReport(ERROR, err.why, wanted=cpus)
        self.counters.answers += 1
        self._given[container] = cpus
        before = self.heard.get(container)
        return before if before is not None and before.state in (APPLIED, SENT) else ContainerReport(SENT, wanted=cpus)

    async def _metrics(self, agent: KataAgent) -> Reading | None:
        """None when the agent does not tell."""
        if self._no_metrics:
            return None
        try:
            return reading(await agent.metrics(), time.monotonic())
        except AgentError as err:
            logger.info("sandbox=%s no metrics: %s", self.name, err)
            self._no_metrics = isinstance(err, Refused)
            return None

    def _prove(self, wish: KataWish, heard: dict[ContainerId, ContainerReport], now: Reading,
               numbers: Mapping[int, int]) -> None:
        """`sent` becomes `applied`, or the other way, where the guest's own counters show it."""
        mine = heard.get(wish.alone) if wish.alone is not None else None
        if wish.alone is None or mine is None or mine.state not in (SENT, APPLIED):
            return
        # By place among those that are online, and all are.
        place = {cpu: at for at, cpu in enumerate(sorted(numbers.values()))}
        proved = shows(self._before, now, {place[cpu] for cpu in self._given[wish.alone]}) if self._before else None
        if proved is not None:
            heard[wish.alone] = ContainerReport(APPLIED if proved else SENT, "" if proved else
                                     "the guest's CPU times show much work on other CPUs", wanted=mine.wanted)
        self._before = now
