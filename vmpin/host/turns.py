"""Splits long work in the watcher's event loop into short turns, so that hooks and events are handled in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from vmpin.host.sockets import Handler, Stream

T = TypeVar("T")
#: The fraction of the loop's time that a socket's replies may take; and the most requests that may wait.
PART, WAITING = 0.2, 8
_BUSY = b'{"error":"too many requests at once","hint":"ask again later"}\n'


async def in_turns(work: Iterator[T], turn: float) -> list[T]:
    """Run all steps of `work`; yield to the event loop every `turn` seconds. :returns: what the steps returned."""
    results = []
    began = time.monotonic()
    for result in work:
        results.append(result)
        if time.monotonic() - began > turn:
            await asyncio.sleep(0)
            began = time.monotonic()
    return results


class Rationed:
    """Wraps a handler: one request at a time, within a fraction of the event loop's time. Clients that send requests
    without end have to wait or are refused, and do not delay hooks and passes. The handler must not await anything.
    :param part: the fraction. :param waiting: the most requests that may wait.
    :param now: a monotonic clock in seconds. :param sleep: sleeps by that clock."""

    def __init__(self, handler: Handler, part: float = PART, waiting: int = WAITING,
                 now: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
                 ) -> None:
        self._handler, self._part, self._most = handler, part, waiting
        self._now, self._sleep = now, sleep
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._due = 0.0  #: By `now`.

    async def __call__(self, raw: bytes, uid: int) -> bytes | Stream:
        if self._waiting >= self._most:
            return _BUSY
        self._waiting += 1
        try:
            async with self._turn:
                await self._sleep(max(0.0, self._due - self._now()))
                began = self._now()
                try:
                    return await self._handler(raw, uid)
                finally:
                    now = self._now()
                    self._due = now + (now - began) / self._part
        finally:
            self._waiting -= 1
