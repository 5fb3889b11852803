"""Retries of connections to a peer over a socket or a network, with tenacity's exponential backoff.

`Backoff` computes the pauses, for callers with a loop of their own. `repeat` is a task's whole retry loop. Importing
this module loads tenacity and asyncio (some 50 ms), so callers import it at the first connection, not when the watcher
starts. It is not for waiting for files or for the next resync.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from tenacity import AsyncRetrying, RetryCallState, wait_exponential

#: The fraction by which each pause varies at random, so that many peers are not tried at the same moment.
JITTER = 0.25

#: The stateless owner that all RetryCallStates share; it takes 5 kB, and there may be thousands of states.
_RETRYING = AsyncRetrying()


class Wake(Protocol):
    """The interface of asyncio.Event and guests.guest_session.Flag."""

    def is_set(self) -> bool: ...

    def clear(self) -> None: ...

    async def wait(self) -> object: ...


class Backoff:
    """Pauses between attempts at one peer: each is twice as long as the one before, varied by the fraction `jitter`.
    :param first: the first pause in seconds. :param last: the longest pause in seconds.
    :param steps: after this many attempts every pause is `last`; None: only when the doubling reaches it."""

    __slots__ = ("_first", "_jitter", "_last", "_steps", "state")

    def __init__(self, first: float, last: float, steps: int | None = None, jitter: float = JITTER) -> None:
        self._first, self._last, self._steps, self._jitter = first, last, steps, jitter
        self.state = RetryCallState(_RETRYING, None, (), {})

    def pause(self) -> float:
        """Count one failed attempt. :returns: how long to wait before the next one, in seconds."""
        seconds = self.seconds()
        self.state.prepare_for_next_attempt()
        varied = seconds * random.uniform(1 - self._jitter, 1 + self._jitter)
        return varied if varied <= self._last else 2 * self._last - varied

    def seconds(self) -> float:
        """The next pause before it is varied, in seconds."""
        if self._steps is None or self.state.attempt_number <= self._steps:
            return float(wait_exponential(multiplier=self._first, max=self._last)(self.state))
        return self._last

    def after(self, err: Exception) -> float:
        """Return the pause after an error: `pause`, unless a subclass derives it from the error."""
        return self.pause()

    def early(self, since: float, least: float) -> float:
        """The seconds until an attempt that is asked for now. :param since: when the last one ended (monotonic, s).
        :param least: the least time between two."""
        return since + least - time.monotonic()

    def at_most(self, attempts: int) -> None:
        """Make the next pause no longer than the one after this many attempts."""
        self.state.attempt_number = min(self.state.attempt_number, attempts)

    def reset(self) -> None:
        """Start again with the first pause, after a connection that lasted."""
        self.state.attempt_number = 1


async def repeat(attempt: Callable[[], Awaitable[None]], backoff: Backoff, wake: Wake, early: float) -> None:
    """Make attempts until one raises no exception. A BaseException that is no Exception, such as a cancellation, ends
    the loop at once.
    :param wake: when set, the next attempt is made early and the pauses start with the first again. Cleared here.
    :param early: the minimum time between two attempts when `wake` is set, in seconds."""
    while True:
        try:
            await attempt()
            return
        except Exception as err:
            seconds = backoff.after(err)
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wake.wait()
        if wake.is_set():
            await asyncio.sleep(max(0.0, backoff.early(began, min(early, seconds))))
            wake.clear()
            backoff.reset()
