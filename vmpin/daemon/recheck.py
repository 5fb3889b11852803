"""When sandboxes are looked at again of which something was told: soon, and then ever more seldom.

A VMM makes its vCPU threads, and hotplugs more, in the moments after the runtime called. What stays out: the look
itself (watcher).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable

from vmpin.domain.model import SandboxId

#: Seconds from one look to the next.
STEPS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
#: Which time it is again when another thread without a name was born meanwhile.
UNNAMED = 4


class RecheckSchedule:
    """Of all sandboxes; used in one event loop."""

    def __init__(self) -> None:
        #: Which time it is, and when (time.monotonic()).
        self._next: dict[SandboxId, tuple[int, float]] = {}
        self._changed = asyncio.Event()

    def soon(self, sandboxes: Iterable[SandboxId]) -> None:
        """From the start."""
        due = time.monotonic() + STEPS[0]
        for sandbox in sandboxes:
            self._next[sandbox] = 0, due
            self._changed.set()

    def unless_due(self, sandboxes: Iterable[SandboxId]) -> None:
        """From the start, but for those that are to be looked at again anyway."""
        self.soon([sandbox for sandbox in sandboxes if sandbox not in self._next])

    def more(self, sandboxes: Iterable[SandboxId]) -> None:
        """A thread came that bears no name. Such can come all the time: not ever from the start again."""
        now = time.monotonic()
        for sandbox in sandboxes:
            if sandbox not in self._next:
                self.soon([sandbox])
                continue
            step, due = self._next[sandbox]
            if step > UNNAMED:
                self._next[sandbox] = UNNAMED, min(due, now + STEPS[UNNAMED])
                self._changed.set()

    async def due(self) -> list[SandboxId]:
        """Wait until there are some to look at. They stay due until they were `looked` at."""
        while True:
            self._changed.clear()
            now = time.monotonic()
            found = [sandbox for sandbox, (_, when) in self._next.items() if when <= now]
            if found:
                return found
            pause = min((when for _, when in self._next.values()), default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if pause is None else pause - now):
                    await self._changed.wait()

    def looked(self, sandboxes: Iterable[SandboxId]) -> list[SandboxId]:
        """They were. :returns: those for which it was the last time."""
        now, last = time.monotonic(), []
        for sandbox in sandboxes:
            step = self._next[sandbox][0] + 1
            if step < len(STEPS):
                self._next[sandbox] = step, now + STEPS[step]
            else:
                del self._next[sandbox]
                last.append(sandbox)
        return last
