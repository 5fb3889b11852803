"""Two halves of one conversation, which end together; and a task that is to end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*parts: Coroutine[Any, Any, None]) -> None:
    """Until one of them ends or fails, or this is cancelled; the others are cancelled then.

    Not a TaskGroup: before Python 3.13 one that is ending by itself loses the cancellation that comes meanwhile, and
    leaves the count of cancellations too high, so that it cannot be told.

    :raises Exception: of the first in the order given that had ended.
    """
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


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended, however it does. (Awaiting it would swallow one's own cancellation.)
    """
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # retrieved: it is over
