"""The pauses between attempts to reach a guest's agent, by what the attempt failed with.

It loads tenacity (host.retry), so it is imported when there is a guest."""

import logging

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.errors import SourceError
from vmpin.guests.guest_session import GuestError, SessionEnded, TimeoutStreak
from vmpin.host.retry import Attempts, Backoff, Wake
from vmpin.protocol.frames import ProtocolError

logger = logging.getLogger(__name__)

#: After this many attempts (some 13 s) every pause is the longest.
SOON = 7
#: An agent whose session has just ended is tried again as after this many attempts.
RECENT = 5


class GuestBackoff(Backoff):
    """Short pauses for a guest that boots, and for an agent that answered a moment ago."""

    __slots__ = ("_streak",)

    def __init__(self, timeouts: Timeouts) -> None:
        super().__init__(timeouts.agent_first, timeouts.agent_last, SOON)
        self._streak = TimeoutStreak()

    def after(self, err: Exception) -> float:
        """Return the pause after an attempt that failed with `err`, in seconds; log what no guest can cause."""
        # The sessions log what a guest or a connection can cause; anything else is a defect in vmpin.
        if not isinstance(err, GuestError | ProtocolError | SourceError | OSError):  # TimeoutError is an OSError
            logger.error("session with a guest failed unexpectedly and is started again: %r", err)
            logger.debug("session with a guest", exc_info=err)
        # A guest that boots does not even refuse a connection.
        if self._streak.add(err) or isinstance(err, SessionEnded):
            self.at_most(RECENT)
        return self.pause()


def attempts(wake: Wake, timeouts: Timeouts = TIMEOUTS) -> Attempts:
    """Attempts at one guest until one does not raise; setting `wake` makes the next one come early."""
    return Attempts(GuestBackoff(timeouts), wake, timeouts.agent_early)
