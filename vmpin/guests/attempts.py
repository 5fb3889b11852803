"""Trying again, ever more seldom, until it lasts. Imports tenacity, so it is imported when there is a guest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time

from tenacity import AsyncRetrying, AttemptManager, RetryCallState, wait_exponential

from vmpin.domain.guest_report import GuestError, SessionEnded
from vmpin.errors import SourceError
from vmpin.guests.agent_reports import PATIENCE
from vmpin.guests.tasks import Wake
from vmpin.protocol.frames import ProtocolError

logger = logging.getLogger(__name__)

#: Seconds between attempts, doubled each time; after SOON of them (some 13 s) the longest at once. Most images have no
#: agent: two hundred guests in which nobody is to be found cost an attempt a second or two between them.
FIRST, LAST, SOON = 0.1, 300.0, 7
#: Whoever was there a moment ago is looked for as after so many attempts.
RECENT = 5
#: The part by which each pause is longer or shorter, by chance: they are not all to wake at once.
JITTER = 0.25
#: What wakes it up early does so no sooner than this after an attempt (seconds).
EARLY = 1.0


#: What a RetryCallState names as its owner; with nothing of its own, so that all share it.
_RETRYING = AsyncRetrying()


def attempts(wake: Wake) -> _Attempts:
    """For `async for`: attempts until one does not raise. Setting `wake` makes the next one come early, and the pauses
    short again."""
    return _Attempts(wake)


class _Attempts:
    """Not an AsyncRetrying for each session: that takes 5 kB, and a node of 1,000 VMs has 2,000 sessions that rest."""

    __slots__ = ("_silent", "_state", "_wake")

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self._state = RetryCallState(_RETRYING, None, (), {})
        self._silent = 0

    def __aiter__(self) -> _Attempts:
        return self

    async def __anext__(self) -> AttemptManager:
        state = self._state
        if state.outcome is not None:
            err = state.outcome.exception()
            if err is None:
                raise StopAsyncIteration
            if not isinstance(err, Exception):
                raise err  # such as the end of the task
            _tell(err)
            seconds = self._pause(err)
            err = None  # it holds the frames it came through
            state.prepare_for_next_attempt()
            await self._rest(seconds)
        return AttemptManager(state)

    def _pause(self, err: Exception) -> float:
        state = self._state
        # A guest that boots does not even refuse a connection: it is tried as soon as before, for a while.
        self._silent = self._silent + 1 if isinstance(err, TimeoutError) else 0
        if isinstance(err, SessionEnded) or 0 < self._silent < PATIENCE:
            state.attempt_number = min(state.attempt_number, RECENT)
        backoff = wait_exponential(multiplier=FIRST, max=LAST)
        seconds = backoff(state) if state.attempt_number <= SOON else LAST
        return seconds * random.uniform(1 - JITTER, 1 + JITTER)

    async def _rest(self, seconds: float) -> None:
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        if self._wake.is_set():
            await asyncio.sleep(max(0.0, began + min(EARLY, seconds) - time.monotonic()))
            self._wake.clear()
            self._state.attempt_number = 1


def _tell(err: Exception) -> None:
    """What a guest does is foreseen, and told by who met it; the rest is a mistake of ours, and does not end this."""
    if not isinstance(err, GuestError | ProtocolError | SourceError | OSError):  # TimeoutError is one
        logger.error("a guest's session failed and goes on: %r", err)
        logger.debug("a guest's session", exc_info=err)
