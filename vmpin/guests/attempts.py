"""The pauses between attempts to reach a guest's agent, by what the attempt failed with."""

import logging
import random
import time
from collections.abc import Awaitable, Callable

from vmpin.config.timeouts import Timeouts
from vmpin.errors import SourceError
from vmpin.guests.guest_session import GuestError, SessionEnded, TimeoutStreak
from vmpin.host import retry
from vmpin.host.retry import JITTER, Backoff, Wake
from vmpin.protocol.frames import ProtocolError

logger = logging.getLogger(__name__)

#: After this many attempts (some 13 s) every pause is the longest.
SOON = 7
#: An agent whose session has just ended is tried again as after this many attempts.
RECENT = 5
#: A guest without an agent for so long (s) has none, or is given one by hand: changes of its map come with each
#: container, and each attempt costs as much as a pass.
SILENT = 60.0
#: The pauses after an attempt at such a guest that came early (s). An agent that starts meanwhile is reached 4 s later
#: at most than with other guests' pauses of 0.1 s, doubled each time.
AFTER_CHANGE = (4.0, 6.0, 6.0)


class GuestBackoff(Backoff):
    """Short pauses for a guest that boots, and for an agent that answered a moment ago.
    :param name: the sandbox. Its pauses differ from other guests', so that many are not tried at the same moment, and
        are the same for both agents: an attempt costs little when another has just been made."""

    __slots__ = ("_began", "_name", "_next", "_pace", "_streak")

    def __init__(self, timeouts: Timeouts, name: str) -> None:
        super().__init__(timeouts.agent_first, timeouts.agent_last, SOON, jitter=0.0)
        self._pace = random.Random(name).uniform(1 - JITTER, 1 + JITTER)
        self._name, self._streak = name, TimeoutStreak()
        self._began = time.monotonic()
        #: The next pauses, in reverse; empty: doubled ones.
        self._next: list[float] = []

    def reset(self) -> None:
        """Make the next pauses short, after an attempt that came early."""
        if self._silent():
            self._next = [*reversed(AFTER_CHANGE)]
        else:
            super().reset()

    def early(self, since: float, least: float) -> float:
        """For a silent guest from now on: at once, no agent of a container that is only created would answer, and a
        second change may follow."""
        return least if self._silent() else super().early(since, least)

    def _silent(self) -> bool:
        return time.monotonic() - self._began >= SILENT

    def seconds(self) -> float:
        return self._pace * (self._next.pop() if self._next else super().seconds())

    def at_most(self, attempts: int) -> None:
        self._next.clear()
        super().at_most(attempts)

    def after(self, err: Exception) -> float:
        """Return the pause after an attempt that failed with `err`, in seconds; log what no guest can cause."""
        # The sessions log what a guest or a connection can cause; anything else is a defect in vmpin.
        if not isinstance(err, GuestError | ProtocolError | SourceError | OSError):  # TimeoutError is an OSError
            logger.error("session with guest failed unexpectedly sandbox=%s: %r; it is started again", self._name, err)
            logger.debug("session with guest sandbox=%s", self._name, exc_info=err)
        # A guest that boots does not even refuse a connection.
        if self._streak.add(err) or isinstance(err, SessionEnded):
            self.at_most(RECENT)
        return self.pause()


async def repeat(attempt: Callable[[], Awaitable[None]], wake: Wake, timeouts: Timeouts, name: str) -> None:
    """Make attempts at one guest until one does not raise; setting `wake` makes the next one come early.
    :param name: the sandbox."""
    await retry.repeat(attempt, GuestBackoff(timeouts, name), wake, timeouts.agent_early)
