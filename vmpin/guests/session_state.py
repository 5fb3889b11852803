"""The states of a session with a guest's agent, and the errors that end one.

Shared by agent_session and kata_session, and read by vm_guest. What stays out: what an agent reports of its containers
(domain.guest_report).
"""

from __future__ import annotations

from enum import Enum, auto


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

    @property
    def up(self) -> bool:
        return self in (SessionState.UP, SessionState.STALLED)


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
