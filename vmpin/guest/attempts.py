"""Trying again, ever more seldom, until it lasts. Imports tenacity, so it is imported when there is a guest."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from tenacity import AsyncRetrying, RetryCallState, wait_exponential, wait_random

from vmpin.errors import SourceError
from vmpin.guest import Trouble
from vmpin.guestproto import ProtocolError

logger = logging.getLogger(__name__)

#: Seconds between attempts, doubled each time.
FIRST, LAST = 0.1, 30.0
#: What wakes it up early does so no sooner than this after an attempt (seconds).
EARLY = 1.0


def attempts(wake: asyncio.Event) -> AsyncRetrying:
    """For `async for`: attempts until one does not raise. Setting `wake` makes the next one come early."""
    async def rest(seconds: float) -> None:
        if seconds <= EARLY:
            await asyncio.sleep(seconds)
            return
        await asyncio.sleep(EARLY)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - EARLY):
                await wake.wait()
        wake.clear()

    # Not wait_exponential_jitter: its parameters have other names in every other version.
    return AsyncRetrying(wait=wait_exponential(multiplier=FIRST, max=LAST) + wait_random(0, FIRST), sleep=rest,
                         before_sleep=_tell)


def _tell(state: RetryCallState) -> None:
    """What a guest does is foreseen, and told by who met it; the rest is a mistake of ours, and does not end this."""
    err = state.outcome.exception() if state.outcome is not None else None
    if not isinstance(err, Trouble | ProtocolError | SourceError | OSError):  # TimeoutError is one
        logger.error("a guest's session failed and goes on: %r", err)
        logger.debug("a guest's session", exc_info=err)
