"""Keeps one guest's containers where they should be by way of Kata's own agent (kata_agent).

Connected only for the moments of a round: at every change, and every now and then, because the runtime's own
UpdateContainer makes the agent forget the CPUs it should set again when a vCPU is plugged. What stays out: which guest
CPU is which vCPU (numbers).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from vmpin.channel import Channel, NotThere
from vmpin.cpuset import CpuSet
from vmpin.errors import SourceError, WireError
from vmpin.guest import APPLIED, LEFT_ALONE, NO_AGENT, PENDING, SENT, Counters, Said
from vmpin.guest.kata_agent import AgentError, KataAgent, Refused, UnknownContainer
from vmpin.guest.numbers import metrics_cpus, proves
from vmpin.guestproto import Map
from vmpin.model import ContainerId

logger = logging.getLogger(__name__)

#: Everything is sent again after so many seconds.
RESEND = 60.0
#: A container that the agent does not know yet, or a CPU that is not online yet, is tried again after these seconds,
#: and each time after twice as many.
SOON = 0.25

_Cpus = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True)
class KataWish:
    """What is wanted. `numbers` is the guest CPU of each hardware id, as far as it can be shown; `vcpus` how many the
    VM has; `alone` the one container that does any work, None when there are several or none."""

    map: Map
    numbers: Mapping[int, int] = field(default_factory=dict)
    vcpus: int = 0
    alone: ContainerId | None = None


class KataSession:
    """:param channels: the ways to try in turn. :param changed: called whenever `heard` or `state` has changed."""

    def __init__(self, name: str, channels: Callable[[], Sequence[Channel]],
                 changed: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.counters = Counters()
        self.heard: dict[ContainerId, Said] = {}
        #: The agent's version while it answers, else why it does not.
        self.state = ""
        self.up = False
        #: Its policy's words, when it does not let this be done; then it is never asked again.
        self.refused = ""
        self._channels = channels
        self._changed = changed
        self._wish: KataWish | None = None
        self._wake = asyncio.Event()
        #: Who was given CPUs, and which.
        self._given: dict[ContainerId, CpuSet] = {}
        self._before: _Cpus = {}
        self._no_metrics = False

    def push(self, wish: KataWish | None) -> None:
        """From now on this is to be so; None: every container that was given CPUs gets all of them."""
        if wish != self._wish:
            self._wish = wish
            self._before = {}
            self.heard = {} if not self.refused else self.heard
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled, or refused."""
        from vmpin.guest.attempts import attempts

        pause = SOON
        while not self.refused:
            self._wake.clear()
            async for attempt in attempts(self._wake):
                with attempt:
                    await self._round()
            waiting = any(said.state == PENDING for said in self.heard.values())
            pause = min(2 * pause, RESEND) if waiting else SOON
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause if waiting else RESEND):
                    await self._wake.wait()
                pause = SOON

    async def _round(self) -> None:
        """Say all that is wanted. :raises Exception: when nobody can be told."""
        if self._wish is None and not self._given:
            return
        try:
            async with await self._connect() as agent:
                self.counters.connects += 1
                version = await agent.version()
                if not self.up:
                    logger.info("sandbox=%s Kata's agent %r sets the containers' CPUs", self.name, version)
                self.up, self.state = True, f"Kata's agent {version}"
                await self._tell(agent)
        except (SourceError, OSError, TimeoutError) as err:
            self._lost(err)
            raise
        self._changed()

    async def _connect(self) -> KataAgent:
        trouble: Exception = NotThere(0, "no way into the guest is known")
        for channel in self._channels():
            try:
                return await KataAgent.connect(channel)
            except (OSError, TimeoutError) as err:
                trouble = err
        raise trouble

    def _lost(self, err: Exception) -> None:
        if isinstance(err, WireError):
            self.counters.refused += 1
        state = str(err) or "no answer in time"
        if state != self.state:
            logger.log(logging.WARNING if self.up else logging.DEBUG, "sandbox=%s Kata's agent: %s", self.name, state)
        self.up, self.state, self.counters.last_error = False, state, state
        wanted = self._wish.map.containers if self._wish is not None else {}
        self.heard = {ContainerId(cid): Said(NO_AGENT, state) for cid in wanted}
        self._changed()

    async def _tell(self, agent: KataAgent) -> None:
        wish = self._wish
        now = await self._metrics(agent)
        if wish is None:
            every = CpuSet(range(len(now)))
            for container in [*self._given] if every else []:
                with contextlib.suppress(AgentError):
                    await agent.set_cpus(container, every)
                del self._given[container]
            self.heard = {}
            return
        heard: dict[ContainerId, Said] = {}
        for cid, share in wish.map.containers.items():
            container = ContainerId(cid)
            heard[container] = await self._one(agent, container, share.hw, wish, len(now))
            if self.refused:
                heard = {ContainerId(each): Said(LEFT_ALONE, self.refused) for each in wish.map.containers}
                break
        if wish is not self._wish:
            return  # changed meanwhile: the next round, which comes at once, tells the new one
        self._prove(wish, heard, now)
        self.heard = heard

    async def _one(self, agent: KataAgent, container: ContainerId, ids: Sequence[int], wish: KataWish,
                   online: int) -> Said:
        hidden = [number for number in ids if number not in wish.numbers]
        if hidden:
            return Said(LEFT_ALONE, "which of the guest's CPUs is the vCPU with hardware id "
                                    f"{', '.join(map(str, hidden[:8]))} cannot be shown")
        cpus = CpuSet(wish.numbers[number] for number in ids)
        if online and max(cpus) >= online:
            return Said(PENDING, f"{online} of the guest's {wish.vcpus} CPUs are online", wanted=str(cpus))
        try:
            self.counters.pushes += 1
            await agent.set_cpus(container, cpus)
        except Refused as err:
            self.refused = f"refused: {err}"
            logger.warning("sandbox=%s its containers stay as they are: %s", self.name, err)
            return Said(LEFT_ALONE, self.refused)
        except UnknownContainer as err:
            return Said(PENDING, err.why, wanted=str(cpus))
        except AgentError as err:
            return Said("error", err.why, wanted=str(cpus))
        self.counters.answers += 1
        if self._given.get(container) != cpus:
            self._given[container] = cpus
            self._before = {}
        before = self.heard.get(container)
        return Said(APPLIED if before is not None and before.state == APPLIED else SENT, wanted=str(cpus))

    async def _metrics(self, agent: KataAgent) -> _Cpus:
        """What each CPU that is online has done; {} when the agent does not tell."""
        if self._no_metrics:
            return {}
        try:
            return metrics_cpus(await agent.metrics())
        except AgentError as err:
            logger.info("sandbox=%s no metrics: %s", self.name, err)
            self._no_metrics = isinstance(err, Refused)
            return {}

    def _prove(self, wish: KataWish, heard: dict[ContainerId, Said], now: _Cpus) -> None:
        """`sent` becomes `applied`, or the other way, where the guest's own counters show it."""
        mine = heard.get(wish.alone) if wish.alone is not None else None
        # With a hole in them, places among the online CPUs would be no CPU numbers.
        if mine is None or mine.state not in (SENT, APPLIED) or len(now) != wish.vcpus == len(wish.numbers):
            return
        assert wish.alone is not None
        shown = proves(self._before, now, tuple(self._given[wish.alone])) if self._before else None
        if shown is not None:
            heard[wish.alone] = Said(APPLIED if shown else SENT, "" if shown else
                                     "the guest's CPU times show work on other CPUs", wanted=mine.wanted)
        if shown is not None or not self._before:
            self._before = now
