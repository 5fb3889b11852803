"""What vmpin knows of each thread's mask: what it asked for, what the kernel made of that, what was there before.

Turns a placement into operations, carries them out, and keeps what became of them. What stays out: who may run where
(placement), and when a pass happens (reconciler).
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from vmpin.apply import Outcome, Result, carry_out
from vmpin.before import Before
from vmpin.cpuset import CpuSet
from vmpin.host import affinity
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.model import SandboxId, ThreadId, VmThread
from vmpin.observe import Vm
from vmpin.placement import Placement
from vmpin.plan import Observed, SetAffinity, diff, ordered
from vmpin.topology import Topology

logger = logging.getLogger(__name__)


@dataclass
class Masks:
    """What vmpin knows of the masks of one VM's threads."""

    #: By thread: the mask set last, and what the kernel showed then.
    asked: dict[ThreadId, tuple[CpuSet, CpuSet]] = field(default_factory=dict)
    #: What the kernel is to show as long as nothing changes, in the form in which it is read.
    expected: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    #: What was refused, by thread, so that it is told once.
    refused: dict[ThreadId, str] = field(default_factory=dict)
    #: Not everything is as wanted, or not yet known to be.
    open: bool = True
    #: Another hand or the kernel changed what was settled, and that is not repaired yet.
    drifted: bool = False


class Pinner:
    """The masks of all VMs' threads. `before` comes from the state file and goes there."""

    def __init__(self, proc: Procfs, cgroups: Cgroups, before: Mapping[SandboxId, Before]) -> None:
        self.proc = proc
        self.cgroups = cgroups
        self.before = dict(before)
        #: Masks from before were learned that are not in the state file yet.
        self.learned = False
        self._masks: dict[SandboxId, Masks] = {}

    def of(self, sandbox: SandboxId) -> Masks:
        return self._masks.setdefault(sandbox, Masks())

    def refusals(self, sandbox: SandboxId) -> list[str]:
        """What the kernel refused, for status."""
        known = self._masks.get(sandbox)
        return [] if known is None else list(known.refused.values())

    def look_again(self, sandbox: SandboxId) -> None:
        """Something is another than it was: compare thread by thread in the next pass."""
        self.of(sandbox).open = True

    def forget(self, sandbox: SandboxId) -> None:
        self._masks.pop(sandbox, None)

    def keep_only(self, sandboxes: Iterable[SandboxId]) -> None:
        """Forget the masks of VMs that have ended."""
        for gone in self._masks.keys() - set(sandboxes):
            del self._masks[gone]

    def operations(self, vm: Vm, placement: Placement) -> tuple[SetAffinity, ...]:
        """What has to be set to make a VM's threads what `placement` wants."""
        masks = self.of(vm.sandbox)
        if not masks.open and _holds(masks.expected):
            return ()
        observed = list(self._observed(vm, masks, placement))
        self._remember(vm, observed)
        operations = diff(placement, observed)
        changing = {operation.thread.id for operation in operations}
        masks.expected = [(seen.thread.id.tid, seen.actual.frozen()) for seen in observed
                          if seen.thread.id not in changing
                          and placement.cpus_for(seen.thread.role, seen.thread.vcpu) is not None]
        alive = {seen.thread.id for seen in observed}
        for table in (masks.asked, masks.refused):
            for thread in [thread for thread in table if thread not in alive]:
                del table[thread]
        masks.drifted = bool(operations) and (masks.drifted or not masks.open)
        masks.open = False
        return operations

    def _observed(self, vm: Vm, masks: Masks, placement: Placement) -> Iterable[Observed]:
        """The threads with the masks they have now; those that ended meanwhile are left out."""
        for thread in vm.threads():
            mask = affinity.get(thread.id.tid)
            if mask is None:
                masks.open = True
                continue
            actual = _cpuset(mask)
            asked, shown = masks.asked.get(thread.id, (None, None))
            limit = None
            if asked is None:
                wanted = placement.cpus_for(thread.role, thread.vcpu)
                if wanted is not None and wanted != actual and actual <= wanted:
                    # Nobody knows what was asked for; is it what the cpuset cgroup leaves of it?
                    cgroup = self.cgroups.cpuset_of(thread.pid, thread.id.tid)
                    limit = cgroup.effective if cgroup is not None else None
            yield Observed(thread, actual, asked, shown, limit)

    def _remember(self, vm: Vm, observed: Iterable[Observed]) -> None:
        """Keep the masks of processes met for the first time: what a thread has then is what it had before vmpin."""
        before = self.before.get(vm.sandbox, Before())
        known = before.only([*(process.id for process in vm.processes()), *(thread.id for thread in vm.kernel)])
        mains = {process.pid: process.id for process in vm.processes()}
        met: dict[ThreadId, list[tuple[VmThread, CpuSet]]] = {}
        for seen in observed:
            main = mains.get(seen.thread.pid, seen.thread.id)  # a kernel thread is a process of its own
            if main not in known.processes:
                met.setdefault(main, []).append((seen.thread, seen.actual))
        for main, masks in met.items():
            known = known.remember(main, masks)
        if known is not before:
            self.before[vm.sandbox] = known
            self.learned = True

    def carry_out(self, operations: Iterable[SetAffinity], placements: Mapping[SandboxId, Placement]) -> list[Result]:
        """Set the masks, keep what the kernel made of each, and say once what went wrong."""
        operations = ordered(operations)
        for sandbox, count in Counter(operation.sandbox for operation in operations).items():
            if (masks := self.of(sandbox)).drifted:
                masks.drifted = False
                logger.info("repairing sandbox=%s threads=%d: another hand or the kernel changed their masks",
                            sandbox, count)
        results = carry_out(self.proc, operations)
        done: dict[SandboxId, int] = {}
        for result in results:
            operation = result.operation
            masks = self.of(operation.sandbox)
            thread = operation.thread
            if result.outcome is Outcome.GONE:
                masks.open = True
                continue
            if result.outcome is Outcome.REFUSED:
                masks.open = True  # tried again at every resync
                if masks.refused.get(thread.id) != result.why:
                    masks.refused[thread.id] = result.why
                    logger.error("sandbox=%s: %s thread %d wanted=%s has=%s: %s", operation.sandbox, thread.role,
                                 thread.id.tid, operation.cpus, result.got, result.why)
                continue
            assert result.got is not None
            masks.refused.pop(thread.id, None)
            if result.outcome is Outcome.TRIMMED and masks.asked.get(thread.id) != (operation.cpus, result.got):
                logger.warning("sandbox=%s: cannot honour %s for %s thread %d: its cpuset cgroup leaves %s",
                               operation.sandbox, operation.cpus, thread.role, thread.id.tid, result.got)
            masks.asked[thread.id] = (operation.cpus, result.got)
            masks.expected.append((thread.id.tid, result.got.frozen()))
            done[operation.sandbox] = done.get(operation.sandbox, 0) + 1
        for sandbox, count in done.items():
            placement = placements[sandbox]
            logger.info("pinned sandbox=%s threads=%d mask=%s verdict=%s", sandbox, count, placement.mask,
                        placement.verdict)
        return results

    def give_back(self, vm: Vm, topology: Topology) -> list[Result]:
        """Give a VM's threads the masks from before; they are forgotten unless one was refused."""
        before = self.before.get(vm.sandbox)
        if before is None:
            return []
        results = carry_out(self.proc, ordered(_restoring(vm, before, topology)))
        if not any(result.outcome is Outcome.REFUSED for result in results):
            del self.before[vm.sandbox]
        return results


def _restoring(vm: Vm, before: Before, topology: Topology) -> Iterable[SetAffinity]:
    for thread in vm.threads():
        mask = before.mask(thread, vm.main_of(thread))
        actual = affinity.get(thread.id.tid)
        if mask is None or actual is None:
            continue
        if mask >= topology.online:
            # It was free to run anywhere: so it shall be on CPUs that come online later, too.
            mask |= topology.known
        yield SetAffinity(vm.sandbox, thread, mask, CpuSet(actual))


@lru_cache(maxsize=1024)
def _cpuset(mask: frozenset[int]) -> CpuSet:
    """A mask as read: thousands of threads have a few different ones."""
    return CpuSet(mask)


def _holds(expected: Iterable[tuple[int, frozenset[int]]]) -> bool:
    """Whether the kernel shows just what it did: the whole cost of a pass in which nothing changed."""
    get = os.sched_getaffinity
    try:
        for tid, shown in expected:
            if get(tid) != shown:
                return False
    except ProcessLookupError:
        return False
    return True
