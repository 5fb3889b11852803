"""Small helpers for asyncio tasks: a light event, two coroutines that end together, and cancelling with waiting."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Flag:
    """An asyncio.Event for at most one waiting task. An Event takes nearly 1 kB, most of it for the queue of waiting
    tasks; a node has thousands of flags."""

    __slots__ = ("_set", "_waiter")

    def __init__(self) -> None:
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        """Wait until it is set, even if only for a moment. :raises RuntimeError: another task already waits."""
        if self._set:
            return
        if self._waiter is not None:
            raise RuntimeError("two tasks wait for one flag")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


async def run_together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run until the first of them ends or fails, or until cancelled; then cancel the others.

    Not a TaskGroup: before Python 3.13 a group that is ending by itself loses a cancellation that comes meanwhile, and
    leaves the count of cancellations too high.
    :raises Exception: of the first, in the order given, that had ended."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def cancel_all(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait until each has ended. (Awaiting one would swallow a cancellation of the caller.)"""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
