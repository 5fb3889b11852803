"""Retries of connections to a peer over a socket or a network, with pauses that double.

`Backoff` computes the pauses, for callers with a loop of their own. `repeat` is a task's whole retry loop. It is not
for waiting for files or for the next resync.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

#: The fraction by which each pause varies at random, so that many peers are not tried at the same moment.
JITTER = 0.25


class Wake(Protocol):
    """The interface of asyncio.Event and guests.guest_session.Flag."""

    def is_set(self) -> bool: ...

    def clear(self) -> None: ...

    async def wait(self) -> object: ...


class Backoff:
    """Pauses between attempts at one peer: each is twice as long as the one before, varied by the fraction `jitter`.
    :param first: the first pause in seconds. :param last: the longest pause in seconds.
    :param steps: after this many attempts every pause is `last`; None: only when the doubling reaches it."""

    __slots__ = ("_attempt", "_first", "_jitter", "_last", "_steps")

    def __init__(self, first: float, last: float, steps: int | None = None, jitter: float = JITTER) -> None:
        self._first, self._last, self._steps, self._jitter = first, last, steps, jitter
        self._attempt = 1  #: The number of the present one.

    def pause(self) -> float:
        """Count one failed attempt. :returns: how long to wait before the next one, in seconds."""
        seconds = self.seconds()
        self._attempt += 1
        varied = seconds * random.uniform(1 - self._jitter, 1 + self._jitter)
        return varied if varied <= self._last else 2 * self._last - varied

    def seconds(self) -> float:
        """The next pause before it is varied, in seconds."""
        if self._steps is None or self._attempt <= self._steps:
            return min(self._first * 2.0 ** min(self._attempt - 1, 64), self._last)
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
        self._attempt = min(self._attempt, attempts)

    def reset(self) -> None:
        """Start again with the first pause, after a connection that lasted."""
        self._attempt = 1


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
