"""The watcher's passes: each is counted; guests, QMP queries and rechecks follow it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable

from vmpin import log
from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.daemon.state_saving import StateSaving
from vmpin.domain.model import SandboxId
from vmpin.guests.manager import GuestManager
from vmpin.named_tuple import NamedTuple
from vmpin.pinning.apply import Outcome
from vmpin.procevents.feed import ProcEventsFeed
from vmpin.reconcile.reconciler import PassReport, Reconciler
from vmpin.vmm.virtual_machine import Vm

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


logger = logging.getLogger(__name__)


class Passes:
    """:param saving: saves the state after a pass. :param proc_events: None if process events are not used.
    :param passed: called after each pass."""

    def __init__(self, reconciler: Reconciler, guests: GuestManager, saving: StateSaving,
                 proc_events: ProcEventsFeed | None, passed: Callable[[], None], timeouts: Timeouts) -> None:
        self._reconciler, self._view = reconciler, reconciler.view
        self._node_state = reconciler.node_state
        self._guests, self._saving, self._proc_events = guests, saving, proc_events
        self._passed, self._timeouts = passed, timeouts
        self.rechecks = RecheckSchedule(timeouts.rechecks, self._view.is_settled)
        self._queries: set[asyncio.Task[None]] = set()
        self._turns = -1  #: The value of `NodeState.placement_turns` after the last pass.

    @log.operation()
    def run(self, sandboxes: Iterable[SandboxId], why: str, since: float | None = None, scan: bool = True) -> None:
        """Reconcile sandboxes.
        :param since: when the event came that causes the pass (time.perf_counter()).
        :param scan: as for `Reconciler.reconcile`."""
        sandboxes = set(sandboxes)
        self.record(self._reconciler.reconcile(sandboxes, scan=scan), why, since)
        self.rechecks.passed(sandboxes)

    def follow_hook(self, sandboxes: set[SandboxId], since: float) -> None:
        """Reconcile the sandboxes of a hook's message now, and again while they settle."""
        self.run(sandboxes, "hook", since)
        self.recheck_soon(sandboxes)

    def recheck_soon(self, sandboxes: Iterable[SandboxId], waited: bool = False) -> None:
        """Have sandboxes rechecked from the first step on, those that have a VM or may get one.
        :param waited: whether the reports on them have waited: the pass over them was the first recheck."""
        self.rechecks.restart(filter(self._node_state.may_get_vm, sandboxes), WAITED if waited else 0)

    def record(self, report: PassReport, why: str, since: float | None = None) -> None:
        """Count a pass, and have guests and rechecks follow it."""
        counters = self._node_state.counters
        counters.passes[why] += 1
        counters.pass_seconds.observe(report.seconds)
        if since is not None and report.count(Outcome.DONE):
            counters.pin_latency.observe(time.perf_counter() - since)
        if self._proc_events is not None:
            self._proc_events.after_pass(report, everything=why in ("resync", "request"))
        turns, self._turns = self._turns, self._node_state.placement_turns
        if why != "recheck" or report.results or self._turns != turns:  # most rechecks change nothing
            self._guests.update(self._view)
            self._passed()
        self.rechecks.begin({result.operation.sandbox for result in report.results
                             if result.outcome is Outcome.WAITING})
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("pass why=%s vms=%d set=%d refused=%d ms=%.1f", why, report.vms, report.count(Outcome.DONE),
                         report.count(Outcome.REFUSED), report.seconds * 1000)

    async def recheck(self) -> None:
        """Reconcile again, ever more seldom, sandboxes that a source reported on. Until cancelled."""
        while True:
            due = await self.rechecks.due()
            with log.operation():
                self.record(self._reconciler.reconcile(due), "recheck")
                self.ask_qmp()
                self._saving.save_soon(only_if_unsaved=True)
                self._saving.save_with_others()
                for sandbox in self.rechecks.checked(due):
                    vm = self._view.vms.get(sandbox)
                    if vm is not None and not vm.vcpus_identified:
                        self.report_unidentified(vm)

    def report_unidentified(self, vm: Vm) -> None:
        """Log that a VM's vCPU threads were not identified in time. A VMM of one thread starts slowly, and has not
        created its vCPUs yet: no fault."""
        logger.log(logging.WARNING if len(vm.vmm.stats) > 1 else logging.DEBUG,
                   "vCPU threads not identified sandbox=%s: after %.1f s (vCPUs: %d, threads: %d)", vm.sandbox,
                   sum(self._timeouts.rechecks), len(vm.vcpus), len(vm.vmm.stats))

    def ask_qmp(self) -> None:
        """Query QEMUs whose threads have no names; a pass of its own places what each answers."""
        for vm in self._node_state.needing_qmp():
            task = asyncio.create_task(self._query(vm))
            self._queries.add(task)
            task.add_done_callback(self._queries.discard)

    async def _query(self, vm: Vm) -> None:
        from vmpin.vmm import qmp  # here, as the first pass waits for imports at the top

        if await qmp.query_threads(vm) and self._view.vms.get(vm.sandbox) is vm:
            self.run([vm.sandbox], "qmp")
            self._saving.save_soon()

    def stop(self) -> None:
        """Cancel the queries under way."""
        for query in self._queries:
            query.cancel()
