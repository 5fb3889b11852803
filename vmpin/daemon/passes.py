"""The watcher's passes: each is counted; guests, QMP queries and rechecks follow it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from vmpin import log
from vmpin.config.timeouts import Timeouts
from vmpin.daemon.recheck_schedule import WAITED, RecheckSchedule
from vmpin.daemon.state_saving import StateSaving
from vmpin.domain.model import SandboxId
from vmpin.guests.manager import GuestManager
from vmpin.pinning.apply import Outcome
from vmpin.procevents.feed import ProcEventsFeed
from vmpin.reconcile.reconciler import PassReport, Reconciler
from vmpin.vmm.virtual_machine import Vm

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
        self._turns = -1  #: The value of `NodeView.placement_turns` after the last pass.

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
        self.rechecks.restart(filter(self._view.may_get_vm, sandboxes), WAITED if waited else 0)

    def record(self, report: PassReport, why: str, since: float | None = None) -> None:
        """Count a pass, and have guests and rechecks follow it."""
        counters = self._node_state.counters
        counters.passes[why] += 1
        counters.pass_seconds.observe(report.seconds)
        if since is not None and report.count(Outcome.DONE):
            counters.pin_latency.observe(time.perf_counter() - since)
        if self._proc_events is not None:
            self._proc_events.after_pass(report, everything=why in ("resync", "request"))
        turns, self._turns = self._turns, self._view.placement_turns
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
