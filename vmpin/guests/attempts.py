"""The pauses between attempts to reach a guest's agent, by what the attempt failed with.

Called by agent_session and kata_session when they start; imports host.retry and with it tenacity, so not before there
is a guest. What stays out: the loop itself (host.retry) and what an attempt does (the sessions).
"""

from __future__ import annotations

import logging

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.errors import SourceError
from vmpin.guests.agent_reports import PATIENCE
from vmpin.guests.session_state import GuestError, SessionEnded
from vmpin.host.retry import Attempts, Backoff, Wake
from vmpin.protocol.frames import ProtocolError

logger = logging.getLogger(__name__)

#: After this many attempts (some 13 s) every pause is the longest.
SOON = 7
#: An agent whose session has just ended is tried again as after this many attempts.
RECENT = 5


class GuestBackoff(Backoff):
    """Short pauses for a guest that boots, and for an agent that answered a moment ago."""

    __slots__ = ("_timeouts",)

    def __init__(self, timeouts: Timeouts) -> None:
        super().__init__(timeouts.agent_first, timeouts.agent_last, SOON)
        #: Attempts in a row that timed out.
        self._timeouts = 0

    def after(self, err: Exception) -> float:
        """:returns: the pause after an attempt that failed with `err`, in seconds."""
        _log_unexpected(err)
        # A guest that boots does not even refuse a connection.
        self._timeouts = self._timeouts + 1 if isinstance(err, TimeoutError) else 0
        if isinstance(err, SessionEnded) or 0 < self._timeouts < PATIENCE:
            self.at_most(RECENT)
        return self.pause()


def attempts(wake: Wake, timeouts: Timeouts = TIMEOUTS) -> Attempts:
    """Attempts at one guest until one does not raise; setting `wake` makes the next one come early."""
    return Attempts(GuestBackoff(timeouts), wake, timeouts.agent_early)


def _log_unexpected(err: Exception) -> None:
    """The sessions log what a guest or a connection can cause; anything else is a defect in vmpin."""
    if not isinstance(err, GuestError | ProtocolError | SourceError | OSError):  # TimeoutError is an OSError
        logger.error("session with a guest failed unexpectedly and is started again: %r", err)
        logger.debug("session with a guest", exc_info=err)
