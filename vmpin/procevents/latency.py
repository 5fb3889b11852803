"""When threads were born, and when each had its place: kept until it is known, then added to its sandbox's account.

What stays out: placing them (placer, reconciler).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import SandboxId, ThreadRole, VmmType, VmThread
from vmpin.host import affinity
from vmpin.pinning.apply import Outcome, Result
from vmpin.placement import newborn as birth
from vmpin.placement.newborn import LatencyAccount
from vmpin.reconcile.reconciler import Reconciler
from vmpin.vmm.inventory import Vm

#: A thread whose name comes has it within a millisecond; one that bears none may be told by a later pass, of which the
#: last comes so many seconds after its birth.
_NAMED, _TOLD = 1.0, 8.0
#: Nanoseconds that the word of a birth may lie in the connector's buffer.
_LATE = 60 * 10**9
#: Of so many at most it is remembered when they were born.
_MOST = 4096
#: And of so many that it was heard of them.
_HEARD = 65536
_TICK = 1 / os.sysconf("SC_CLK_TCK")


class Placed(NamedTuple):
    """When a thread was seen to have the mask of its role (CLOCK_MONOTONIC, ns), that mask, whether it is outside and
    left to it, and whether that is news: else it was booked before."""

    at: int
    cpus: CpuSet
    loose: bool
    news: bool = True


class _Newborn(NamedTuple):
    """A VMM's thread that may turn out to be a vCPU or the like, which have places of their own. Its number is enough
    to know it: the birth of whoever gets that later is told, too."""

    sandbox: SandboxId
    #: CLOCK_MONOTONIC, ns.
    born: int
    placed: Placed


def left_alone(vm: Vm | None, thread: VmThread) -> bool:
    """Whether a thread was born in a shim whose VMM did not run yet: the shim keeps its mask then (placer), so a
    thread outside the sandbox's CPUs is no leak. Dragonball's VMM is the shim, and runs from its first vCPU on."""
    if vm is None:
        return False
    if thread.role is ThreadRole.SHIM:
        return thread.id.starttime <= vm.vmm.id.starttime
    if vm.type is not VmmType.DRAGONBALL or thread.role is ThreadRole.VCPU:
        return False
    vcpus = [each.id.starttime for each in vm.vmm.threads.values() if each.role is ThreadRole.VCPU]
    return bool(vcpus) and thread.id.starttime <= min(vcpus)


class LatencyBook:
    """The accounts are the reconciler's."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._view, self._tally = reconciler.view, reconciler.tally
        self._account = reconciler.birth_account
        self._newborn: dict[int, _Newborn] = {}
        #: When everything was last looked at, by CLOCK_BOOTTIME: who was not there then was born since.
        self._looked = time.clock_gettime(time.CLOCK_BOOTTIME)
        #: The threads of which it was heard since.
        self._heard: set[int] = set()
        #: The threads that were booked before it was heard of them, when (CLOCK_MONOTONIC, ns), and whether they count
        #: as told of all the same.
        self._ahead: dict[int, tuple[int, bool]] = {}
        #: The CPUs that were each sandbox's at any time since.
        self._masks: dict[SandboxId, CpuSet] = {}

    def account(self, sandbox: SandboxId) -> LatencyAccount:
        return self._account(sandbox)

    def leaked(self, sandbox: SandboxId, seconds: float) -> None:
        """One was allowed outside, for so long."""
        self.account(sandbox).add_leak(seconds)
        self._tally.leaks.observe(seconds)

    def meets(self, sandbox: SandboxId, tid: int, mask: CpuSet) -> None:
        """A thread of it is looked at, and its sandbox's CPUs are these."""
        if len(self._heard) > _HEARD:
            self._heard.clear()
        self._heard.add(tid)
        self._masks[sandbox] = self._masks.get(sandbox, EMPTY) | mask

    def ahead(self, tid: int, told: bool) -> None:
        """One was met and booked; the word of its birth may be on its way."""
        if len(self._ahead) > _HEARD:
            self._ahead.clear()
        self._ahead[tid] = time.monotonic_ns(), told

    def tells(self, sandbox: SandboxId, tid: int, born: int) -> bool:
        """A birth is told of. :returns: whether that is news: else all but that has been booked."""
        at, told = self._ahead.get(tid, (-1, False))
        news = born > at
        if not news:
            self._ahead[tid] = at, True
        self.account(sandbox).reported += news or not told
        return news

    def placed(self, sandbox: SandboxId, born: int, placed: Placed) -> None:
        """One has its place for good."""
        if placed.news:
            self._in_place(sandbox, (placed.at - born) / 1e9)

    def awaits(self, sandbox: SandboxId, tid: int, born: int, placed: Placed) -> None:
        """One has its place, unless it turns out to be one of the special ones."""
        if not placed.news:
            return
        if len(self._newborn) >= _MOST:
            self.settled(next(iter(self._newborn)))
        self._newborn[tid] = _Newborn(sandbox, born, placed)

    def moved(self, tid: int, cpus: CpuSet) -> None:
        """One that is awaited has the place of what it turned out to be."""
        newborn = self._newborn.get(tid)
        if newborn is not None:
            now = time.monotonic_ns()
            if newborn.placed.loose:
                self.leaked(newborn.sandbox, (now - newborn.born) / 1e9)
            self._newborn[tid] = newborn._replace(placed=Placed(now, cpus, False))

    def settled(self, tid: int) -> None:
        """What it does is known, or nobody will know."""
        newborn = self._newborn.pop(tid, None)
        if newborn is not None:
            self.placed(newborn.sandbox, newborn.born, newborn.placed)

    def passed(self, results: Iterable[Result], everything: bool) -> None:
        """After a pass, over everything or over some sandboxes."""
        for result in results:
            self._found(result)
        view, now = self._view, time.monotonic_ns()
        for tid, newborn in list(self._newborn.items()):
            vm = view.vms.get(newborn.sandbox)
            thread = None if vm is None else vm.vmm.threads.get(tid)
            if thread is not None and thread.role is not ThreadRole.EMULATOR:
                self._told(newborn, thread)
            # One whose mask is never what it is to be (its cgroup trims it) is waited for no longer than the others.
            if vm is None or (now - newborn.born) / 1e9 > (_NAMED if vm.found_by == "names" else _TOLD):
                self.settled(tid)
        if everything:
            self._heard.clear()
            self._ahead = {tid: known for tid, known in self._ahead.items() if now - known[0] < _LATE}
            self._looked = time.clock_gettime(time.CLOCK_BOOTTIME)
            self._masks = {sandbox: placement.mask for sandbox, placement in view.placements.items()}

    def _told(self, newborn: _Newborn, thread: VmThread) -> None:
        """A thread turned out to be one of the special ones."""
        tid, placement = thread.id.tid, self._view.placements.get(newborn.sandbox)
        wanted = None if placement is None else placement.cpus_for(thread.role, thread.vcpu)
        if wanted is not None and wanted != newborn.placed.cpus:
            mask = affinity.get(tid)
            if mask is not None and CpuSet(mask) != wanted:
                return  # the pass after the next, maybe
            self.moved(tid, wanted)
        self.settled(tid)

    def _found(self, result: Result) -> None:
        """A thread of whose birth nobody told could run outside until a pass found it."""
        operation, now = result.operation, time.clock_gettime(time.CLOCK_BOOTTIME)
        sandbox, born = operation.sandbox, operation.thread.id.starttime * _TICK
        placement = self._view.placements.get(sandbox)
        if placement is None or result.got is None or result.outcome is Outcome.REFUSED:
            return
        if left_alone(self._view.vms.get(sandbox), operation.thread):
            return
        tid, mine = operation.thread.id.tid, self._masks.get(sandbox, EMPTY) | placement.mask
        unheard = tid not in self._heard
        self.meets(sandbox, tid, placement.mask)
        if unheard and born >= self._looked and birth.leaves_sandbox(operation.was, mine, operation.cpus):
            self.ahead(tid, told=False)
            self.leaked(sandbox, now - born)
            self._in_place(sandbox, now - born)

    def _in_place(self, sandbox: SandboxId, seconds: float) -> None:
        self.account(sandbox).add_placed(seconds)
        self._tally.placement_latency.observe(seconds)
