"""Long work in the watcher's loop, in short turns: hooks and events are answered in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from vmpin.host.socket_streams import Stream
from vmpin.host.unix_sockets import Handler

T = TypeVar("T")
#: Of the loop's time, what the answers of a socket may take; and requests that wait for their turn.
PART, WAITING = 0.2, 8
_BUSY = b'{"error":"too many requests at once","hint":"ask again later"}\n'


async def in_turns(work: Iterator[T], turn: float) -> list[T]:
    """Do the steps of `work`, and let the loop's other work go on every `turn` seconds."""
    results = []
    began = time.monotonic()
    for result in work:
        results.append(result)
        if time.monotonic() - began > turn:
            await asyncio.sleep(0)
            began = time.monotonic()
    return results


class Rationed:
    """A handler whose answers come one by one and take at most a part of the loop's time: peers that ask without end
    wait, or are refused, and hooks and passes are not kept waiting by them. Of the answers, nothing is awaited.
    :param now: a steady clock in seconds. :param sleep: waits for so long by it."""

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
