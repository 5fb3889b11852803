"""Pins threads: turns a placement into operations, carries them out, and keeps what the kernel made of each mask.

In a pass, and for a new thread.
"""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import SandboxId, ThreadId, named
from vmpin.domain.terminal import number_of
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.pinning.apply import Outcome, Result, carry_out
from vmpin.pinning.drift_tracker import DriftTracker
from vmpin.pinning.original_mask_store import OriginalMaskStore
from vmpin.pinning.plan import Observed, SetAffinity, diff, ordered
from vmpin.placement.rules import Placement
from vmpin.vmm.virtual_machine import Vm

logger = logging.getLogger(__name__)

#: So many of the different masks that were set in a sandbox are logged.
SHOWN = 16
#: Of a thread whose mask was never set.
_NEVER: tuple[CpuSet | None, CpuSet | None] = None, None


class VmMasks:
    """The masks of one VM's threads, as they were set and read back."""

    def __init__(self) -> None:
        #: By thread: the mask set last, and what the kernel showed then.
        self.asked: dict[ThreadId, tuple[CpuSet, CpuSet]] = {}
        #: By tid, what the kernel shows as long as nothing changes, in the form in which it is read.
        self.expected: dict[int, frozenset[int]] = {}
        #: Why the kernel refused a mask, by thread; each reason is logged once.
        self.refused: dict[ThreadId, str] = {}
        #: Masks that a cgroup refused or trimmed and that do not count yet, by thread: the mask, and since when
        #: (monotonic, seconds).
        self.doubted: dict[ThreadId, tuple[CpuSet, float]] = {}
        #: Why masks wait for the kubelet to rewrite the sandbox's cgroup (Placement.waiting); "" when none does.
        self.waits = ""
        #: The next pass compares thread by thread: not every mask is as placed, or that has not been read back yet.
        self.open = True

    def record(self, thread: ThreadId, cpus: CpuSet, got: CpuSet) -> None:
        """A mask was set, and the kernel made `got` of it."""
        self.asked[thread] = (cpus, got)
        self.expected[thread.tid] = got.frozen()


class Pinner:
    """The masks of all VMs' threads: it alone sets them, but for those that `restoration` gives back."""

    def __init__(self, proc: Procfs, cgroups: Cgroups, originals: OriginalMaskStore,
                 drift_tracker: DriftTracker | None = None) -> None:
        self.proc = proc
        self.cgroups = cgroups
        self.originals = originals
        self.drift_tracker = drift_tracker or DriftTracker()
        #: For so long (s) a cgroup may refuse or trim a mask before that counts. A runtime that deletes a container
        #: whose process has ended writes the sandbox's cgroup before it reports the end.
        self.grace = 0.0
        self._masks: dict[SandboxId, VmMasks] = {}

    def of(self, sandbox: SandboxId) -> VmMasks:
        masks = self._masks.get(sandbox)
        if masks is None:
            masks = self._masks[sandbox] = VmMasks()
        return masks

    def refusals(self, sandbox: SandboxId, but: Container[ThreadId] = ()) -> list[str]:
        """Why masks were refused, and threads left to another writer, for status.
        :param but: threads of which another reason is given."""
        masks = self._masks.get(sandbox)
        refused = {} if masks is None else masks.refused
        return [*(why for thread, why in refused.items() if thread not in but), *self.drift_tracker.notes(sandbox)]

    def doubts(self, sandbox: SandboxId) -> bool:
        """Whether a cgroup refused or trimmed masks of late: the sources have to be read again."""
        masks, early = self._masks.get(sandbox), time.monotonic() - self.grace
        return masks is not None and any(since > early for _, since in masks.doubted.values())

    def recheck(self, sandbox: SandboxId) -> None:
        """Have a VM's threads compared one by one in the next pass."""
        self.of(sandbox).open = True

    def leave_alone(self, sandbox: SandboxId) -> None:
        """Drop what was refused: no mask is wanted there any more."""
        if (masks := self._masks.get(sandbox)) is not None and (masks.refused or masks.waits):
            masks.refused.clear()
            masks.waits = ""

    def forget(self, sandbox: SandboxId) -> None:
        self._masks.pop(sandbox, None)
        self.drift_tracker.forget(sandbox)

    def keep_only(self, sandboxes: Iterable[SandboxId]) -> None:
        """Forget the masks of VMs that have ended."""
        for sandbox in self._masks.keys() - set(sandboxes):
            del self._masks[sandbox]
        self.drift_tracker.keep_only(
            self._masks, lambda: {thread for masks in self._masks.values() for thread in masks.asked})

    def retry_now(self) -> None:
        """Try threads again that were left to another writer."""
        for sandbox in self.drift_tracker.retry_now():
            self.recheck(sandbox)

    def operations(self, vm: Vm, placement: Placement) -> tuple[SetAffinity, ...]:
        """The operations that give a VM's threads the masks of its placement. Reads all masks, and learns the original
        ones of new processes."""
        masks = self.of(vm.sandbox)
        if not masks.open and _holds(masks.expected) and self.drift_tracker.rests(vm.sandbox):
            masks.waits = ""  # every mask is as placed: a change from now on is drift
            return ()
        observed = list(self._observed(vm, masks, placement))
        self.originals.remember(vm, observed)
        if not placement.waiting:
            masks.waits = ""
        if placement.pending:
            self.drift_tracker.disregard(vm.sandbox)
        operations = self.drift_tracker.sort(vm.sandbox, placement, diff(placement, observed),
                                      {} if masks.waits or placement.pending else masks.expected)
        if operations is None:
            masks.open = True
            return ()  # the pass that follows the report, or the next resync, finds all of this again
        if not operations:
            masks.waits = ""
        changing = {operation.thread.id for operation in operations}
        masks.expected = {} if len(changing) == len(observed) else {
            seen.thread.id.tid: seen.actual.frozen() for seen in observed
            if seen.thread.id not in changing and placement.cpus_for(seen.thread.role, seen.thread.vcpu) is not None}
        if masks.asked or masks.refused or masks.doubted:
            alive = {seen.thread.id for seen in observed}
            # A refusal is over when its thread is to have the mask that it has.
            for table, kept in ((masks.asked, alive), (masks.refused, changing), (masks.doubted, changing)):
                for thread in table.keys() - kept:
                    del table[thread]
        masks.open = False
        return operations

    def _observed(self, vm: Vm, masks: VmMasks, placement: Placement) -> Iterable[Observed]:
        """The threads with the masks they have now; those that ended meanwhile are left out."""
        get, mask, actual = os.sched_getaffinity, set[int](), EMPTY
        for thread in vm.threads():
            try:
                before, mask = mask, get(thread.id.tid)
            except ProcessLookupError:
                masks.open = True
                continue
            if mask != before:  # most threads of a VM have the same
                actual = _cpuset(frozenset(mask))
            requested, shown = masks.asked.get(thread.id, _NEVER) if masks.asked else _NEVER
            limit = None
            if requested is None:
                wanted = placement.cpus_for(thread.role, thread.vcpu)
                if wanted is not None and actual < wanted:
                    # No request is recorded: the mask may be what the cpuset cgroup leaves of the wanted one.
                    cgroup = self.cgroups.cpuset_of(thread.pid, thread.id.tid)
                    limit = cgroup.effective if cgroup is not None else None
            yield named(Observed, (thread, actual, requested, shown, limit))

    def set_mask_ahead(self, operation: SetAffinity) -> Result:
        """Set the mask of a new thread ahead of its VM's next pass, which compares it again and reports a refusal. No
        mask is expected of the thread until then: its creator may still move it or set its mask, which is no drift."""
        (result,) = carry_out(self.proc, (operation,))
        masks = self.of(operation.sandbox)
        masks.open = True
        if result.got is not None and result.outcome is not Outcome.REFUSED:
            masks.record(operation.thread.id, operation.cpus, result.got)
            masks.expected.pop(operation.thread.id.tid, None)
        if result.outcome in (Outcome.REFUSED, Outcome.TRIMMED) and masks.waits:
            result = result._replace(outcome=Outcome.WAITING)
        return result

    def set_masks(self, operations: Iterable[SetAffinity], placements: Mapping[SandboxId, Placement]) -> list[Result]:
        """Set the masks, keep what the kernel made of each, and log what was set and, once, what was not.
        :param placements: of the operations' sandboxes.
        :returns: what became of each, in the order in which they were set."""
        results: list[Result] = []
        pinned: defaultdict[SandboxId, list[CpuSet]] = defaultdict(list)
        refusals: dict[tuple[SandboxId, CpuSet], list[Result]] = {}
        # An enum's member is looked up by a function: thousands of times a pass that is dear.
        done, refused = Outcome.DONE, Outcome.REFUSED
        for result in carry_out(self.proc, ordered(operations)):
            sandbox, got, kept = result.operation.sandbox, result.got, True
            masks = self.of(sandbox)
            if result.outcome is not done:
                result, kept = self._unmet(masks, result, placements[sandbox].waiting)
                thread, cpus = result.operation.thread.id, result.operation.cpus
                if result.outcome is refused and masks.refused.get(thread) != result.why:
                    masks.refused[thread] = result.why
                    refusals.setdefault((sandbox, cpus), []).append(result)
            results.append(result)
            if kept and got is not None:
                self._keep(masks, result, got)
                pinned[sandbox].append(got)
        _log_refusals(refusals)
        self.drift_tracker.record_repairs(results)
        for sandbox, shown in pinned.items():
            logger.info("pinned sandbox=%s threads=%d mask=%s verdict=%s", sandbox, len(shown), shown_masks(shown),
                        placements[sandbox].verdict)
        return results

    def _unmet(self, masks: VmMasks, result: Result, waiting: str) -> tuple[Result, bool]:
        """Judge a mask that was not set as it was asked for.
        :param waiting: the placement's: what a cgroup that the kubelet has yet to rewrite keeps threads from.
        :returns: the result, as WAITING where it is no fault yet; and whether the mask that the kernel shows now is
            the one that it is to show."""
        operation, outcome, *_ = result
        thread = operation.thread.id
        if outcome is Outcome.GONE:
            masks.open = True
            return result, False
        later = result._replace(outcome=Outcome.WAITING)
        if waiting:
            self._waits(operation.sandbox, masks, waiting)
            if outcome is Outcome.REFUSED:
                masks.refused.pop(thread, None)
                return later, False
        if self._too_early(masks, thread, operation.cpus):
            masks.open = True
            return later, False
        if outcome is Outcome.REFUSED:
            masks.open = True  # tried again at every resync
            return result, False
        return later if waiting else result, True

    def _keep(self, masks: VmMasks, result: Result, got: CpuSet) -> None:
        """Keep what the kernel made of a mask: it is to show that from now on."""
        thread, cpus = result.operation.thread, result.operation.cpus
        if masks.refused:
            masks.refused.pop(thread.id, None)
        if masks.doubted:
            masks.doubted.pop(thread.id, None)
        if got is not cpus:
            if not got <= cpus:
                masks.open = True  # another writer has changed it meanwhile: the next pass is to see that
            elif result.outcome is Outcome.TRIMMED and not masks.waits and masks.asked.get(thread.id) != (cpus, got):
                logger.warning("cannot honour %s for %s thread %d sandbox=%s: its cpuset cgroup leaves %s",
                               cpus, thread.role, thread.id.tid, result.operation.sandbox, got)
        masks.record(thread.id, cpus, got)

    def _too_early(self, masks: VmMasks, thread: ThreadId, cpus: CpuSet) -> bool:
        """Whether a mask that a cgroup refused or trimmed is tried again before that counts (`grace`)."""
        if not self.grace:
            return False
        now = time.monotonic()
        wanted, since = masks.doubted.get(thread, (cpus, now))
        masks.doubted[thread] = cpus, since if wanted == cpus else now
        return now - masks.doubted[thread][1] < self.grace

    def _waits(self, sandbox: SandboxId, masks: VmMasks, why: str) -> None:
        """Note that the kubelet's checkpoint is ahead of the sandbox's cgroup: no fault, and tried in each pass."""
        masks.open = True
        if masks.waits != why:
            logger.info("%s sandbox=%s", why, sandbox)
        masks.waits = why


def _log_refusals(refusals: Mapping[tuple[SandboxId, CpuSet], list[Result]]) -> None:
    """One line for each sandbox and mask: a cgroup refuses all of a VMM's threads alike."""
    for (sandbox, cpus), alike in refusals.items():
        (_, thread, _, _), _, got, why, _ = alike[0]
        more = f" (and {number_of(len(alike) - 1, 'thread', 'more')})" if len(alike) > 1 else ""
        logger.error("mask not set sandbox=%s role=%s thread=%d wanted=%s has=%s: %s%s", sandbox, thread.role,
                     thread.id.tid, cpus, got, why, more)


def shown_masks(masks: Iterable[CpuSet]) -> str:
    """The different masks among these, for the log: `2|3|0-1,4-7`."""
    different = sorted(set(masks), key=lambda cpus: (len(cpus), cpus.bits))
    return "|".join(map(str, different[:SHOWN])) + ("|…" if len(different) > SHOWN else "")


@lru_cache(maxsize=1024)
def _cpuset(mask: frozenset[int]) -> CpuSet:
    """A mask as read: thousands of threads have a few different ones."""
    return CpuSet(mask)


def _holds(expected: Mapping[int, frozenset[int]]) -> bool:
    """Whether the kernel shows the same masks as before: the whole cost of a pass in which nothing changed."""
    get = os.sched_getaffinity
    try:
        for tid, shown in expected.items():
            if get(tid) != shown:
                return False
    except ProcessLookupError:
        return False
    return True
