"""A session with vmpin's own agent in one guest: it connects, sends the vCPU map, reads the reports, and reconnects.

The newest map is sent at once; a map is complete, so none of the maps before it has to arrive. An agent that was
restarted asks for it. What a guest sends is limited in size (protocol) and rate (limits); exceeding a limit ends the
connection, and the next attempt comes later each time.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.domain.guest_report import ERROR, ContainerReport
from vmpin.domain.model import ContainerId
from vmpin.guests.channels import Channel, NotListening, Stream
from vmpin.guests.guest_session import (
    WAITING,
    Flag,
    GuestError,
    NoAgentFound,
    Progress,
    Session,
    SessionEnded,
    SessionState,
    container_report,
    has_ended,
    reason,
    summary,
)
from vmpin.guests.limits import MAX_ANSWER, LogOnce, RateLimit, TimeBudget, longest_answer, only_used
from vmpin.protocol import messages
from vmpin.protocol.frames import FrameDecoder, ProtocolError, clean, encode
from vmpin.protocol.parsing import UnknownMessage, parse_answer

logger = logging.getLogger(__name__)


class AgentSession(Session):
    """`push` and `unpin` set the wish; `run` carries it out. :param port: the agent's vsock port.

    A connection begins with a ping. Until its pong the session is not `up`, and no other answer counts; after it the
    agent is sent the wish."""

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
        #: Never reused, so that no answer of an earlier connection is taken for one of this.
        self._ids = itertools.count(1)
        #: The id of the request that carried the wish; None while `progress` is UNSENT.
        self._wish_id: int | None = None
        # Of the current connection:
        #: When the oldest unanswered request has to be answered (monotonic, seconds); None if there is none.
        self._answer_due: float | None = None
        self._agent = ""  #: The agent's version and channel, for `text`.
        self.rate = RateLimit(0.0)

    # The wish

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
        """Have the wish sent (again), and discard the reports on an earlier one."""
        self._discard_reports()
        self._wake.set()
        self._changed()

    def _discard_reports(self) -> None:
        self.progress, self._wish_id = Progress.UNSENT, None
        self.reports, self.system = {}, None

    # Connections

    async def run(self) -> None:
        """Keep a session with the agent, connecting again whenever it ends, until cancelled."""
        from vmpin.guests.attempts import repeat

        while True:
            await repeat(self._attempt, self._retry, self._timeouts, self.name)

    async def _attempt(self) -> None:
        """Hold one connection, over the first channel that leads to an agent: only where it cannot be opened, or no
        agent is found (NoAgentFound), the next one is tried. Returns when it had lasted.
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
            failure, was_up = await self._hold(stream, channel)
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

    async def _hold(self, stream: Stream, channel: Channel) -> tuple[Exception, bool]:
        """Hold a connection until it ends. :returns: why it ended, and whether the agent had answered."""
        self.counters.connects += 1
        self._discard_reports()
        self._answer_due, self._agent = None, str(channel)
        self.rate = RateLimit(time.monotonic())
        self.rate.add_request(len(self._containers()))
        try:
            await _run_together(self._send_requests(stream), self._read_answers(stream))
        except (ProtocolError, GuestError, OSError, TimeoutError) as err:
            self.counters.refused += isinstance(err, ProtocolError)
            return err, self.up
        finally:
            stream.close()
            if self.up:
                self.state = SessionState.ABSENT
            self._discard_reports()
        raise AssertionError("a connection ends by an error alone")

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

    # Requests

    async def _send_requests(self, stream: Stream) -> None:
        """Send the ping, and after its pong each wish."""
        await self._send(stream, messages.Ping(next(self._ids)))
        while not self.up:
            await self._wait(stream)
        while True:
            if self.progress is Progress.UNSENT and self.wish is not None:
                self.counters.pushes += 1
                await self._send(stream, self._request(self.wish))
            await self._wait(stream)

    async def _wait(self, stream: Stream) -> None:
        """Wait until there may be something to send; ping an agent that has long been idle.
        :raises NoAgentFound: a request is not answered in time."""
        due = self._answer_due
        pause = self._timeouts.agent_idle if due is None else max(0.0, due - time.monotonic())
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
        except TimeoutError:
            if self._answer_due is not None:
                raise NoAgentFound(f"no answer within {self._timeouts.agent_answer:g} s") from None
            if due is None:
                await self._send(stream, messages.Ping(next(self._ids)))
        self._wake.clear()

    def _request(self, wish: messages.VcpuMap | messages.Unpin) -> messages.HostMessage:
        """The wish as it is sent, with the next id and generation."""
        self.progress, self._wish_id = Progress.SENT, next(self._ids)
        if isinstance(wish, messages.Unpin):
            return messages.Unpin(self._wish_id)
        # By the clock, so that a restarted watcher is ahead of the one before it.
        self._generation = max(self._generation + 1, time.time_ns() // 10**6)
        return wish._replace(id=self._wish_id, generation=self._generation)

    async def _send(self, stream: Stream, request: messages.HostMessage) -> None:
        if self._answer_due is None:
            self._answer_due = time.monotonic() + self._timeouts.agent_answer
        stream.writer.write(encode(messages.as_json(request)))
        async with asyncio.timeout(self._timeouts.agent_answer):
            await stream.writer.drain()

    # Answers

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
            if self.budget.is_over():
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
        if not self.up:
            self._receive_first(answer)
            return
        self._answer_due = None
        match answer:
            case messages.NeedMap():
                self._send_again()
            case messages.Applied() if isinstance(self.wish, messages.Unpin):
                self._restored(answer)
            case messages.Applied():
                self._applied(answer)
            case messages.Failure():
                self._failed(answer)
            case messages.Pong():
                self._set_note(answer.note)

    def _receive_first(self, answer: messages.AgentMessage) -> None:
        """Take the answer to the first ping; only that was sent yet. :raises NoAgentFound: it is an error."""
        if isinstance(answer, messages.Failure):
            raise NoAgentFound(answer.error or "it answers with an error")
        if isinstance(answer, messages.Pong):
            self._answer_due = None
            self._streak.reset()
            self.state, self._agent = SessionState.UP, f"agent {answer.version or '?'} over {self._agent}"
            self.text = self._text(answer.note)
            # LogOnce, so that a guest that comes and goes does not fill the log.
            self.log_once.log(logging.INFO, "guest agent is up", self.text)
            self._wake.set()
            self._changed()

    def _text(self, note: str) -> str:
        """The text while the agent answers. :param note: the agent's, "" for none."""
        return clean(f"{self._agent}; {note}" if note else self._agent)

    def _set_note(self, note: str) -> None:
        """Take the note of a later pong: CPUs may have been plugged since."""
        text = self._text(note)
        if text != self.text:
            self.text = text
            self._changed()

    def _restored(self, answer: messages.Applied) -> None:
        """Everything is taken back, if this answers the wish."""
        if answer.id is not None and answer.id == self._wish_id:
            self.unpin_error, self.progress = "", Progress.DONE
            self._changed()

    def _applied(self, answer: messages.Applied) -> None:
        """Take over the reports on a map, asked for (with an id) or after a change in the guest (without). Of a newer
        generation: the map is sent again, above it; of an older one: ignored; of the same: taken over."""
        if answer.id is not None and answer.id != self._wish_id:
            return  # of an earlier wish
        if answer.generation > self._generation:
            # The agent has a map from a host whose clock was ahead: continue from its generation.
            self.rate.add_resend(answer.generation)
            self._generation, self.progress, self._wish_id = answer.generation, Progress.UNSENT, None
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
        if answer.id is None or answer.id != self._wish_id:
            logger.debug("guest agent reports an error sandbox=%s: %s", self.name, text)
            return
        if isinstance(self.wish, messages.VcpuMap):
            self.reports = {ContainerId(cid): ContainerReport(ERROR, text) for cid in self._containers()}
            self.progress = Progress.DONE
        else:
            self.unpin_error, self.progress = text, Progress.FAILED
            self.log_once.log(logging.WARNING, "guest containers could not be unpinned", text)
        self._changed()


async def _run_together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run until the first of them ends or fails, or until cancelled; then cancel the others.

    Not a TaskGroup: before Python 3.13 a group that is ending by itself loses a cancellation that comes meanwhile, and
    leaves the count of cancellations too high.
    :raises Exception: of the first, in the order given, that had ended."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
