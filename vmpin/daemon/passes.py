"""The watcher's passes: each is counted, and the guests, the rechecks and QMP queries follow it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from vmpin import log
from vmpin.config.timeouts import Timeouts
from vmpin.daemon.recheck import RecheckSchedule
from vmpin.daemon.state_saving import StateSaving
from vmpin.domain.model import SandboxId
from vmpin.guests.manager import GuestManager
from vmpin.pinning.apply import Outcome
from vmpin.procevents.feed import ProcEventsFeed
from vmpin.reconcile.reconciler import PassReport, Reconciler
from vmpin.vmm.virtual_machine import Vm

logger = logging.getLogger(__name__)


class Passes:
    """:param saving: saves the state afterwards. :param proc_events: None if process events are not used.
    :param touched: called after each pass."""

    def __init__(self, reconciler: Reconciler, guests: GuestManager, saving: StateSaving,
                 proc_events: ProcEventsFeed | None, touched: Callable[[], None], timeouts: Timeouts) -> None:
        self._reconciler, self._view = reconciler, reconciler.view
        self._node_state = reconciler.node_state
        self._guests, self._saving = guests, saving
        self._proc_events = proc_events
        self._touched = touched
        self._timeouts = timeouts
        self.rechecks = RecheckSchedule(timeouts.rechecks)
        self._queries: set[asyncio.Task[None]] = set()

    @log.operation()
    def run(self, sandboxes: Iterable[SandboxId], why: str, since: float | None = None, scan: bool = True) -> None:
        """Reconcile some sandboxes.
        :param since: when the event came that the pass is made for, by time.perf_counter().
        :param scan: as for `Reconciler.reconcile`."""
        self.record(self._reconciler.reconcile(sandboxes, scan=scan), why, since)

    def follow_hook(self, sandboxes: set[SandboxId], since: float) -> None:
        """Reconcile the sandboxes of a hook's message now, and again while they settle."""
        self.run(sandboxes, "hook", since)
        self.rechecks.restart(sandboxes)

    def record(self, report: PassReport, why: str, since: float | None = None) -> None:
        """Count a pass, and have the guests and the rechecks follow it."""
        counters = self._node_state.counters
        counters.passes[why] += 1
        counters.pass_seconds.observe(report.seconds)
        if since is not None and report.count(Outcome.DONE):
            counters.pin_latency.observe(time.perf_counter() - since)
        if self._proc_events is not None:
            self._proc_events.after_pass(report, everything=why in ("resync", "request"))
        self._guests.update(self._view)
        self._touched()
        self.rechecks.begin({result.operation.sandbox for result in report.results
                             if result.outcome is Outcome.WAITING})
        logger.debug("pass why=%s vms=%d set=%d refused=%d ms=%.1f", why, report.vms, report.count(Outcome.DONE),
                     report.count(Outcome.REFUSED), report.seconds * 1000)

    async def recheck(self) -> None:
        """Reconcile again, ever more seldom, sandboxes that a source reported on. Until cancelled."""
        while True:
            due = await self.rechecks.due()
            with log.operation():
                self.run(due, "recheck")
                self.ask_qmp()
                self._saving.save_soon(only_if_unsaved=True)
                for sandbox in self.rechecks.checked(due):
                    vm = self._view.vms.get(sandbox)
                    if vm is not None and not vm.vcpus_identified:
                        self.report_unidentified(vm)

    def report_unidentified(self, vm: Vm) -> None:
        """Log that a VM's vCPU threads were not identified in time. One thread is a VMM that has not made its vCPUs
        yet: it starts slowly, which is no fault."""
        logger.log(logging.WARNING if len(vm.vmm.stats) > 1 else logging.DEBUG,
                   "vCPU threads not identified sandbox=%s: after %.1f s (vCPUs: %d, threads: %d)", vm.sandbox,
                   sum(self._timeouts.rechecks), len(vm.vcpus), len(vm.vmm.stats))

    def ask_qmp(self) -> None:
        """Query QEMUs whose threads have no names; what they answer is placed in a pass of its own."""
        for vm in self._node_state.needing_qmp():
            task = asyncio.create_task(self._query(vm))
            self._queries.add(task)
            task.add_done_callback(self._queries.discard)

    async def _query(self, vm: Vm) -> None:
        from vmpin.vmm import qmp  # what is imported at the top the first pass waits for

        if await qmp.ask(vm) and self._view.vms.get(vm.sandbox) is vm:
            self.run([vm.sandbox], "qmp")
            self._saving.save_soon()

    def stop(self) -> None:
        """Cancel the queries under way."""
        for query in self._queries:
            query.cancel()
