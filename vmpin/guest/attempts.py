"""Trying again, ever more seldom, until it lasts. Imports tenacity, so it is imported when there is a guest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time

from tenacity import AsyncRetrying, RetryCallState, wait_exponential

from vmpin.errors import SourceError
from vmpin.guest import Ended, Trouble
from vmpin.guest.words import PATIENCE
from vmpin.guestproto import ProtocolError

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


def attempts(wake: asyncio.Event) -> AsyncRetrying:
    """For `async for`: attempts until one does not raise. Setting `wake` makes the next one come early, and the pauses
    short again."""
    backoff = wait_exponential(multiplier=FIRST, max=LAST)
    resting: list[RetryCallState] = []
    silent = 0

    def pause(state: RetryCallState) -> float:
        nonlocal silent
        resting[:] = [state]
        err = None if state.outcome is None else state.outcome.exception()
        # A guest that boots does not even refuse a connection: it is tried as soon as before, for a while.
        silent = silent + 1 if isinstance(err, TimeoutError) else 0
        if isinstance(err, Ended) or 0 < silent < PATIENCE:
            state.attempt_number = min(state.attempt_number, RECENT)
        seconds = backoff(state) if state.attempt_number <= SOON else LAST
        return seconds * random.uniform(1 - JITTER, 1 + JITTER)

    async def rest(seconds: float) -> None:
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wake.wait()
        if wake.is_set():
            await asyncio.sleep(max(0.0, began + min(EARLY, seconds) - time.monotonic()))
            wake.clear()
            resting[0].attempt_number = 1

    return AsyncRetrying(wait=pause, sleep=rest, before_sleep=_tell)


def _tell(state: RetryCallState) -> None:
    """What a guest does is foreseen, and told by who met it; the rest is a mistake of ours, and does not end this."""
    err = state.outcome.exception() if state.outcome is not None else None
    if not isinstance(err, Trouble | ProtocolError | SourceError | OSError):  # TimeoutError is one
        logger.error("a guest's session failed and goes on: %r", err)
        logger.debug("a guest's session", exc_info=err)
