"""The attempts to reach a guest's agent, and the pauses between them, by what the attempt failed with."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable

from vmpin.config.timeouts import Timeouts
from vmpin.errors import SourceError
from vmpin.guests.guest_session import Flag, GuestError, SessionEnded, TimeoutStreak
from vmpin.host.retry import JITTER, mirrored
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


class GuestBackoff:
    """Pauses that double up to `agent_last`; short ones for a guest that boots, and after an answer just before.
    :param name: the sandbox. Its pauses differ from other guests', so that many are not tried at the same moment, and
        are the same for both agents: an attempt costs little when another has just been made."""

    __slots__ = ("_began", "_failed", "_name", "_next", "_pace", "_streak", "_timeouts")

    def __init__(self, timeouts: Timeouts, name: str) -> None:
        self._timeouts, self._name, self._streak = timeouts, name, TimeoutStreak()
        self._pace = random.Random(name).uniform(1 - JITTER, 1 + JITTER)
        self._began = time.monotonic()
        #: The number of failed attempts since the pauses were made short.
        self._failed = 0
        #: The next pauses, in reverse; empty: doubled ones.
        self._next: list[float] = []

    def reset(self) -> None:
        """Make the next pauses short, after an attempt that came early."""
        if self._silent():
            self._next = [*reversed(AFTER_CHANGE)]
        else:
            self._failed = 0

    def early(self, since: float, least: float) -> float:
        """The seconds until an attempt that is asked for now. For a silent guest `least` from now on: at once, no
        agent of a container that is only created would answer, and a second change may follow.
        :param since: when the last one ended (monotonic, s). :param least: the least time between two."""
        return least if self._silent() else since + least - time.monotonic()

    def _silent(self) -> bool:
        return time.monotonic() - self._began >= SILENT

    def pause(self) -> float:
        """Count one failed attempt. :returns: how long to wait before the next one, in seconds."""
        first, last = self._timeouts.agent_first, self._timeouts.agent_last
        doubled = min(first * 2.0 ** self._failed, last) if self._failed < SOON else last
        self._failed += 1
        return mirrored(self._pace * (self._next.pop() if self._next else doubled), last)

    def after(self, err: Exception) -> float:
        """Return the pause after an attempt that failed with `err`, in seconds; log what no guest can cause."""
        # The sessions log what a guest or a connection can cause; anything else is a defect in vmpin.
        if not isinstance(err, GuestError | ProtocolError | SourceError | OSError):  # TimeoutError is an OSError
            logger.error("session with guest failed unexpectedly sandbox=%s: %r; it is started again", self._name, err)
            logger.debug("session with guest sandbox=%s", self._name, exc_info=err)
        # A guest that boots does not even refuse a connection.
        if self._streak.add(err) or isinstance(err, SessionEnded):
            self._next.clear()
            self._failed = min(self._failed, RECENT - 1)
        return self.pause()


async def repeat(attempt: Callable[[], Awaitable[None]], wake: Flag, timeouts: Timeouts, name: str) -> None:
    """Make attempts at one guest until one raises no exception. A BaseException that is no Exception, such as a
    cancellation, ends the loop at once.
    :param wake: when set, the next attempt is made early, and the pauses are short again. Cleared here.
    :param name: the sandbox."""
    backoff = GuestBackoff(timeouts, name)
    while True:
        try:
            await attempt()
            return
        except Exception as err:
            seconds = backoff.after(err)
        ended = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wake.wait()
        if wake.is_set():
            await asyncio.sleep(max(0.0, backoff.early(ended, min(timeouts.agent_early, seconds))))
            wake.clear()
            backoff.reset()
