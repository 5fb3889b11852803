"""Samples the run times of all VMs' threads repeatedly, and books them by sandbox, role and place.

It works in slices of a millisecond, so that the event loop is not blocked. A process of which no thread ran since the
last round costs one system call.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, VmThread
from vmpin.domain.sandbox_placement import Placement
from vmpin.features.common.cpu_times import Ran, Schedstat, process_ran
from vmpin.features.common.samples import RunListener
from vmpin.features.proof.residency_ledger import Proof, ResidencyLedger, StrayRun
from vmpin.reconcile.view import NodeView
from vmpin.vmm.virtual_machine import Process, Vm

if TYPE_CHECKING:
    from vmpin.features.proof.run_time_books import RunTimeBooks

#: Length of a slice, and of the pause after it (seconds).
SLICE, BREATH = 0.001, 0.005
#: Sampling uses at most this share of one CPU: if it would need more, it is done less often.
SHARE = 0.01


def _ticks() -> int:
    """Clock ticks since boot (CLOCK_BOOTTIME, as start times are)."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


@dataclass(slots=True)
class _Meter:
    """A thread at its last sample. `place` was its placement then."""

    ran: int
    waited: int
    migrations: int | None
    place: CpuSet | None


@dataclass(slots=True)
class _MeteredProcess:
    """A process at its last sample. `clock` is its total run time, `booked` the part that was booked since its first
    sample, at which the clock was `begun`; `unseen` is the rest in the sandbox's account. Threads created after
    `since` (clock ticks since boot) count from their creation."""

    begun: int | None
    since: int
    clock: int | None = None
    booked: int = 0
    unseen: int = 0
    placement: Placement | None = None
    meters: dict[ThreadId, _Meter] = field(default_factory=dict)


class Sampler:
    """Books from its creation on: earlier run time of a thread is not booked.

    :param ledger: has begun. :param books: in which it survives a restart; None for none.
    """

    def __init__(self, view: NodeView, ledger: ResidencyLedger, books: RunTimeBooks | None = None) -> None:
        self.view = view
        self.listener: RunListener | None = None
        self.ledger = ledger
        self.books = books
        self.host = Schedstat(view.proc)
        #: Rounds since it began, and CPU seconds that the last one took.
        self.rounds = 0
        self.cost = 0.0
        self._begun = _ticks()
        self._metered: dict[ThreadId, _MeteredProcess] = {}
        #: Processes that belong to no VM at present, but still run.
        self._away: set[ThreadId] = set()
        self._waiting: list[SandboxId] = []
        self._spent = 0.0
        self._last = time.monotonic()

    def turn(self, every: float) -> float:
        """Sample for one slice. :param every: seconds between rounds. :returns: seconds until the next call."""
        return max(every, self.cost / SHARE) if self._step(SLICE) else BREATH

    def round(self) -> None:
        """Sample a whole round at once."""
        self._waiting.clear()
        self._step(float("inf"))

    def _step(self, budget: float) -> bool:
        """Sample VMs for `budget` seconds. :returns: True when the round is over."""
        if not self._waiting:
            self._waiting = list(self.view.vms)
            self._spent = 0.0
            if self.listener is not None:
                self.listener.round_begins()
        began, cost = time.perf_counter(), time.thread_time()
        while self._waiting:
            if (vm := self.view.vms.get(self._waiting.pop())) is not None:
                self._sample(vm)
            if time.perf_counter() - began > budget:
                break
        over = not self._waiting
        if over:
            self._end()
        self._spent += time.thread_time() - cost
        if over:
            self.cost = self._spent
        return over

    def _end(self) -> None:
        now = time.monotonic()
        self.ledger.watched += now - self._last
        self._last = now
        self.rounds += 1
        vms = self.view.vms
        here = {process.id for vm in vms.values() for process in vm.processes()}
        here |= {thread.id for vm in vms.values() for thread in vm.kernel_threads}
        gone = self._metered.keys() - here
        for process in gone:
            del self._metered[process]
        self._away = {process for process in (self._away | gone) - self._metered.keys()
                      if process_ran(process.tid) is not None}
        self.ledger.end([sandbox for sandbox in self.ledger.sandboxes if sandbox not in vms])
        if self.listener is not None:
            self.listener.round_ended()
        if self.ledger.due(time.time()):
            self.ledger.mark(time.time())
        if self.books is not None:
            self.books.write()

    def _sample(self, vm: Vm) -> None:
        self.ledger.of(vm.sandbox)
        placement = self.view.placements.get(vm.sandbox)
        for process in vm.processes():
            self._process(vm.sandbox, process, placement)
        for thread in vm.kernel_threads:
            metered = self._metered.get(thread.id) or self._open(thread.id, None)
            self._threads(vm.sandbox, metered, (thread,), placement)
        if self.listener is not None:
            self.listener.sampled(vm.sandbox)

    def sample(self, sandbox: SandboxId) -> None:
        """Sample one VM at once, if there is one."""
        if (vm := self.view.vms.get(sandbox)) is not None:
            self._sample(vm)

    def _process(self, sandbox: SandboxId, process: Process, placement: Placement | None) -> None:
        clock = process_ran(process.pid)
        metered = self._metered.get(process.id)
        if metered is not None and clock is not None and clock == metered.clock and placement is metered.placement:
            return  # none of its threads ran, and its placement is unchanged
        with self.host.tasks_of(process.pid):
            main = self.host.where(process.pid, process.pid)
            if main is None or main.starttime != process.id.starttime:
                return  # it has ended, and the pid may belong to another process
            metered = metered or self._open(process.id, clock)
            metered.clock, metered.placement = clock, placement
            self._threads(sandbox, metered, process.threads.values(), placement)
        if clock is not None and metered.begun is not None:
            unseen = clock - metered.begun - metered.booked
            self.ledger.of(sandbox).unseen += unseen - metered.unseen
            if self.listener is not None:
                self.listener.unplaced(sandbox, unseen - metered.unseen)
            metered.unseen = unseen

    def _open(self, process: ThreadId, clock: int | None) -> _MeteredProcess:
        """Begin to meter a process. If it belonged to no VM for a while (watch.only, a claim), a part of its run
        time is booked already and its CPUs meanwhile are unknown: then it counts from now on."""
        since = _ticks() if process in self._away else self._begun
        return self._metered.setdefault(process, _MeteredProcess(
            0 if clock is not None and process.starttime > since else clock, since))

    def _threads(self, sandbox: SandboxId, metered: _MeteredProcess, threads: Collection[VmThread],
                 placement: Placement | None) -> None:
        read, meters = self.host.ran, metered.meters
        for thread in threads:
            now = read(thread.pid, thread.id.tid)
            if now is None:
                continue
            meter = meters.get(thread.id)
            place = None if placement is None else placement.cpus_for(thread.role, thread.vcpu)
            if meter is not None and now.ran == meter.ran:
                meter.place = place
                continue
            where = self.host.where(thread.pid, thread.id.tid)
            if where is None or where.starttime != thread.id.starttime:
                continue  # it has ended, and another thread has its tid
            migrations = self.host.migrations(thread.pid, thread.id.tid)
            if meter is None:
                meter = meters[thread.id] = _Meter(now.ran, now.waited, migrations, place)
                if thread.id.starttime <= metered.since:
                    continue
                # Created since the last round: all its run time counts; its first CPU is unknown.
                meter.ran = meter.waited = 0
                meter.migrations = None
            self._book(sandbox, thread, metered, now, where.cpu, migrations, place)
            meter.migrations = migrations
        if len(threads) < len(meters):
            for gone in meters.keys() - {thread.id for thread in threads}:
                del meters[gone]

    def _book(self, sandbox: SandboxId, thread: VmThread, metered: _MeteredProcess, now: Ran, cpu: int,
              migrations: int | None, place: CpuSet | None) -> None:
        """Book the run time since the last sample to the thread's current CPU. The thread has a meter."""
        account, meter = self.ledger.of(sandbox).of(thread.role), metered.meters[thread.id]
        spent = now.ran - meter.ran
        account.waited += now.waited - meter.waited
        moves = None if migrations is None or meter.migrations is None else migrations - meter.migrations
        account.migrations += moves or 0
        if self.listener is not None:
            self.listener.ran(sandbox, spent, cpu, moves == 0, place if place == meter.place else None)
        if place is None:
            account.free += spent
        elif cpu in place:
            account.placed += spent
            if moves == 0:
                account.certain += spent
        elif meter.place is not None and place != meter.place and cpu in meter.place:
            account.placed += spent  # its placement changed in between, and it was on the old one
        else:
            account.elsewhere += spent
            when = time.time()
            self.ledger.record_stray(StrayRun(sandbox, thread.role, thread.vcpu, thread.id.tid, cpu, place, when, when,
                                       spent), thread.id)
        metered.booked += spent
        meter.ran, meter.waited, meter.place = now.ran, now.waited, place

    def strayed(self, sandbox: SandboxId, thread: VmThread, place: CpuSet) -> None:
        """Book a thread that is about to be put back, if it is outside its placement: the next sample would not show
        that. Called by the pinner's drift tracker."""
        vm = self.view.vms.get(sandbox)
        metered = None if vm is None else self._metered.get(vm.main_of(thread))
        meter = None if metered is None else metered.meters.get(thread.id)
        if metered is None or meter is None:
            return
        with contextlib.suppress(OSError):  # perhaps out of descriptors: the repair continues
            now, where = self.host.ran(thread.pid, thread.id.tid), self.host.where(thread.pid, thread.id.tid)
            if (now is not None and now.ran > meter.ran and where is not None and where.cpu not in place
                    and where.starttime == thread.id.starttime):
                # Migrations count from the last sample: this move is one of them.
                self._book(sandbox, thread, metered, now, where.cpu, None, place)

    def since(self, when: float) -> Proof:
        """The books from a time (CLOCK_REALTIME, seconds) up to now."""
        self.round()
        return self.ledger.since(when, time.time())

    def close(self) -> None:
        """Take a last sample, and begin to write it; the listener is closed."""
        self.round()
        self.ledger.mark(time.time())
        if self.books is not None:
            self.books.write(0.0)
        if self.listener is not None:
            self.listener.close()
