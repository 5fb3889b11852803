"""Pins threads: derives operations from a placement, applies them, and records the masks that the kernel set.

Used by passes, and for single new threads between passes.
"""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import SandboxId, ThreadId, named
from vmpin.domain.sandbox_placement import Placement
from vmpin.domain.terminal import number_of
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.log import LineLimit
from vmpin.pinning.apply import Outcome, Result, carry_out, shared_cpuset
from vmpin.pinning.drift_tracker import DriftTracker
from vmpin.pinning.original_mask_store import OriginalMaskStore
from vmpin.pinning.plan import Observed, SetAffinity, diff, ordered
from vmpin.vmm.virtual_machine import Vm

logger = logging.getLogger(__name__)

#: The most different masks of a sandbox that a log line lists.
SHOWN = 16
#: A VM's lines about masks that were refused or trimmed: so many at once, and one more for every so many seconds.
#: Guests have their VMMs create threads, for instance by writing to their disks, and none may fill the log.
_LINES, _LINE_EVERY = 16, 60.0
#: The entry in `VmMasks.requested` of a thread whose mask was never set.
_NEVER: tuple[CpuSet | None, CpuSet | None] = None, None


class VmMasks:
    """The masks of one VM's threads, as they were set and read back."""

    def __init__(self) -> None:
        #: By thread: the mask requested last, and the mask that the kernel showed afterwards.
        self.requested: dict[ThreadId, tuple[CpuSet, CpuSet]] = {}
        #: By tid: the mask that the kernel shows while nothing changes, as sched_getaffinity returns it.
        self.expected: dict[int, frozenset[int]] = {}
        #: Why the kernel refused a mask, by thread; each reason is logged once.
        self.refused: dict[ThreadId, str] = {}
        #: Masks that a cgroup refused or trimmed within `Pinner.grace`, by thread: the mask, and since when
        #: (monotonic, seconds).
        self.early_refusals: dict[ThreadId, tuple[CpuSet, float]] = {}
        #: Why masks wait for the kubelet to rewrite the sandbox's cgroup (Placement.waiting); "" if none waits.
        self.waits = ""
        #: Whether the next pass must compare each thread: a mask is not as placed, or has not been read back yet.
        self.open = True
        #: Of lines about refused and trimmed masks.
        self.lines = LineLimit(_LINES, _LINE_EVERY)


class Pinner:
    """Sets the masks of all VMs' threads. Only `OriginalMaskStore.restore` sets others."""

    def __init__(self, proc: Procfs, cgroups: Cgroups, originals: OriginalMaskStore,
                 drift_tracker: DriftTracker) -> None:
        self.proc, self.cgroups = proc, cgroups
        self.originals, self.drift_tracker = originals, drift_tracker
        #: Seconds for which a cgroup may refuse or trim a mask before it is a fault. When a container's process has
        #: ended, the runtime writes the sandbox's cgroup before it reports the end.
        self.grace = 0.0
        self._masks: defaultdict[SandboxId, VmMasks] = defaultdict(VmMasks)

    def of(self, sandbox: SandboxId) -> VmMasks:
        return self._masks[sandbox]

    def refusals(self, sandbox: SandboxId, but: Container[ThreadId] = ()) -> list[str]:
        """Sentences for the status: why masks were refused.
        :param but: threads to leave out, because the status gives another reason for them."""
        masks = self._masks.get(sandbox)
        return [] if masks is None else [why for thread, why in masks.refused.items() if thread not in but]

    def refused_early(self, sandbox: SandboxId) -> bool:
        """Whether a cgroup refused or trimmed masks within `grace`: then the sources must be read again."""
        masks, early = self._masks.get(sandbox), time.monotonic() - self.grace
        return masks is not None and any(since > early for _, since in masks.early_refusals.values())

    def holds(self, sandbox: SandboxId) -> bool:
        """Whether all masks of a VM were as placed when they were compared or set last."""
        masks = self._masks.get(sandbox)
        return masks is not None and not masks.open

    def recheck(self, sandbox: SandboxId) -> None:
        """Make the next pass compare each of a VM's threads."""
        self.of(sandbox).open = True

    def leave_alone(self, sandbox: SandboxId) -> None:
        """Forget refusals: the sandbox's masks are no longer managed."""
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
            self._masks, lambda: {thread for masks in self._masks.values() for thread in masks.requested})

    def retry_now(self) -> None:
        """Retry threads that were left to another writer."""
        for sandbox in self.drift_tracker.retry_now():
            self.recheck(sandbox)

    def operations(self, vm: Vm, placement: Placement) -> tuple[SetAffinity, ...]:
        """Compare the masks of a VM's threads with its placement. Also records the original masks of new processes.
        :returns: the operations that establish the placement."""
        masks = self.of(vm.sandbox)
        if not masks.open and _are_shown(masks.expected) and not self.drift_tracker.retry_due(vm.sandbox):
            masks.waits = ""  # every mask is as placed, so any later change is drift
            return ()
        observed = list(self._observed(vm, masks, placement))
        self.originals.record(vm, observed)
        if not placement.waiting:
            masks.waits = ""
        if placement.pending:
            self.drift_tracker.disregard(vm.sandbox)
        operations = self.drift_tracker.filter_operations(
            vm.sandbox, placement, diff(placement, observed),
            {} if masks.waits or placement.pending else masks.expected)
        if operations is None:
            masks.open = True
            return ()  # the pass after the report, or the next resync, compares again
        if not operations:
            masks.waits = ""
        changing = {operation.thread.id for operation in operations}
        masks.expected = {} if len(changing) == len(observed) else {
            seen.thread.id.tid: seen.actual.frozen() for seen in observed
            if seen.thread.id not in changing and placement.cpus_for(seen.thread.role, seen.thread.vcpu) is not None}
        if masks.requested or masks.refused or masks.early_refusals:
            alive = {seen.thread.id for seen in observed}
            # A refusal is over when the thread has its wanted mask.
            for table, kept in ((masks.requested, alive), (masks.refused, changing), (masks.early_refusals, changing)):
                for thread in table.keys() - kept:
                    del table[thread]
        masks.open = False
        return operations

    def _observed(self, vm: Vm, masks: VmMasks, placement: Placement) -> Iterable[Observed]:
        """Yield the threads with their current masks, without those that have ended."""
        get, mask, actual = os.sched_getaffinity, set[int](), EMPTY
        for thread in vm.threads():
            try:
                before, mask = mask, get(thread.id.tid)
            except ProcessLookupError:
                masks.open = True
                continue
            if mask != before:  # most threads of a VM have the same
                actual = shared_cpuset(frozenset(mask))
            requested, shown = masks.requested.get(thread.id, _NEVER) if masks.requested else _NEVER
            limit = None
            if requested is None:
                wanted = placement.cpus_for(thread.role, thread.vcpu)
                if wanted is not None and actual < wanted:
                    # No request is recorded: the mask may be the wanted one, trimmed by the cpuset cgroup.
                    cgroup = self.cgroups.cpuset_of(thread.pid, thread.id.tid)
                    limit = cgroup.effective if cgroup is not None else None
            yield named(Observed, (thread, actual, requested, shown, limit))

    def set_mask_ahead(self, operation: SetAffinity) -> Result:
        """Set the mask of a new thread ahead of its VM's next pass; that pass compares it again and reports a refusal.
        Until then no mask is expected of the thread, because changes by its creator are not drift."""
        (result,) = carry_out(self.proc, (operation,))
        masks = self.of(operation.sandbox)
        masks.open = True
        if result.got is not None and result.outcome is not Outcome.REFUSED:
            masks.requested[operation.thread.id] = operation.cpus, result.got
            masks.expected.pop(operation.thread.id.tid, None)
        if result.outcome in (Outcome.REFUSED, Outcome.TRIMMED) and masks.waits:
            result = result._replace(outcome=Outcome.WAITING)
        return result

    def set_masks(self, operations: Iterable[SetAffinity], placements: Mapping[SandboxId, Placement]) -> list[Result]:
        """Apply operations, record the masks that the kernel set, and log them; each refusal is logged once.
        :param placements: the placements of the operations' sandboxes.
        :returns: the results in the order in which the masks were set."""
        results: list[Result] = []
        pinned: defaultdict[SandboxId, list[CpuSet]] = defaultdict(list)
        refusals: dict[tuple[SandboxId, CpuSet], list[Result]] = {}
        # Looking up an enum member calls a function, which is expensive thousands of times per pass.
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
        self._log_refusals(refusals)
        self.drift_tracker.record_repairs(results)
        for sandbox, shown in pinned.items():
            logger.info("pinned sandbox=%s threads=%d mask=%s verdict=%s", sandbox, len(shown), shown_masks(shown),
                        placements[sandbox].verdict)
        return results

    def _unmet(self, masks: VmMasks, result: Result, waiting: str) -> tuple[Result, bool]:
        """Classify a result whose mask differs from the requested one.
        :param waiting: Placement.waiting: why the sandbox's cgroup does not allow the masks yet; "" if it does.
        :returns: the result, with outcome WAITING if it is no fault yet; and whether the mask that the kernel set is
            to be expected from now on."""
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
        """Record the mask that the kernel set; the following passes expect it."""
        (sandbox, thread, cpus, _), outcome, _, _ = result
        identity = thread.id
        if masks.refused:
            masks.refused.pop(identity, None)
        if masks.early_refusals:
            masks.early_refusals.pop(identity, None)
        if got is not cpus:
            if not got <= cpus:
                masks.open = True  # another writer has changed it meanwhile: the next pass must compare it
            elif (outcome is Outcome.TRIMMED and not masks.waits
                    and masks.requested.get(identity) != (cpus, got)):
                logger.log(masks.lines.spend(logging.WARNING),
                           "cannot honour %s for %s thread %d sandbox=%s: its cpuset cgroup leaves %s",
                           cpus, thread.role, identity.tid, sandbox, got)
        masks.requested[identity] = cpus, got
        masks.expected[identity.tid] = got.frozen()

    def _too_early(self, masks: VmMasks, thread: ThreadId, cpus: CpuSet) -> bool:
        """Whether a refused or trimmed mask is still within `grace`, so that it is retried and not reported."""
        if not self.grace:
            return False
        now = time.monotonic()
        wanted, since = masks.early_refusals.get(thread, (cpus, now))
        masks.early_refusals[thread] = cpus, since if wanted == cpus else now
        return now - masks.early_refusals[thread][1] < self.grace

    def _waits(self, sandbox: SandboxId, masks: VmMasks, why: str) -> None:
        """Record that the kubelet's checkpoint is ahead of the sandbox's cgroup: no fault, retried in each pass."""
        masks.open = True
        if masks.waits != why:
            logger.info("%s sandbox=%s", why, sandbox)
        masks.waits = why

    def _log_refusals(self, refusals: Mapping[tuple[SandboxId, CpuSet], list[Result]]) -> None:
        """Log one line per sandbox and mask, because a cgroup refuses a mask for all threads of a VMM."""
        for (sandbox, cpus), alike in refusals.items():
            (_, thread, _, _), _, got, why = alike[0]
            more = f" (and {number_of(len(alike) - 1, 'thread', 'more')})" if len(alike) > 1 else ""
            logger.log(self.of(sandbox).lines.spend(logging.ERROR),
                       "mask not set sandbox=%s role=%s thread=%d wanted=%s has=%s: %s%s", sandbox, thread.role,
                       thread.id.tid, cpus, got, why, more)


def shown_masks(masks: Iterable[CpuSet]) -> str:
    """Format the distinct masks for the log: `2|3|0-1,4-7`."""
    different = sorted({cpus.bits: cpus for cpus in masks}.values(), key=lambda cpus: (len(cpus), cpus.bits))
    return "|".join(map(str, different[:SHOWN])) + ("|…" if len(different) > SHOWN else "")


def _are_shown(expected: Mapping[int, frozenset[int]]) -> bool:
    """Whether the kernel still shows the expected masks. In a pass without changes this is the whole cost."""
    get = os.sched_getaffinity
    try:
        for tid, shown in expected.items():
            if get(tid) != shown:
                return False
    except ProcessLookupError:
        return False
    return True
