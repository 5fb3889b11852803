"""The placement-latency book: for how long new threads could run outside their sandbox, and when they were in place.

The newborn placer records each new thread; the results of passes add threads without an event. The book counts each
thread once, in its sandbox's `NewbornCounts` and in the histograms of the counters.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from vmpin.cpuset import CpuSet
from vmpin.domain.counters import NewbornCounts
from vmpin.domain.model import SandboxId, ThreadRole, VmThread
from vmpin.domain.sandbox_placement import Placement
from vmpin.host import affinity
from vmpin.host.procfs import seconds_since_boot
from vmpin.named_tuple import NamedTuple
from vmpin.pinning.apply import Outcome, Result
from vmpin.reconcile.reconciler import Reconciler
from vmpin.vmm.virtual_machine import Vm

#: The longest time (ns) that an event may wait in the connector's buffer.
_LATE = 60 * 10**9
#: Maximum number of provisional threads, and of thread ids remembered since the last full pass.
_MOST_PROVISIONAL = 4096
_MOST_SEEN = 65536
#: Seconds after which the role of a VMM's thread is final if names show roles: a thread usually gets its name within a
#: millisecond. And if they do not, so that a later pass has to identify it.
_NAMED, _IDENTIFIED = 1.0, 8.0


class Newborn(NamedTuple):
    """A new thread and its mask before and after placement. Times are CLOCK_MONOTONIC in ns."""

    sandbox: SandboxId
    tid: int
    #: When it was created, or executed its program.
    born: int
    #: When its mask was read, or set.
    at: int
    #: The CPUs of its sandbox, and the CPUs of its role (None: its mask is not managed).
    allowed: CpuSet
    wanted: CpuSet | None
    #: Its mask when first read: None if it had ended by then.
    inherited: CpuSet | None
    #: Its mask now: None if it is not in place, because it has ended or the mask was refused.
    mask: CpuSet | None
    ended: bool = False

    @classmethod
    def of(cls, placement: Placement, tid: int, born: int, wanted: CpuSet | None = None,
           inherited: CpuSet | None = None, mask: CpuSet | None = None, ended: bool = False) -> Newborn:
        """Make an entry for a thread whose mask was read or set just now."""
        return cls(placement.sandbox, tid, born, time.monotonic_ns(), placement.mask, wanted, inherited, mask, ended)

    @property
    def outside(self) -> bool:
        """Whether it was created with CPUs outside its sandbox."""
        return self.inherited is not None and leaves_sandbox(self.inherited, self.allowed, self.wanted)


class LatencyBook:
    """Counts into the node state's `newborn_counts` and counters."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._view = reconciler.view
        node_state = reconciler.node_state
        self._counters, self._counts = node_state.counters, node_state.newborn_counts
        #: New threads of VMMs, by tid, whose roles may still change to one with CPUs of its own. If a tid is reused,
        #: the new thread's event replaces the entry.
        self._provisional: dict[int, Newborn] = {}
        #: Time of the last full pass (CLOCK_BOOTTIME, s): threads that it did not list were created since.
        self._last_full = time.clock_gettime(time.CLOCK_BOOTTIME)
        #: The threads seen since then, and the union of each sandbox's CPUs since then.
        self._seen: set[int] = set()
        self._masks: dict[SandboxId, CpuSet] = {}
        #: Threads that were counted before the event of their creation: when (CLOCK_MONOTONIC, ns), and whether they
        #: were counted as reported.
        self._ahead: dict[int, tuple[int, bool]] = {}

    def record(self, new: Newborn, provisional: bool = False, reported: bool = True) -> None:
        """Count a thread unless it was counted before.
        :param provisional: whether its role may change. Then it counts as in place only when the role is confirmed.
        :param reported: False if its own event has not come yet; that event is not counted again."""
        counts, outside = self._counts[new.sandbox], new.outside
        first = self._count_report(counts, new.tid, new.born)
        if new.inherited is not None:
            self._see(new.sandbox, new.tid, new.allowed)
            counts.born_inside += first and not outside
        counts.ended += first and new.ended
        if first and new.mask is not None:
            if outside and new.wanted is not None:
                self._count_outside(new.sandbox, (new.at - new.born) / 1e9)
            if not provisional:
                self._count_in_place(new.sandbox, (new.at - new.born) / 1e9)
            else:
                if len(self._provisional) >= _MOST_PROVISIONAL:
                    self.confirm(next(iter(self._provisional)))
                self._provisional[new.tid] = new
        if not reported and new.mask is not None:
            self._count_ahead(new.tid, reported=True)

    def moved(self, tid: int, mask: CpuSet) -> None:
        """Record that a thread's role changed and that it has the new role's mask."""
        entry = self._provisional.get(tid)
        if entry is not None:
            now = time.monotonic_ns()
            if entry.outside and entry.wanted is None:  # its mask was not managed until now
                self._count_outside(entry.sandbox, (now - entry.born) / 1e9)
            self._provisional[tid] = entry._replace(at=now, mask=mask, wanted=mask)

    def confirm(self, tid: int) -> None:
        """Record that a thread's role is final, and count it as in place."""
        entry = self._provisional.pop(tid, None)
        if entry is not None:
            self._count_in_place(entry.sandbox, (entry.at - entry.born) / 1e9)

    def after_pass(self, results: Iterable[Result], everything: bool) -> None:
        """Count the threads that a pass placed without an event, and confirm those whose roles it identified.
        :param everything: whether the pass was over the whole node."""
        for result in results:
            self._count_unreported(result)
        view, now = self._view, time.monotonic_ns()
        for tid, entry in list(self._provisional.items()):
            vm = view.vms.get(entry.sandbox)
            thread = None if vm is None else vm.vmm.threads.get(tid)
            if thread is not None and thread.role is not ThreadRole.EMULATOR:
                self._identified(entry, thread)
            # This also confirms a thread whose mask never becomes the wanted one, because its cgroup trims it.
            if vm is None or (now - entry.born) / 1e9 > (_NAMED if vm.found_by == "names" else _IDENTIFIED):
                self.confirm(tid)
        if everything:
            self._seen.clear()
            self._ahead = {tid: (at, reported) for tid, (at, reported) in self._ahead.items() if now - at < _LATE}
            self._last_full = time.clock_gettime(time.CLOCK_BOOTTIME)
            self._masks = {sandbox: placement.mask for sandbox, placement in view.placements.items()}

    def _identified(self, entry: Newborn, thread: VmThread) -> None:
        """Confirm a thread whose role a pass identified, unless its mask is still to be set."""
        tid, placement = thread.id.tid, self._view.placements.get(entry.sandbox)
        wanted = None if placement is None else placement.cpus_for(thread.role, thread.vcpu)
        if wanted is not None and wanted != entry.mask:
            mask = affinity.get(tid)
            if mask is not None and CpuSet(mask) != wanted:
                return  # a later pass may set it
            self.moved(tid, wanted)
        self.confirm(tid)

    def _count_unreported(self, result: Result) -> None:
        """Count a thread without an event that could run outside its sandbox until a pass placed it."""
        operation, now = result.operation, time.clock_gettime(time.CLOCK_BOOTTIME)
        sandbox, thread = operation.sandbox, operation.thread
        placement = self._view.placements.get(sandbox)
        if (placement is None or result.got is None or result.outcome is Outcome.REFUSED
                or _precedes_vmm(self._view.vms.get(sandbox), thread)):
            return
        born = seconds_since_boot(thread.id.starttime)
        unseen = thread.id.tid not in self._seen
        self._see(sandbox, thread.id.tid, placement.mask)
        if unseen and born >= self._last_full and leaves_sandbox(operation.was, self._masks[sandbox], operation.cpus):
            self._count_ahead(thread.id.tid, reported=False)
            self._count_outside(sandbox, now - born)
            self._count_in_place(sandbox, now - born)

    def _see(self, sandbox: SandboxId, tid: int, mask: CpuSet) -> None:
        if len(self._seen) > _MOST_SEEN:
            self._seen.clear()
        self._seen.add(tid)
        known = self._masks.get(sandbox)
        if known is None or not mask <= known:
            self._masks[sandbox] = mask if known is None else known | mask

    def _count_ahead(self, tid: int, reported: bool) -> None:
        """Record that a thread was counted before its event."""
        if len(self._ahead) > _MOST_SEEN:
            self._ahead.clear()
        self._ahead[tid] = time.monotonic_ns(), reported

    def _count_report(self, counts: NewbornCounts, tid: int, born: int) -> bool:
        """Count the event of a new thread. :returns: False if the thread itself was counted before."""
        at, reported = self._ahead.get(tid, (-1, False))
        if born > at:
            counts.reported += 1
            return True
        self._ahead[tid] = at, True
        counts.reported += not reported
        return False

    def _count_outside(self, sandbox: SandboxId, seconds: float) -> None:
        self._counts[sandbox].outside.add(seconds)
        self._counters.allowed_outside.observe(seconds)

    def _count_in_place(self, sandbox: SandboxId, seconds: float) -> None:
        self._counts[sandbox].placed.add(seconds)
        self._counters.new_thread_latency.observe(seconds)


def _precedes_vmm(vm: Vm | None, thread: VmThread) -> bool:
    """Whether a thread was created in a shim before the VMM ran. The shim keeps its mask until then (newborn_placer),
    so such a thread does not count as outside. A library VMM (Dragonball) is the shim itself; it runs from its first
    vCPU on."""
    if vm is None:
        return False
    if thread.role is ThreadRole.SHIM:
        return thread.id.starttime <= vm.vmm.id.starttime
    if not vm.type.library_thread or thread.role is ThreadRole.VCPU:
        return False
    begun = [sibling.id.starttime for sibling in vm.vmm.threads.values() if sibling.role is ThreadRole.VCPU]
    return bool(begun) and thread.id.starttime <= min(begun)


def leaves_sandbox(mask: CpuSet, sandbox: CpuSet, wanted: CpuSet | None) -> bool:
    """Whether a mask has CPUs that are neither its sandbox's nor those of the thread's role (`wanted`)."""
    return not mask <= sandbox and (wanted is None or not mask <= (sandbox | wanted))
