"""The states of a session with a guest's agent, what both sessions have in common, and the errors that end one."""

from collections.abc import Callable, Sequence
from enum import Enum, auto

from vmpin.config.timeouts import Timeouts
from vmpin.domain.guest_report import ContainerReport, GuestCounters
from vmpin.domain.model import ContainerId
from vmpin.guests.agent_reports import TimeoutStreak
from vmpin.guests.tasks import Flag
from vmpin.guests.transport.channel import Channel


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


class GuestError(Exception):
    """Why a connection to a guest ended, as a text for the status."""


class NoAgentFound(GuestError):
    """Nothing answers that speaks the protocol."""


class SessionEnded(GuestError):
    """The connection to an agent that had answered has ended."""
