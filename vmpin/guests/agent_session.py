"""A session with vmpin's own agent in one guest: found, told the map, heard, and tried again for ever.

The newest map is sent as soon as it is there; a map is whole, so nothing of the ones before has to arrive. An agent
that was started again asks for it. What the guest says has limits, in size (guestproto) and in rate; what is beyond
ends the connection, and the next attempt comes later each time. What stays out: sockets (channel/), and what is wanted
(guestmap).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from vmpin.domain.guest_report import ERROR, ContainerReport, GuestCounters, GuestError, NoAgentFound, SessionEnded
from vmpin.domain.model import ContainerId
from vmpin.guests.agent_reports import WAITING, TimeoutStreak, container_report, log_level, reason, summary
from vmpin.guests.limits import MAX_ANSWER, LogOnce, RateLimit, longest_answer, only_requested
from vmpin.guests.tasks import Flag, run_together
from vmpin.guests.transport import Channel, NotListening, Stream
from vmpin.protocol.frames import FrameDecoder, ProtocolError, clean, encode
from vmpin.protocol.messages import (
    Applied,
    Failure,
    HostMessage,
    Inventory,
    NeedMap,
    Ping,
    Pong,
    Subscribe,
    Unpin,
    VcpuMap,
)
from vmpin.protocol.parsing import UnknownMessage, parse_answer

logger = logging.getLogger(__name__)

#: An agent that does not answer by then (s) is taken for dead; with 1,000 threads it takes some 20 ms.
DEADLINE = 5.0
#: So often (s) an agent that says nothing is asked whether it is there.
IDLE = 60.0
#: A connection that lasted so long (s) was a good one: the next attempt after it comes at once.
LASTED = 60.0


class AgentSession:
    """`up` while an agent answers; `heard` is what it says then of the newest map, by container.

    :param channels: the ways to try in turn, asked for at each attempt.
    :param changed: called whenever `up`, `state` or `heard` has changed.
    """

    def __init__(self, name: str, channels: Callable[[], Sequence[Channel]], port: int,
                 changed: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.counters = GuestCounters()
        self.up = False
        #: Why it is not up, "" while nothing was tried; and the agent's version and way when it is.
        self.state = ""
        #: What answers there does not speak the protocol.
        self.odd = False
        #: Why the agent did not take everything back, "" while it did, or was not asked.
        self.unpin_error = ""
        self.heard: dict[ContainerId, ContainerReport] = {}
        #: The guest's own processes.
        self.system: ContainerReport | None = None
        #: Set as long as the newest wish was answered.
        self.settled = Flag()
        self._channels = channels
        self._port = port
        self._changed = changed
        self._wanted: VcpuMap | None = None
        self._ids: Collection[str] = ()
        self._unpinned = False
        self._wake, self._retry = Flag(), Flag()
        self._generation = 0
        self._told = LogOnce(name)
        self._silence = TimeoutStreak()
        # Of the connection there is:
        self._id = 0
        #: The number of the newest question about the wish, None when it is yet to be asked.
        self._asked: int | None = None
        self._sent_at = self._heard_at = 0.0
        self._way = self._version = ""
        self._allowance = RateLimit(0.0)

    def push(self, wanted: VcpuMap) -> None:
        """From now on this is to be so. Its generation and id are the session's to give."""
        if self._unpinned or self._wanted is None or wanted._replace(generation=0) != self._wanted._replace(
                generation=0):
            self._wanted, self._ids, self._unpinned = wanted, wanted.containers, False
            self._anew()

    def unpin(self) -> None:
        """From now on everything is to be as it was before. An agent that could not is asked again."""
        if not self._unpinned or self.unpin_error:
            self._wanted, self._ids, self._unpinned = None, (), True
            self._anew()

    def look(self) -> None:
        """Do not wait for the next attempt."""
        self._retry.set()

    def _anew(self) -> None:
        self.unpin_error = ""
        self._allowance.asked(len(self._ids))
        self._again()
        self._retry.set()

    def _again(self) -> None:
        self._asked, self.heard, self.system = None, {}, None
        self.settled.clear()
        self._wake.set()
        self._changed()

    async def run(self) -> None:
        """Until cancelled."""
        from vmpin.guests.attempts import attempts

        while True:
            async for attempt in attempts(self._retry):
                with attempt:
                    await self._attempt()

    async def _attempt(self) -> None:
        """One connection, over the first way that leads to an agent. :raises Exception: when it did not last."""
        self._retry.clear()
        trouble: Exception = NoAgentFound("no way into the guest is known")
        for channel in self._channels():
            began = time.monotonic()
            try:
                stream = await channel.open(self._port)
            except (OSError, TimeoutError) as err:
                if not isinstance(trouble, NotListening):
                    trouble = err
                continue
            try:
                self.counters.connects += 1
                await self._serve(stream, channel)
            except (ProtocolError, GuestError, OSError, TimeoutError) as err:
                trouble = err
            finally:
                stream.close()
                was_up, self.up = self.up, False
                self.heard, self.system = {}, None
                self.settled.clear()
            if isinstance(trouble, ProtocolError):
                self.counters.refused += 1
            if was_up and time.monotonic() - began > LASTED:
                self._told = LogOnce(self.name)
                self._ended(trouble)
                return
            # A serial port opens whether or not there is an agent; that none answers there is no news.
            if not isinstance(trouble, NoAgentFound):
                if was_up and not isinstance(trouble, ProtocolError):
                    trouble = SessionEnded(reason(trouble))
                break
        self._ended(trouble)
        try:
            raise trouble
        finally:
            del trouble  # its traceback has this frame: only the garbage collector would find the two

    def _ended(self, err: Exception) -> None:
        state = self.counters.last_error = reason(err)
        waits = self._silence.waits(err)
        if waits:
            state = WAITING
        if state != self.state:
            self.state, self.odd = state, isinstance(err, ProtocolError)
            nobody = waits or isinstance(err, NotListening | NoAgentFound)
            self._told.log(logging.DEBUG if nobody else logging.WARNING, "guest agent", state)
            self._changed()

    async def _serve(self, stream: Stream, channel: Channel) -> None:
        self._id, self._asked, self._way = 0, None, str(channel)
        self._heard_at = self._sent_at = time.monotonic()
        self._allowance = RateLimit(self._heard_at)
        self._allowance.asked(len(self._ids))
        await run_together(self._say(stream), self._hear(stream))

    # What is said

    async def _say(self, stream: Stream) -> None:
        await self._send(stream, Ping(self._next()))
        subscribed = False
        while True:
            self._wake.clear()  # before looking: what comes while something is sent is looked at, too
            if self.up and not subscribed:
                subscribed = True
                await self._send(stream, Subscribe(self._next()))
            if self.up and self._asked is None and (request := self._wish()) is not None:
                self.counters.pushes += 1
                await self._send(stream, request)
            waits = self._sent_at > self._heard_at
            try:
                async with asyncio.timeout(max(0.0, self._sent_at + DEADLINE - time.monotonic()) if waits else IDLE):
                    await self._wake.wait()
            except TimeoutError:
                if self._sent_at > self._heard_at:
                    raise NoAgentFound(f"no answer within {DEADLINE:g} s") from None
                if not waits:
                    await self._send(stream, Ping(self._next()))

    def _wish(self) -> HostMessage | None:
        if self._wanted is None and not self._unpinned:
            return None
        self._asked = self._next()
        if self._wanted is None:
            return Unpin(self._asked)
        # By the clock, so that a watcher that was started again is ahead of the one before.
        self._generation = max(self._generation + 1, time.time_ns() // 10**6)
        return self._wanted._replace(id=self._asked, generation=self._generation)

    def _next(self) -> int:
        self._id += 1
        return self._id

    async def _send(self, stream: Stream, request: HostMessage) -> None:
        if self._sent_at <= self._heard_at:
            self._sent_at = time.monotonic()  # else the one before is what an answer is waited for
        stream.writer.write(encode(request.message()))
        async with asyncio.timeout(DEADLINE):
            await stream.writer.drain()

    # What is heard

    async def _hear(self, stream: Stream) -> None:
        decoder = FrameDecoder(MAX_ANSWER)
        while True:
            data = await stream.reader.read(65536)
            if not data:
                raise GuestError("the agent closed the connection") if self.up else NoAgentFound("closed at once")
            decoder.limit = max(decoder.limit, longest_answer(len(self._ids)))
            messages = decoder.feed(data)
            self._allowance.heard(len(data), len(messages), time.monotonic())
            for message in messages:
                try:
                    self._heard(message)
                except UnknownMessage:
                    continue  # of a newer agent; an answer to it might be answered for ever

    def _heard(self, message: Mapping[str, object]) -> None:
        answer = parse_answer(only_requested(self._ids, message))
        self.counters.answers += 1
        if isinstance(answer, NeedMap):
            self._allowance.again()
        if self.up or isinstance(answer, Pong):
            self._heard_at = time.monotonic()
        match answer:
            case Pong() if not self.up:
                self._is_up(answer)
            case Failure() if not self.up:
                raise NoAgentFound(answer.error or "it answers with an error")
            case _ if not self.up:
                pass  # nothing was asked yet but whether it is there
            case NeedMap():
                self._again()
            case Applied():
                self._applied(answer)
            case Failure():
                self._failed(answer)
            case Inventory():
                self._shown(answer.note)

    def _is_up(self, pong: Pong) -> None:
        self._silence.over()
        self.up, self.odd, self._version = True, False, f"agent {pong.version or '?'} over {self._way}"
        self.state = clean(self._version)
        # A guest that comes and goes is no news either, until it has stayed.
        self._told.log(logging.INFO, "guest agent is up", self.state)
        self._wake.set()
        self._changed()

    def _shown(self, note: str) -> None:
        """What it says of itself belongs to the state, such as that its CPUs' hardware ids are guessed."""
        state = clean(f"{self._version}; {note}" if note else self._version)
        if state != self.state:
            self.state = state
            self._changed()

    def _applied(self, answer: Applied) -> None:
        if answer.id is not None and answer.id != self._asked:
            return  # of an earlier wish
        if self._unpinned:
            if answer.id is not None:
                self.unpin_error = ""
                self.settled.set()
                self._changed()
            return
        if answer.generation > self._generation:
            # It has one from a host whose clock was ahead: ours goes on from there.
            self._allowance.again(answer.generation)
            self._generation, self._asked = answer.generation, None
            self._wake.set()
            return
        if answer.generation < self._generation or self._wanted is None or self._asked is None:
            return
        self.heard = {ContainerId(cid): container_report(outcome) for cid, outcome in answer.containers.items()}
        self.system = None if answer.system is None else container_report(answer.system)
        if not self.settled.is_set():
            logger.log(log_level(self.heard), "sandbox=%s guest containers: %s", self.name, summary(self.heard))
        self.settled.set()
        self._changed()

    def _failed(self, answer: Failure) -> None:
        text = answer.error or "the agent gives no reason"
        if answer.id is None or answer.id != self._asked:
            logger.debug("sandbox=%s guest agent: error: %s", self.name, text)
            return
        if self._wanted is None:
            self.unpin_error = text
            self._told.log(logging.WARNING, "guest containers are not given back what they had", text)
        else:
            self.heard = {ContainerId(cid): ContainerReport(ERROR, text) for cid in self._ids}
            self.settled.set()
        self._changed()
