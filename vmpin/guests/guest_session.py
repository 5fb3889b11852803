"""What the sessions with both kinds of agents have in common: states, errors, and texts for the status and the log."""

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto

from vmpin.config.timeouts import Timeouts
from vmpin.domain.guest_report import APPLIED, PENDING, ContainerReport, GuestCounters
from vmpin.domain.model import ContainerId
from vmpin.guests.channels import Channel, NotListening
from vmpin.protocol.frames import ProtocolError, clean
from vmpin.protocol.messages import VERSION, ContainerOutcome

#: The state of a guest that boots, or whose agent creates a container: its sockets exist before it answers.
WAITING = "waiting for an answer"
#: Attempts in a row that may time out before the guest is reported as silent: with the pauses between them (attempts)
#: a minute. A guest that boots under nested virtualization on a busy machine took 22 s until its kernel refused a
#: connection.
PATIENCE = 20
#: The same for a guest in which no container is known to have been created: ten minutes. A guest that booted on an
#: emulated machine took three and a half.
BOOT_PATIENCE = 200


class SessionState(Enum):
    """Whether an agent answers. Each session has a text beside it, for the status and the log."""

    #: No attempt has ended yet.
    UNTRIED = auto()
    #: Attempts time out, for less than a minute so far: the guest boots, or its agent creates a container.
    WAITING = auto()
    #: As WAITING, for an agent that has answered before and still counts as the one that sets CPUs (Kata's only).
    STALLED = auto()
    #: No agent answers.
    ABSENT = auto()
    #: What answers does not speak the protocol.
    FOREIGN = auto()
    #: The agent answers.
    UP = auto()
    #: The agent's policy forbids the call. Final: it is never asked again (Kata's only).
    REFUSED = auto()


class Progress(Enum):
    """How far the newest wish of a session has come."""

    #: Not sent on this connection, or to be sent once more; also while there is no wish.
    UNSENT = auto()
    #: Sent; the answer is outstanding.
    SENT = auto()
    #: Answered: each container has its report, or everything is taken back.
    DONE = auto()
    #: The agent answered that it could not take everything back. It is asked again when the caller asks again.
    FAILED = auto()


class GuestError(Exception):
    """Why a connection to a guest ended, as a text for the status."""


class NoAgentFound(GuestError):
    """Nothing answers that speaks the protocol."""


class SessionEnded(GuestError):
    """The connection to an agent that had answered has ended."""


class Flag:
    """An asyncio.Event for at most one waiting task. An Event takes nearly 1 kB, most of it for the queue of waiting
    tasks; a node has thousands of flags."""

    __slots__ = ("_set", "_waiter")

    def __init__(self) -> None:
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        """Wait until it is set, even if only for a moment. :raises RuntimeError: another task already waits."""
        if self._set:
            return
        if self._waiter is not None:
            raise RuntimeError("two tasks wait for one flag")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class TimeoutStreak:
    """Counts the attempts in a row that timed out."""

    def __init__(self) -> None:
        self._times = 0

    def add(self, err: Exception, boots: bool = False) -> bool:
        """Count a failed attempt. :param boots: whether the guest may still boot.
        :returns: whether the guest is still given time to answer."""
        self._times = self._times + 1 if isinstance(err, TimeoutError) else 0
        return 0 < self._times < (BOOT_PATIENCE if boots else PATIENCE)

    def reset(self) -> None:
        """End the streak: the agent has answered."""
        self._times = 0


class Session:
    """One guest's session. `run` of a subclass carries out the wish that its `push` sets.
    :param name: the sandbox, for the log.
    :param channels: returns the ways to try in turn; called at each attempt.
    :param changed: called whenever `state`, `text`, `progress` or `reports` has changed."""

    def __init__(self, name: str, channels: Callable[[], Sequence[Channel]], changed: Callable[[], None],
                 timeouts: Timeouts) -> None:
        self.name = name
        self.counters = GuestCounters()
        self.state = SessionState.UNTRIED
        #: The agent's version while it answers, else why it does not (the policy's text if REFUSED); "" if untried.
        self.text = ""
        self.progress = Progress.UNSENT
        #: The outcome of the newest map, by container; empty while it is not answered.
        self.reports: dict[ContainerId, ContainerReport] = {}
        self._channels = channels
        self._changed = changed
        self._timeouts = timeouts
        self._streak = TimeoutStreak()
        #: Set when there may be something to send.
        self._wake = Flag()

    @property
    def up(self) -> bool:
        return self.state in (SessionState.UP, SessionState.STALLED)

    @property
    def done(self) -> bool:
        """Whether the newest wish was answered, or sent where there is no answer."""
        return self.progress is Progress.DONE


def container_report(outcome: ContainerOutcome) -> ContainerReport:
    """An agent's outcome for one container. Its texts are printable and cut already (protocol.parsing)."""
    # Never better than the details: a container with threads outside is not applied.
    state = PENDING if outcome.state == APPLIED and outcome.outside else outcome.state
    return ContainerReport(state, outcome.error, outcome.cgroup or "", outcome.wanted, outcome.effective,
                           outcome.processes, outcome.threads, outcome.outside)


def summary(reports: Mapping[ContainerId, ContainerReport]) -> str:
    """One line for the log: the number of containers in each state, and the first three errors.

    >>> summary({ContainerId("a"): ContainerReport("applied"), ContainerId("b"): ContainerReport("error", "EIO")})
    'applied 1, error 1 (b: EIO)'
    """
    count = Counter(report.state for report in reports.values())
    errors = [f"{container}: {report.error}" for container, report in reports.items() if report.error][:3]
    return ", ".join(f"{state} {number}" for state, number in sorted(count.items())) + (
        f" ({'; '.join(errors)})" if errors else "")


def has_ended(err: Exception) -> bool:
    """Whether the VM ends or has ended: it has no vsock device any more (drivers/vhost/vsock.c), or no socket."""
    return isinstance(err, OSError) and err.errno in (errno.ENODEV, errno.ENOENT)


def reason(err: Exception) -> str:
    """Why there is no connection, printable in a log line and a terminal: a path comes from the VMM's command line."""
    if isinstance(err, NotListening):
        return "no process listens"
    if isinstance(err, ProtocolError):
        return clean(f"what came is not version {VERSION} of the protocol: {err}")
    if isinstance(err, TimeoutError):
        return "no answer in time"
    if isinstance(err, OSError):
        return clean(f"{err.filename}: {err.strerror}" if err.filename else err.strerror or repr(err))
    return clean(str(err))
