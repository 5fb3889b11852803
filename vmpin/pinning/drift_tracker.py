"""Drift tracking: distinguishes repairs (another writer changed a mask) from operations of a new placement, has the
causes of repairs explained, and stops repairing threads that another writer keeps moving."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from vmpin.cpuset import CpuSet
from vmpin.domain.contention import Contention, ContentionRules, OnContention
from vmpin.domain.counters import Counters
from vmpin.domain.model import SandboxId, ThreadId, VmThread
from vmpin.domain.sandbox_placement import Placement
from vmpin.domain.terminal import number_of
from vmpin.pinning.apply import Outcome, Result, shared_cpuset
from vmpin.pinning.plan import SetAffinity

if TYPE_CHECKING:
    from vmpin.domain.drift import Explanation, MaskRepair

    #: Maps repairs with their numbers of threads to causes, the most frequent first; both by sandbox.
    Explain = Callable[[Mapping[SandboxId, Counter[MaskRepair]]], Mapping[SandboxId, Sequence[Explanation]]]

logger = logging.getLogger(__name__)

NEVER = float("inf")


class _Drift:
    """The drift of one VM's threads."""

    def __init__(self) -> None:
        #: The placement that the threads were compared with last.
        self.placement: Placement | None = None
        #: Threads that drifted, with the masks that the kernel showed before.
        self.threads: dict[ThreadId, CpuSet] = {}
        #: Threads that are left to another writer, and when the first of them is retried (monotonic, seconds).
        self.left_alone: set[ThreadId] = set()
        self.retry_at = NEVER
        #: Threads in contention when it was last logged; it may be over by now.
        self.contended: set[ThreadId] = set()
        #: The evidence of the last repair.
        self.why = ""


class DriftTracker:
    """The drift of all VMs.
    :param explain: called with the repairs of a pass; counts them and returns their causes.
    :param counters: contention is counted there, once for all threads of a sandbox."""

    def __init__(self, explain: Explain, rules: ContentionRules, counters: Counters) -> None:
        #: The clock of the rests of threads in contention (seconds).
        self.now: Callable[[], float] = time.monotonic
        self.contention: Contention[ThreadId] = Contention(rules)
        #: Called for each drifted thread before it is put back: (sandbox, thread, mask).
        self.strayed: Callable[[SandboxId, VmThread, CpuSet], None] | None = None
        #: Returns the sandboxes that have unread reports.
        self.unread: Callable[[], Set[SandboxId]] = frozenset
        self._explain, self._counters = explain, counters
        self._of: defaultdict[SandboxId, _Drift] = defaultdict(_Drift)

    def retry_due(self, sandbox: SandboxId) -> bool:
        """Whether a thread that was left to another writer is to be set again."""
        drift = self._of.get(sandbox)
        return drift is not None and self.now() >= drift.retry_at

    def notes(self, sandbox: SandboxId) -> list[str]:
        """Sentences about threads in contention, for the status."""
        drift = self._of.get(sandbox)
        if drift is None:
            return []
        rule = self.contention.rules.on_contention
        persisted = [thread for thread in drift.contended
                     if rule is OnContention.PERSIST and self.contention.count(thread)]
        return [f"{number_of(len(threads), 'thread is moved')} by another program again and again (the last time: "
                f"{drift.why}) and {'is' if len(threads) == 1 else 'are'} {treatment} (drift.on_contention={rule})"
                for threads, treatment in ((drift.left_alone, "left alone"), (persisted, "put back each time"))
                if threads]

    def keep_only(self, sandboxes: Iterable[SandboxId], threads: Callable[[], set[ThreadId]]) -> None:
        """Forget VMs that have ended, and contention that is over."""
        kept = set(sandboxes)
        for sandbox in self._of.keys() - kept:
            del self._of[sandbox]
        if self.contention:
            self.contention.keep_only(threads(), self.now())

    def forget(self, sandbox: SandboxId) -> None:
        self._of.pop(sandbox, None)

    def retry_now(self) -> list[SandboxId]:
        """Make retries due for all threads that were left to another writer. :returns: their sandboxes."""
        self.contention.retry_now()
        return [sandbox for sandbox, drift in self._of.items() if drift.left_alone]

    def disregard(self, sandbox: SandboxId) -> None:
        """Do not count the pending repairs as drift: the runtime moved the threads."""
        if (drift := self._of.get(sandbox)) is not None:
            drift.threads = {}

    def filter_operations(self, sandbox: SandboxId, placement: Placement, operations: tuple[SetAffinity, ...],
                          expected: Mapping[int, frozenset[int]]) -> tuple[SetAffinity, ...] | None:
        """Record which operations are repairs. :returns: the operations without those of threads that are left to
        another writer; None, with nothing recorded, if threads drifted and an unread report may show that the runtime
        moved them. :param expected: the masks that the kernel was expected to show, by tid."""
        drift = self._of[sandbox]
        drifted = _drifted_threads(drift, placement, operations, expected) if operations and drift.placement else {}
        if drifted and sandbox in self.unread():
            return None
        drift.left_alone, drift.retry_at = set(), NEVER
        drift.threads, drift.placement = drifted, placement
        if drifted and self.strayed is not None:
            for operation in operations:
                if operation.thread.id in drifted:
                    self.strayed(sandbox, operation.thread, operation.cpus)
        return self._without_contended(sandbox, drift, operations) if operations and self.contention else operations

    def _without_contended(self, sandbox: SandboxId, drift: _Drift,
                           operations: Iterable[SetAffinity]) -> tuple[SetAffinity, ...]:
        kept, begun = [], []
        now = self.now()
        for operation in operations:
            thread, cpus = operation.thread.id, operation.cpus
            turn = self.contention.turn(thread, cpus, thread in drift.threads, now)
            if turn.begins:
                begun.append(thread)
            if turn.rests:
                drift.left_alone.add(thread)
                drift.threads.pop(thread, None)
            else:
                kept.append(operation)
                if turn.repairs:  # also where its rest is over
                    drift.threads.setdefault(thread, cpus)
        drift.retry_at = self.contention.next_retry(drift.left_alone, now) or NEVER
        if begun:
            self._contended(sandbox, drift, begun)
        return tuple(kept)

    def _contended(self, sandbox: SandboxId, drift: _Drift, threads: Collection[ThreadId]) -> None:
        """Log contention: at level ERROR when it is new, otherwise INFO."""
        rules = self.contention.rules
        drift.contended = {thread for thread in drift.contended if self.contention.count(thread)} | set(threads)
        new = sum(self.contention.count(thread) == 1 for thread in threads)
        does = {OnContention.REST: f"they are left alone for {rules.rest:.0f} s, and longer each time",
                OnContention.LEAVE: "they are left alone",
                OnContention.PERSIST: "they are put back all the same"}[rules.on_contention]
        if new:
            self._counters.contentions += 1
            self._counters.contentions_by[sandbox] += 1
            logger.error("contention sandbox=%s threads=%d: put back %d times within %.0f s and moved again "
                         "(%s): %s (drift.on_contention=%s)", sandbox, new, rules.repairs, rules.within,
                         drift.why, does, rules.on_contention)
        else:
            logger.info("contention goes on sandbox=%s: %s", sandbox, does)

    def record_repairs(self, results: Iterable[Result]) -> None:
        """Count the repairs among the results with their causes, and log one line per sandbox."""
        if not any(drift.threads for drift in self._of.values()):
            return
        now = self.now()
        counted: dict[SandboxId, Counter[MaskRepair]] = {}
        for sandbox, changes in self._repairs(results).items():
            for threads in changes.values():
                self.contention.add_repairs(threads, now)
            self._of[sandbox].threads = {}
            counted[sandbox] = Counter({change: len(threads) for change, threads in changes.items()})
        for sandbox, causes in self._explain(counted).items() if counted else ():
            self._of[sandbox].why = why = causes[0].evidence
            logger.info("repaired sandbox=%s threads=%d cause=%s: %s", sandbox, counted[sandbox].total(),
                        ",".join(dict.fromkeys(repair.cause.value for repair in causes)), why)

    def _repairs(self, results: Iterable[Result]) -> dict[SandboxId, dict[MaskRepair, list[ThreadId]]]:
        """Group the repaired threads by sandbox and repair."""
        from vmpin.domain.drift import MaskRepair

        gone, refused, waiting = Outcome.GONE, Outcome.REFUSED, Outcome.WAITING
        # Most repairs are equal: a key of numbers costs a tenth of creating and comparing a MaskRepair per thread.
        repairs: dict[SandboxId, dict[tuple[object, ...], tuple[MaskRepair, list[ThreadId]]]] = {}
        for result in results:
            (sandbox, thread, cpus, was), outcome, got, *_ = result
            drift = self._of.get(sandbox)
            shown = None if drift is None else drift.threads.get(thread.id)
            if shown is None or outcome is gone or outcome is waiting:
                continue
            left = None if outcome is refused else got
            key = thread.role, cpus.bits, shown.bits, was.bits, None if left is None else left.bits
            alike = repairs.setdefault(sandbox, {})
            if key in alike:
                alike[key][1].append(thread.id)
            else:
                alike[key] = MaskRepair(thread.role, cpus, shown, was, left), [thread.id]
        return {sandbox: dict(alike.values()) for sandbox, alike in repairs.items()}


def _drifted_threads(drift: _Drift, placement: Placement, operations: Iterable[SetAffinity],
                     expected: Mapping[int, frozenset[int]]) -> dict[ThreadId, CpuSet]:
    """The drifted threads among those to be set: they had the wanted mask before. :returns: the masks that the kernel
    showed then. A thread whose placement has changed since has not drifted."""
    was, masks = drift.placement, dict[ThreadId, CpuSet]()
    for _, thread, cpus, actual in operations:
        if was is not placement and (was is None or was.cpus_for(thread.role, thread.vcpu) != cpus):
            continue
        shown = expected.get(thread.id.tid)
        if shown is not None and shown != actual.frozen():
            masks[thread.id] = shared_cpuset(shown)
        elif thread.id in drift.threads:  # recorded by a pass that did not set masks
            masks[thread.id] = drift.threads[thread.id]
    return masks
