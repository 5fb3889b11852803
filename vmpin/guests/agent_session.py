"""A session with vmpin's own agent in one guest: it connects, sends the vCPU map, reads the reports, and reconnects.

The newest map is sent at once; a map is complete, so none of the maps before it has to arrive. An agent that was
restarted asks for it. What a guest sends is limited in size (protocol) and rate (limits); exceeding a limit ends the
connection, and the next attempt comes later each time.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.domain.guest_report import ERROR, ContainerReport
from vmpin.domain.model import ContainerId
from vmpin.guests.agent_reports import WAITING, container_report, has_ended, reason, summary
from vmpin.guests.limits import MAX_ANSWER, LogOnce, RateLimit, TimeBudget, longest_answer, only_used
from vmpin.guests.session_state import GuestError, NoAgentFound, Progress, Session, SessionEnded, SessionState
from vmpin.guests.tasks import Flag, run_together
from vmpin.guests.transport.channel import Channel, NotListening, Stream
from vmpin.protocol import messages
from vmpin.protocol.frames import FrameDecoder, ProtocolError, clean, encode
from vmpin.protocol.parsing import UnknownMessage, parse_answer

logger = logging.getLogger(__name__)


class AgentSession(Session):
    """`push` and `unpin` set the wish; `run` carries it out. :param port: the agent's vsock port."""

    def __init__(self, name: str, channels: Callable[[], Sequence[Channel]], port: int,
                 changed: Callable[[], None] = lambda: None, timeouts: Timeouts = TIMEOUTS) -> None:
        super().__init__(name, channels, changed, timeouts)
        #: Why the agent could not take everything back, "" if it could or was not asked.
        self.unpin_error = ""
        #: As `reports`, for the guest's own processes.
        self.system: ContainerReport | None = None
        self._port = port
        self.wish: messages.VcpuMap | messages.Unpin | None = None
        #: Whether the guest may still boot: it is given more time to answer.
        self.boots = False
        #: Set when the next attempt is not to wait.
        self._retry = Flag()
        self._generation = 0
        self.log_once = LogOnce(name)
        self.budget = TimeBudget()
        # Of the current connection:
        self._id = 0
        #: The id of the request that carried the newest wish; 0 while `progress` is UNSENT.
        self._asked = 0
        self._sent_at = self._received_at = 0.0
        self._way = self._version = ""
        self.rate = RateLimit(0.0)

    def push(self, wanted: messages.VcpuMap) -> None:
        """Make this map the wish, unless it is already. The session sets its generation and id."""
        if not isinstance(self.wish, messages.VcpuMap) or wanted != self.wish:
            self._replace_wish(wanted)

    def unpin(self) -> None:
        """Make it the wish that everything is restored. An agent that could not is asked again."""
        if not isinstance(self.wish, messages.Unpin) or self.unpin_error:
            self._replace_wish(messages.Unpin())

    def retry_now(self) -> None:
        """Make the next attempt without waiting for the end of the pause."""
        self._retry.set()

    def _replace_wish(self, wish: messages.VcpuMap | messages.Unpin) -> None:
        self.wish, self.unpin_error = wish, ""
        self.rate.add_request(len(self._containers()))
        self._send_again()
        self._retry.set()

    def _containers(self) -> Collection[str]:
        return self.wish.containers if isinstance(self.wish, messages.VcpuMap) else ()

    def _send_again(self) -> None:
        """The wish has to be sent (again); reports of an earlier one are void."""
        self._forget_reports()
        self._wake.set()
        self._changed()

    def _forget_reports(self) -> None:
        self.progress, self._asked = Progress.UNSENT, 0
        self.reports, self.system = {}, None

    async def run(self) -> None:
        """Keep a session with the agent, connecting again whenever it ends, until cancelled."""
        from vmpin.guests.attempts import attempts

        while True:
            async for attempt in attempts(self._retry, self._timeouts):
                with attempt:
                    await self._attempt()

    async def _attempt(self) -> None:
        """Hold one connection, over the first channel that leads to an agent. Returns when it had lasted.
        :raises Exception: why no agent was reached, or why the connection ended early."""
        self._retry.clear()
        failure: Exception = NoAgentFound("no way into the guest is known")
        for channel in self._channels():
            began = time.monotonic()
            try:
                stream = await channel.open(self._port)
            except (OSError, TimeoutError) as err:
                if not isinstance(failure, NotListening):
                    failure = err
                continue
            try:
                self.counters.connects += 1
                await self._serve(stream, channel)
            except (ProtocolError, GuestError, OSError, TimeoutError) as err:
                failure = err
            finally:
                stream.close()
                was_up = self.up
                if was_up:
                    self.state = SessionState.ABSENT
                self._forget_reports()
            if isinstance(failure, ProtocolError):
                self.counters.refused += 1
            if was_up and time.monotonic() - began > self._timeouts.agent_lasted:
                self.log_once = LogOnce(self.name)
                self._lost(failure)
                return
            # A serial port opens whether or not there is an agent, so the next channel is tried.
            if not isinstance(failure, NoAgentFound):
                if was_up and not isinstance(failure, ProtocolError):
                    failure = SessionEnded(reason(failure))
                break
        self._lost(failure)
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame: only the garbage collector would find the two

    def _lost(self, err: Exception) -> None:
        """Record that no agent answers, and why."""
        text = self.counters.last_error = reason(err)
        if self._streak.add(err, self.boots):
            self.state, text = SessionState.WAITING, WAITING
        else:
            self.state = SessionState.FOREIGN if isinstance(err, ProtocolError) else SessionState.ABSENT
        if text != self.text:
            self.text = text
            expected = (self.state is SessionState.WAITING or isinstance(err, NotListening | NoAgentFound)
                        or has_ended(err))
            self.log_once.log(logging.DEBUG if expected else logging.WARNING, "guest agent", text)
            self._changed()

    async def _serve(self, stream: Stream, channel: Channel) -> None:
        self._id, self._asked, self.progress, self._way = 0, 0, Progress.UNSENT, str(channel)
        self._received_at = self._sent_at = time.monotonic()
        self.rate = RateLimit(self._received_at)
        self.rate.add_request(len(self._containers()))
        await run_together(self._send_requests(stream), self._read_answers(stream))

    async def _send_requests(self, stream: Stream) -> None:
        await self._send(stream, messages.Ping(self._next_id()))
        subscribed = False
        while True:
            self._wake.clear()  # before the checks: a change while something is being sent sets it again
            if self.up and not subscribed:
                subscribed = True
                await self._send(stream, messages.Subscribe(self._next_id()))
            if self.up and self.progress is Progress.UNSENT and self.wish is not None:
                self.counters.pushes += 1
                await self._send(stream, self._request(self.wish))
            waits = self._sent_at > self._received_at
            pause = self._timeouts.agent_idle
            if waits:
                pause = max(0.0, self._sent_at + self._timeouts.agent_answer - time.monotonic())
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                if self._sent_at > self._received_at:
                    raise NoAgentFound(f"no answer within {self._timeouts.agent_answer:g} s") from None
                if not waits:
                    await self._send(stream, messages.Ping(self._next_id()))

    def _request(self, wish: messages.VcpuMap | messages.Unpin) -> messages.HostMessage:
        """The wish as it is sent, with the next id and generation."""
        self.progress, self._asked = Progress.SENT, self._next_id()
        if isinstance(wish, messages.Unpin):
            return messages.Unpin(self._asked)
        # By the clock, so that a restarted watcher is ahead of the one before it.
        self._generation = max(self._generation + 1, time.time_ns() // 10**6)
        return wish._replace(id=self._asked, generation=self._generation)

    def _next_id(self) -> int:
        self._id += 1
        return self._id

    async def _send(self, stream: Stream, request: messages.HostMessage) -> None:
        if self._sent_at <= self._received_at:
            self._sent_at = time.monotonic()  # else the deadline counts from the request before
        stream.writer.write(encode(messages.as_json(request)))
        async with asyncio.timeout(self._timeouts.agent_answer):
            await stream.writer.drain()

    async def _read_answers(self, stream: Stream) -> None:
        decoder = FrameDecoder(MAX_ANSWER)
        while True:
            data = await stream.reader.read(65536)
            if not data:
                raise GuestError("the agent closed the connection") if self.up else NoAgentFound("closed at once")
            decoder.limit = max(decoder.limit, longest_answer(len(self._containers())))
            try:
                self.budget.begin()
                received = decoder.feed(data)
                self.rate.add_received(len(data), len(received), time.monotonic())
                await self._receive_all(received)
            finally:
                pause = self.budget.end()
            if pause:
                await asyncio.sleep(pause)

    async def _receive_all(self, received: Sequence[Mapping[str, object]]) -> None:
        """Take messages into account, in as many turns of the loop as the budget needs."""
        for message in received:
            if self.budget.over():
                pause = self.budget.end()
                self.budget.begin()
                await asyncio.sleep(pause)
            # An unknown message is of a newer agent; answering it with an error might go on for ever.
            with contextlib.suppress(UnknownMessage):
                self.receive(message)

    def receive(self, message: Mapping[str, object]) -> None:
        """Take one message of the agent's into account. :raises ProtocolError: it is not of the protocol.
        :raises NoAgentFound: the first answer is an error."""
        answer = parse_answer(only_used(self._containers(), message))
        self.counters.answers += 1
        if isinstance(answer, messages.NeedMap):
            self.rate.add_resend()
        if self.up or isinstance(answer, messages.Pong):
            self._received_at = time.monotonic()
        match answer:
            case messages.Pong() if not self.up:
                self._came_up(answer)
            case messages.Failure() if not self.up:
                raise NoAgentFound(answer.error or "it answers with an error")
            case _ if not self.up:
                pass  # nothing but a ping was sent yet
            case messages.NeedMap():
                self._send_again()
            case messages.Applied():
                self._applied(answer)
            case messages.Failure():
                self._failed(answer)
            case messages.Inventory():
                self._set_note(answer.note)

    def _came_up(self, pong: messages.Pong) -> None:
        self._streak.reset()
        self.state, self._version = SessionState.UP, f"agent {pong.version or '?'} over {self._way}"
        self.text = clean(self._version)
        # LogOnce, so that a guest that comes and goes does not fill the log.
        self.log_once.log(logging.INFO, "guest agent is up", self.text)
        self._wake.set()
        self._changed()

    def _set_note(self, note: str) -> None:
        """Append the agent's note to the text, such as that its CPUs' hardware ids are guessed."""
        text = clean(f"{self._version}; {note}" if note else self._version)
        if text != self.text:
            self.text = text
            self._changed()

    def _is_of_wish(self, id: int) -> bool:
        """Whether an answer's id is that of the newest wish, which was sent on this connection."""
        return self.progress is not Progress.UNSENT and id == self._asked

    def _applied(self, answer: messages.Applied) -> None:
        if answer.id is not None and not self._is_of_wish(answer.id):
            return  # of an earlier wish
        if isinstance(self.wish, messages.Unpin):
            if answer.id is not None:
                self.unpin_error, self.progress = "", Progress.DONE
                self._changed()
            return
        if answer.generation > self._generation:
            # The agent has a map from a host whose clock was ahead: continue from its generation.
            self.rate.add_resend(answer.generation)
            self._generation, self.progress, self._asked = answer.generation, Progress.UNSENT, 0
            self._wake.set()
            return
        if answer.generation < self._generation or self.wish is None or self.progress is Progress.UNSENT:
            return
        self.reports = {ContainerId(cid): container_report(outcome) for cid, outcome in answer.containers.items()}
        self.system = None if answer.system is None else container_report(answer.system)
        if not self.done:
            level = logging.WARNING if any(report.state == ERROR for report in self.reports.values()) else logging.INFO
            logger.log(level, "guest containers sandbox=%s: %s", self.name, summary(self.reports))
        self.progress = Progress.DONE
        self._changed()

    def _failed(self, answer: messages.Failure) -> None:
        text = answer.error or "the agent gives no reason"
        if answer.id is None or not self._is_of_wish(answer.id):
            logger.debug("guest agent reports an error sandbox=%s: %s", self.name, text)
            return
        if isinstance(self.wish, messages.VcpuMap):
            self.reports = {ContainerId(cid): ContainerReport(ERROR, text) for cid in self._containers()}
            self.progress = Progress.DONE
        else:
            self.unpin_error, self.progress = text, Progress.FAILED
            self.log_once.log(logging.WARNING, "guest containers could not be unpinned", text)
        self._changed()
