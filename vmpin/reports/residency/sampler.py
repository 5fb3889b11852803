"""Samples the threads of all VMs again and again, and books what they ran by where it was asked that they run.

In slices of a millisecond, so that nothing else in the loop waits. A process of which no thread ran since the last
round costs one system call. What stays out: when (watcher), and what it adds up to (proof).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, VmThread
from vmpin.domain.proof import Proof, StrayRun
from vmpin.errors import StateFileError
from vmpin.host.schedstat import Schedstat, process_ran
from vmpin.placement.rules import Placement
from vmpin.reconcile.view import NodeView
from vmpin.reports.residency import books_file
from vmpin.vmm.inventory import Process, Vm

logger = logging.getLogger(__name__)

#: How long samples are taken at a time, and how long others are then let run (seconds).
SLICE, BREATH = 0.001, 0.005
#: Sampling takes at most this share of one CPU: where it would take more, it is done less often.
SHARE = 0.01
_TICKS = os.sysconf("SC_CLK_TCK")


def _ticks() -> int:
    """Clock ticks since boot (CLOCK_BOOTTIME, as start times are)."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


class _Meter:
    """A thread at its last sample. `place` is where it was to run then."""

    __slots__ = ("migrations", "place", "ran", "waited")

    def __init__(self, ran: int, waited: int, migrations: int | None, place: CpuSet | None) -> None:
        self.ran = ran
        self.waited = waited
        self.migrations = migrations
        self.place = place


class _Books:
    """A process at its last sample. `clock` is what it ran in all, `booked` what was booked of it since it was met
    with `begun` on its clock, `unseen` what the sandbox's account has of the rest. Threads that were born after `met`
    (clock ticks since boot) count from their birth."""

    __slots__ = ("begun", "booked", "clock", "met", "meters", "placement", "unseen")

    def __init__(self, begun: int | None, met: int) -> None:
        self.begun = begun
        self.clock = begun
        self.met = met
        self.booked = 0
        self.unseen = 0
        self.placement: Placement | None = None
        self.meters: dict[ThreadId, _Meter] = {}


class Sampler:
    """Begins when made. What a thread ran before that, unless it was born later, is nobody's to tell.

    :param keep: the file in which the books outlive a restart; None keeps them nowhere.
    """

    def __init__(self, view: NodeView, keep: Path | None = None) -> None:
        self.view = view
        self.ledger = view.ledger
        self.keep = keep
        self.host = Schedstat(view.proc)
        #: Rounds since it began, and CPU seconds that the last one took.
        self.rounds = 0
        self.cost = 0.0
        self._begun = _ticks()
        self._books: dict[ThreadId, _Books] = {}
        #: Processes that are no VM's for now, and still run for all that is known.
        self._away: set[ThreadId] = set()
        self._waiting: list[SandboxId] = []
        self._spent = 0.0
        self._last = time.monotonic()
        self._failing = ""
        if keep is not None and self.ledger.began is None:  # else the ledger knows more than the file
            trouble = books_file.load(keep, view.boot_id, self.ledger)
            if trouble:
                logger.warning("%s", trouble)
        if self.ledger.began is None:
            self.ledger.began = time.time()

    def turn(self, every: float) -> float:
        """Sample for a slice, of a round every so many seconds. :returns: after how many seconds to come again."""
        if not self._waiting:
            self._waiting = list(self.view.vms)
            self._spent = 0.0
        return max(every, self.cost / SHARE) if self._step(SLICE) else BREATH

    def round(self) -> None:
        """All of it at once."""
        self._waiting = list(self.view.vms)
        self._spent = 0.0
        self._step(float("inf"))

    def _step(self, budget: float) -> bool:
        """Sample VMs for `budget` seconds. :returns: True when the round is over."""
        began, cost = time.perf_counter(), time.thread_time()
        while self._waiting:
            vm = self.view.vms.get(self._waiting.pop())
            if vm is not None:
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
        here |= {thread.id for vm in vms.values() for thread in vm.kernel}
        gone = self._books.keys() - here
        for each in gone:
            del self._books[each]
        self._away = {each for each in (self._away | gone) - self._books.keys() if process_ran(each.tid) is not None}
        self.ledger.end([sandbox for sandbox in self.ledger.sandboxes if sandbox not in vms])
        if self.ledger.due(time.time()):
            self.ledger.mark(time.time())
            self.save()

    def _sample(self, vm: Vm) -> None:
        self.ledger.of(vm.sandbox)
        placement = self.view.placements.get(vm.sandbox)
        for process in vm.processes():
            self._process(vm.sandbox, process, placement)
        for thread in vm.kernel:
            books = self._books.get(thread.id)
            if books is None:
                books = self._open(thread.id, None)
            self._threads(vm.sandbox, books, (thread,), placement)

    def _process(self, sandbox: SandboxId, process: Process, placement: Placement | None) -> None:
        clock = process_ran(process.pid)
        books = self._books.get(process.id)
        if books is not None and clock is not None and clock == books.clock and placement is books.placement:
            return  # none of its threads ran, and none has another place than it had
        main = self.host.where(process.pid, process.pid)
        if main is None or main.starttime != process.id.starttime:
            return  # it has ended, and the clock may be another's that has its number
        if books is None:
            books = self._open(process.id, clock)
        books.clock, books.placement = clock, placement
        self._threads(sandbox, books, process.threads.values(), placement)
        if clock is not None and books.begun is not None:
            unseen = clock - books.begun - books.booked
            self.ledger.of(sandbox).unseen += unseen - books.unseen
            books.unseen = unseen

    def _open(self, process: ThreadId, clock: int | None) -> _Books:
        """Books of a process that has none. If it was away (watch.only, a claim), some of what it ran is booked, and
        where it ran meanwhile nobody knows: then nothing counts from before now."""
        met = _ticks() if process in self._away else self._begun
        books = self._books[process] = _Books(0 if clock is not None and process.starttime > met else clock, met)
        return books

    def _threads(self, sandbox: SandboxId, books: _Books, threads: Iterable[VmThread],
                 placement: Placement | None) -> None:
        read, meters = self.host.ran, books.meters
        seen = 0
        for thread in threads:
            seen += 1
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
                continue  # it has ended, and another has its number
            migrations = self.host.migrations(thread.pid, thread.id.tid)
            if meter is None:
                meter = meters[thread.id] = _Meter(now.ran, now.waited, migrations, place)
                if thread.id.starttime <= books.met:
                    continue
                # Born while we looked: all that it ever ran counts, and where it began nobody knows.
                meter.ran = meter.waited = 0
                meter.migrations = None
            self._book(sandbox, thread, meter, now.ran, now.waited, where.cpu, migrations, place)
            books.booked += now.ran - meter.ran
            meter.ran, meter.waited, meter.migrations, meter.place = now.ran, now.waited, migrations, place
        if seen < len(meters):
            alive = {thread.id for thread in threads}
            for gone in meters.keys() - alive:
                del meters[gone]

    def _book(self, sandbox: SandboxId, thread: VmThread, meter: _Meter, ran: int, waited: int, cpu: int,
              migrations: int | None, place: CpuSet | None) -> None:
        """Book what a thread ran since its last sample to the CPU it is on now."""
        account = self.ledger.of(sandbox).of(thread.role)
        spent = ran - meter.ran
        account.waited += waited - meter.waited
        moves = None if migrations is None or meter.migrations is None else migrations - meter.migrations
        account.migrations += moves or 0
        if place is None:
            account.free += spent
        elif cpu in place:
            account.placed += spent
            if moves == 0:
                account.certain += spent
        elif meter.place is not None and place != meter.place and cpu in meter.place:
            account.placed += spent  # its place changed in between, and until then it was there
        else:
            account.elsewhere += spent
            now = time.time()
            self.ledger.found(StrayRun(sandbox, thread.role, thread.vcpu, thread.id.tid, cpu, place, now, now, spent),
                              thread.id)

    def strayed(self, sandbox: SandboxId, thread: VmThread, cpu: int, place: CpuSet) -> None:
        """A thread is about to be put back that is on `cpu`, outside its place: at the next sample nothing would tell
        that any more."""
        vm = self.view.vms.get(sandbox)
        books = None if vm is None else self._books.get(vm.main_of(thread))
        meter = None if books is None else books.meters.get(thread.id)
        if books is None or meter is None:
            return
        try:
            now = self.host.ran(thread.pid, thread.id.tid)
        except OSError:
            return  # out of descriptors, as it may be: the repair goes on
        if now is None or now.ran <= meter.ran:
            return
        self._book(sandbox, thread, meter, now.ran, now.waited, cpu, None, place)
        books.booked += now.ran - meter.ran
        # How often it changed CPUs is counted on from its last sample: this way back is one of them.
        meter.ran, meter.waited, meter.place = now.ran, now.waited, place

    # What was found

    def since(self, when: float) -> Proof:
        """What happened since a time (CLOCK_REALTIME, seconds), up to now."""
        self.round()
        return self.ledger.since(when, time.time())

    def save(self) -> None:
        """Write the file; a failure is told once."""
        if self.keep is None:
            return
        try:
            books_file.save(self.keep, self.view.boot_id, self.ledger)
        except StateFileError as err:
            if str(err) != self._failing:
                logger.error("%s (%s)", err, err.hint)
            self._failing = str(err)
        else:
            self._failing = ""

    def close(self) -> None:
        """Take a last sample and keep it."""
        self.round()
        self.ledger.mark(time.time())
        self.save()
