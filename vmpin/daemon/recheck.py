"""When sandboxes are reconciled again after a report on them: soon, and then ever more seldom.

A VMM makes its vCPU threads, and hotplugs more, in the moments after the runtime called."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import NamedTuple

from vmpin.config.timeouts import TIMEOUTS
from vmpin.domain.model import SandboxId

UNNAMED = 4  #: Step to which a schedule falls back when another unnamed thread appears.


class Recheck(NamedTuple):
    """The next recheck of a sandbox: its step, and when it is due (time.monotonic())."""

    step: int
    due: float


class RecheckSchedule:
    """The rechecks of all sandboxes. :param pauses: seconds before each recheck."""

    def __init__(self, pauses: tuple[float, ...] = TIMEOUTS.rechecks) -> None:
        self._pauses = pauses
        self.pending: dict[SandboxId, Recheck] = {}  #: The next recheck of each sandbox that has one.
        self._changed = asyncio.Event()

    def restart(self, sandboxes: Iterable[SandboxId]) -> None:
        """Begin the schedule of each sandbox, from its first step."""
        due = time.monotonic() + self._pauses[0]
        for sandbox in sandboxes:
            self.pending[sandbox] = Recheck(0, due)
            self._changed.set()

    def begin(self, sandboxes: Iterable[SandboxId]) -> None:
        """Begin the schedule of each sandbox that has no recheck pending."""
        self.restart([sandbox for sandbox in sandboxes if sandbox not in self.pending])

    def unnamed_thread(self, sandboxes: Iterable[SandboxId]) -> None:
        """A thread without a name appeared in each sandbox. Such threads may appear all the time: a schedule that has
        advanced further falls back to the step UNNAMED, and not to the first."""
        now = time.monotonic()
        for sandbox in sandboxes:
            if sandbox not in self.pending:
                self.restart([sandbox])
                continue
            step, due = self.pending[sandbox]
            if step > UNNAMED:
                self.pending[sandbox] = Recheck(UNNAMED, min(due, now + self._pauses[UNNAMED]))
                self._changed.set()

    async def due(self) -> list[SandboxId]:
        """Wait for sandboxes that are due. They stay due until they are `checked`."""
        while True:
            self._changed.clear()
            now = time.monotonic()
            found = [sandbox for sandbox, recheck in self.pending.items() if recheck.due <= now]
            if found:
                return found
            first = min((recheck.due for recheck in self.pending.values()), default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if first is None else first - now):
                    await self._changed.wait()

    def checked(self, sandboxes: Iterable[SandboxId]) -> list[SandboxId]:
        """Advance the schedule of sandboxes that were reconciled. :returns: those whose last recheck this was."""
        now, last = time.monotonic(), []
        for sandbox in sandboxes:
            step = self.pending[sandbox].step + 1
            if step < len(self._pauses):
                self.pending[sandbox] = Recheck(step, now + self._pauses[step])
            else:
                del self.pending[sandbox]
                last.append(sandbox)
        return last
