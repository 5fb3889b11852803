"""When sandboxes are reconciled again after a report on them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable

from vmpin.config.timeouts import TIMEOUTS
from vmpin.domain.model import SandboxId
from vmpin.named_tuple import NamedTuple

UNNAMED = 4  #: Step to which a schedule falls back when another unnamed thread appears.
WAITED = 4  #: Step with which a settled VM's schedule begins after events that have waited (event_queue.PATIENCE).
#: The steps at which a settled VM is rechecked. Later the resync finds what no event reports, as at any other time.
OF_SETTLED = (3, 6)


class Recheck(NamedTuple):
    """The next recheck of a sandbox: its step, and when it is due (time.monotonic()). From `early` on another pass
    over the sandbox takes its place."""

    step: int
    due: float
    early: float = math.inf


class RecheckSchedule:
    """When sandboxes are reconciled again after a report on them: soon, then ever more seldom. A VMM creates its vCPU
    threads, and hotplugs more, in the moments after the runtime called. A settled VM is rechecked for its masks alone,
    which change without an event when the runtime moves threads to another cgroup.
    :param pauses: seconds before each recheck. :param settled: see `NodeView.is_settled`."""

    def __init__(self, pauses: tuple[float, ...] = TIMEOUTS.rechecks,
                 settled: Callable[[SandboxId], bool] = lambda sandbox: False) -> None:
        self._pauses, self._settled = pauses, settled
        self.pending: dict[SandboxId, Recheck] = {}  #: The next recheck of each sandbox that has one.
        self._changed = asyncio.Event()

    def _next(self, sandbox: SandboxId, step: int) -> Recheck | None:
        """The next recheck, at this step or a later one; None after the last."""
        last, settled = len(self._pauses) - 1, self._settled(sandbox)
        if step > (min(last, OF_SETTLED[-1]) if settled else last):
            return None
        at = min(last, next(at for at in OF_SETTLED if at >= step)) if settled else step
        now, pause = time.monotonic(), sum(self._pauses[step:at + 1])
        return Recheck(at, now + pause, now + pause / 2 if settled else math.inf)

    def restart(self, sandboxes: Iterable[SandboxId], step: int = 0) -> None:
        """Begin the schedule of each sandbox, from its first step; that of a settled VM from `step` on."""
        for sandbox in sandboxes:
            if (first := self._next(sandbox, step if self._settled(sandbox) else 0)) is not None:
                self.pending[sandbox] = first
                self._changed.set()

    def passed(self, sandboxes: Iterable[SandboxId]) -> None:
        """Take a pass over sandboxes for their next rechecks, where it is early enough for that."""
        now = time.monotonic()
        if early := [sandbox for sandbox in sandboxes
                     if sandbox in self.pending and self.pending[sandbox].early <= now]:
            self.checked(early)
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
            step, due, _ = self.pending[sandbox]
            if step > UNNAMED:
                self.pending[sandbox] = Recheck(UNNAMED, min(due, now + self._pauses[UNNAMED]))
                self._changed.set()

    async def due(self) -> list[SandboxId]:
        """Wait for sandboxes that are due, and return with them those of which it is early enough. They stay due until
        they are `checked`."""
        while True:
            self._changed.clear()
            now = time.monotonic()
            if any(recheck.due <= now for recheck in self.pending.values()):
                return [sandbox for sandbox, recheck in self.pending.items() if min(recheck.due, recheck.early) <= now]
            timer = None  # alone, as a timeout costs an exception
            if (first := min((recheck.due for recheck in self.pending.values()), default=None)) is not None:
                timer = asyncio.get_running_loop().call_later(first - now, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    def checked(self, sandboxes: Iterable[SandboxId]) -> list[SandboxId]:
        """Advance the schedule of sandboxes that were reconciled. :returns: those whose last recheck this was; not one
        whose place a pass has taken since it was due, as for a process that the recheck found."""
        last = []
        for sandbox in sandboxes:
            if sandbox not in self.pending:
                continue
            after = self._next(sandbox, self.pending[sandbox].step + 1)
            if after is not None:
                self.pending[sandbox] = after
            else:
                del self.pending[sandbox]
                last.append(sandbox)
        return last
