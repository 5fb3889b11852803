"""Long work in the watcher's loop, in short turns: hooks and events are answered in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


async def in_turns(work: Iterator[T], turn: float) -> list[T]:
    """Do the steps of `work`, and let the loop's other work go on every `turn` seconds."""
    done = []
    began = time.monotonic()
    for found in work:
        done.append(found)
        if time.monotonic() - began > turn:
            await asyncio.sleep(0)
            began = time.monotonic()
    return done
