"""What vmpin knows of each thread's mask: what it asked for, what the kernel made of that, what was there before.

Turns a placement into operations, carries them out, and keeps what became of them. What stays out: who may run where
(placement), what is said of those that had to be put back (drifts), and when a pass happens (reconciler).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VmThread
from vmpin.domain.topology import Topology
from vmpin.host import affinity
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.pinning.apply import Outcome, Result, carry_out
from vmpin.pinning.drift_tracker import DriftTracker
from vmpin.pinning.original_masks import OriginalMasks
from vmpin.pinning.plan import Observed, SetAffinity, diff, ordered
from vmpin.placement.rules import Placement
from vmpin.vmm.inventory import Vm

logger = logging.getLogger(__name__)

#: How often a sandbox's threads are listed anew while they get their masks back.
LISTINGS = 100
#: Of the different masks that were set in a sandbox, so many are in the log.
SHOWN = 16


@dataclass
class VmMasks:
    """What vmpin knows of the masks of one VM's threads."""

    #: By thread: the mask set last, and what the kernel showed then.
    asked: dict[ThreadId, tuple[CpuSet, CpuSet]] = field(default_factory=dict)
    #: What the kernel is to show as long as nothing changes, in the form in which it is read.
    expected: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    #: What was refused, by thread, so that it is told once.
    refused: dict[ThreadId, str] = field(default_factory=dict)
    #: What a cgroup refused or trimmed and is yet to be judged, by thread: the mask, and since when (monotonic).
    doubted: dict[ThreadId, tuple[CpuSet, float]] = field(default_factory=dict)
    #: What a cgroup that the kubelet has yet to rewrite keeps threads from, "" for nothing (placement.waiting).
    waits: str = ""
    #: Not everything is as wanted, or not yet known to be.
    open: bool = True


class Pinner:
    """The masks of all VMs' threads. `before` comes from the state file and goes there."""

    def __init__(self, proc: Procfs, cgroups: Cgroups, before: Mapping[SandboxId, OriginalMasks],
                 drifts: DriftTracker | None = None) -> None:
        self.proc = proc
        self.cgroups = cgroups
        self.before = dict(before)
        self.drift_tracker = drifts or DriftTracker()
        #: For so long (s) a cgroup may refuse or trim a mask before that counts. A runtime that deletes a container
        #: whose process has ended writes the sandbox's cgroup before it reports the end.
        self.grace = 0.0
        #: Masks from before were learned that are not in the state file yet.
        self.learned = False
        self._masks: dict[SandboxId, VmMasks] = {}

    def of(self, sandbox: SandboxId) -> VmMasks:
        masks = self._masks.get(sandbox)
        if masks is None:
            masks = self._masks[sandbox] = VmMasks()
        return masks

    def refusals(self, sandbox: SandboxId, but: Container[ThreadId] = ()) -> list[str]:
        """What the kernel refused, for status. :param but: threads of which another reason is given."""
        known = self._masks.get(sandbox)
        refused = {} if known is None else known.refused
        return [*(why for thread, why in refused.items() if thread not in but), *self.drift_tracker.notes(sandbox)]

    def doubts(self, sandbox: SandboxId) -> bool:
        """Whether a cgroup refused or trimmed masks of late: the sources may say otherwise by now."""
        known, early = self._masks.get(sandbox), time.monotonic() - self.grace
        return known is not None and any(since > early for _, since in known.doubted.values())

    def recheck(self, sandbox: SandboxId) -> None:
        """Something is another than it was: compare thread by thread in the next pass."""
        self.of(sandbox).open = True

    def forget(self, sandbox: SandboxId) -> None:
        self._masks.pop(sandbox, None)
        self.drift_tracker.forget(sandbox)

    def keep_only(self, sandboxes: Iterable[SandboxId]) -> None:
        """Forget the masks of VMs that have ended."""
        for gone in self._masks.keys() - set(sandboxes):
            del self._masks[gone]
        self.drift_tracker.keep_only(
            self._masks, lambda: {thread for each in self._masks.values() for thread in each.asked})

    def retry_now(self) -> None:
        """Take up again what was left to another writer."""
        for sandbox in self.drift_tracker.retry_now():
            self.recheck(sandbox)

    def operations(self, vm: Vm, placement: Placement) -> tuple[SetAffinity, ...]:
        """What has to be set to make a VM's threads what `placement` wants."""
        masks = self.of(vm.sandbox)
        if not masks.open and _holds(masks.expected) and time.monotonic() < self.drift_tracker.again(vm.sandbox):
            masks.waits = ""  # every thread is in its place: what moves one from now on is drift
            return ()
        observed = list(self._observed(vm, masks, placement))
        self._remember(vm, observed)
        if not placement.waiting:
            masks.waits = ""
        if placement.pending:
            self.drift_tracker.disregard(vm.sandbox)
        operations = self.drift_tracker.sort(vm.sandbox, placement, diff(placement, observed),
                                      () if masks.waits or placement.pending else masks.expected)
        if not operations:
            masks.waits = ""
        changing = {operation.thread.id for operation in operations}
        masks.expected = [] if len(changing) == len(observed) else [
            (seen.thread.id.tid, seen.actual.frozen()) for seen in observed
            if seen.thread.id not in changing and placement.cpus_for(seen.thread.role, seen.thread.vcpu) is not None]
        if masks.asked or masks.refused or masks.doubted:
            alive = {seen.thread.id for seen in observed}
            for table, kept in ((masks.asked, alive), (masks.refused, alive), (masks.doubted, changing)):
                for thread in table.keys() - kept:
                    del table[thread]
        masks.open = False
        return operations

    def _observed(self, vm: Vm, masks: VmMasks, placement: Placement) -> Iterable[Observed]:
        """The threads with the masks they have now; those that ended meanwhile are left out."""
        get = os.sched_getaffinity
        for thread in vm.threads():
            try:
                actual = _cpuset(frozenset(get(thread.id.tid)))
            except ProcessLookupError:
                masks.open = True
                continue
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
        before = self.before.get(vm.sandbox, OriginalMasks())
        here = [*(process.id for process in vm.processes()), *(thread.id for thread in vm.kernel)]
        if len(here) == len(before.processes) and all(main in before.processes for main in here):
            return
        known = before.only(here)
        mains = {process.pid: process.id for process in vm.processes()}
        met: dict[ThreadId, list[tuple[VmThread, CpuSet]]] = {}
        for seen in observed:
            main = mains.get(seen.thread.pid, seen.thread.id)  # a kernel thread is a process of its own
            if main not in known.processes:
                met.setdefault(main, []).append((seen.thread, seen.actual))
        for main, masks in met.items():
            had = self._inherited(before, main)
            known = known.remember(main, masks if had is None else [(thread, had) for thread, _ in masks])
        if known is not before:
            self.before[vm.sandbox] = known
            self.learned = True

    def _inherited(self, before: OriginalMasks, process: ThreadId) -> CpuSet | None:
        """What a process had before vmpin that was born of one whose mask vmpin set already, or took its place
        (QEMU's -daemonize: the VM is a child of the process that was started, which ends)."""
        stat = self.proc.thread_stat(process.tid, process.tid) if before.processes else None
        if stat is None:
            return None
        ended = []
        for main in before.processes:
            alive = self.proc.thread_stat(main.tid, main.tid)
            if alive is None or alive.starttime != main.starttime or alive.state in "ZX":
                ended.append(main)
            elif main.tid == stat.ppid:
                return before.of_parent(main)
        return before.of_parent(max(ended, key=lambda main: main.starttime)) if ended else None

    def met(self, sandbox: SandboxId, main: VmThread, mask: CpuSet) -> CpuSet | None:
        """A process that is to be placed before anything else is known of it. :returns: the mask from before that is
        kept for it, None when there was one already."""
        before = self.before.get(sandbox, OriginalMasks())
        had = self._inherited(before, main.id) or mask
        known = before.remember(main.id, [(main, had)])
        if known is before:
            return None
        self.before[sandbox] = known
        return had

    def place_now(self, sandbox: SandboxId, thread: VmThread, cpus: CpuSet, mask: CpuSet) -> Result:
        """Set the mask (`mask` until now) of a thread that has just come, ahead of its VM's next pass."""
        (result,) = carry_out(self.proc, (SetAffinity(sandbox, thread, cpus, mask),))
        if result.got is not None and result.outcome is not Outcome.REFUSED:
            masks = self.of(sandbox)
            masks.asked[thread.id] = (cpus, result.got)
            # Should that pass want another mask all the same, it undoes what vmpin did, and that is no drift.
            masks.expected = [each for each in masks.expected if each[0] != thread.id.tid]
            masks.open = True
        if result.outcome in (Outcome.REFUSED, Outcome.TRIMMED) and self.of(sandbox).waits:
            result = result._replace(outcome=Outcome.WAITING)
        return result

    def carry_out(self, operations: Iterable[SetAffinity], placements: Mapping[SandboxId, Placement]) -> list[Result]:
        """Set the masks, keep what the kernel made of each, and say once what went wrong."""
        results = carry_out(self.proc, ordered(operations))
        done: dict[SandboxId, list[CpuSet]] = {}
        waiting: set[ThreadId] = set()
        news: dict[tuple[SandboxId, CpuSet], list[Result]] = {}
        # An enum's member is looked up by a function: thousands of times a pass that is dear.
        gone, refused, trimmed = Outcome.GONE, Outcome.REFUSED, Outcome.TRIMMED
        for result in results:
            operation, outcome, got, why, _ = result
            sandbox, thread, cpus, _ = operation
            masks = self.of(sandbox)
            if outcome is gone:
                masks.open = True
                continue
            if (outcome is refused or outcome is trimmed) and placements[sandbox].waiting:
                self._waits(sandbox, masks, placements[sandbox].waiting)
                waiting.add(thread.id)
                if outcome is refused:
                    masks.refused.pop(thread.id, None)
                    continue
            if outcome is refused or outcome is trimmed:
                if self._too_early(masks, thread.id, cpus):
                    masks.open = True
                    waiting.add(thread.id)
                    continue
            elif masks.doubted:
                masks.doubted.pop(thread.id, None)
            if outcome is refused:
                masks.open = True  # tried again at every resync
                if masks.refused.get(thread.id) != why:
                    masks.refused[thread.id] = why
                    news.setdefault((sandbox, cpus), []).append(result)
                continue
            assert got is not None
            if masks.refused:
                masks.refused.pop(thread.id, None)
            if got is not cpus and not got <= cpus:
                masks.open = True  # another hand has changed it meanwhile: the next pass is to see that
            elif outcome is trimmed and not masks.waits and masks.asked.get(thread.id) != (cpus, got):
                logger.warning("sandbox=%s: cannot honour %s for %s thread %d: its cpuset cgroup leaves %s",
                               sandbox, cpus, thread.role, thread.id.tid, got)
            if outcome is trimmed:
                masks.doubted.pop(thread.id, None)
            masks.asked[thread.id] = (cpus, got)
            masks.expected.append((thread.id.tid, got.frozen()))
            if sandbox in done:
                done[sandbox].append(got)
            else:
                done[sandbox] = [got]
        for (sandbox, cpus), alike in news.items():  # a cgroup refuses all of a VMM's threads alike
            (_, thread, _, _), _, got, why, _ = alike[0]
            more = f" (and {len(alike) - 1} more threads)" if len(alike) > 1 else ""
            logger.error("sandbox=%s: %s thread %d wanted=%s has=%s: %s%s", sandbox, thread.role, thread.id.tid, cpus,
                         got, why, more)
        if waiting:
            results = [result._replace(outcome=Outcome.WAITING) if result.operation.thread.id in waiting else result
                       for result in results]
        self.drift_tracker.record_repairs(results)
        for sandbox, set_ in done.items():
            logger.info("pinned sandbox=%s threads=%d mask=%s verdict=%s", sandbox, len(set_), _shown(set_),
                        placements[sandbox].verdict)
        return results

    def _too_early(self, masks: VmMasks, thread: ThreadId, cpus: CpuSet) -> bool:
        """Whether what a cgroup made of a mask is to be looked at again before it counts."""
        if not self.grace:
            return False
        now = time.monotonic()
        wanted, since = masks.doubted.get(thread, (cpus, now))
        masks.doubted[thread] = cpus, since if wanted == cpus else now
        return now - masks.doubted[thread][1] < self.grace

    def _waits(self, sandbox: SandboxId, masks: VmMasks, why: str) -> None:
        """The kubelet's checkpoint is ahead of the sandbox's cgroup: tried again in each pass, and no fault."""
        masks.open = True
        if masks.waits != why:
            logger.info("sandbox=%s %s", sandbox, why)
        masks.waits = why

    def restore(self, sandbox: SandboxId, threads: Callable[[], Iterable[tuple[VmThread, ThreadId]]],
                  topology: Topology) -> list[Result]:
        """Give a sandbox's threads the masks from before; those are forgotten then, unless one was refused.

        :param threads: those there are at the moment, each with its process. A thread that is made by one which has
            not got its mask back has that one's: so they are listed again until there is nobody new.
        """
        before = self.before.get(sandbox)
        if before is None:
            return []
        results: list[Result] = []
        met: set[ThreadId] = set()
        for turn in range(LISTINGS):
            listed = list(threads())
            listed += self._astray(before, {main for _, main in listed})
            new = [(thread, main) for thread, main in listed if thread.id not in met]
            met.update(thread.id for thread, _ in new)
            operations = ordered(_restoring(sandbox, before, new, topology))
            results += carry_out(self.proc, operations)
            # Who was born since the last listing has the right mask already: so has whoever is born of those.
            if turn and all(operation.cpus & topology.online <= operation.was for operation in operations):
                break
        else:
            logger.warning("sandbox=%s makes threads faster than they are given their masks: unpin it again", sandbox)
            return results
        if not any(result.outcome is Outcome.REFUSED for result in results):
            del self.before[sandbox]
        return results

    def restoring(self, sandbox: SandboxId, threads: Iterable[tuple[VmThread, ThreadId]],
                    topology: Topology) -> tuple[SetAffinity, ...]:
        """What `give_back` would set for these threads, without what they have already.

        :param threads: as in `give_back`, those there are now.
        """
        before = self.before.get(sandbox)
        if before is None:
            return ()
        listed = list(threads)
        listed += self._astray(before, {main for _, main in listed})
        return ordered(operation for operation in _restoring(sandbox, before, listed, topology)
                       if operation.cpus & topology.online != operation.was)

    def _astray(self, before: OriginalMasks, mains: set[ThreadId]) -> Iterable[tuple[VmThread, ThreadId]]:
        """The threads of processes whose masks were set and that are not the sandbox's any more, for all that is
        known: another `watch.only`, a claim that could not be read, another program."""
        for main in before.processes.keys() - mains:
            stats = {tid: self.proc.thread_stat(main.tid, tid) for tid in self.proc.tids(main.tid)}
            leader = stats.get(str(main.tid))
            if leader is not None and leader.starttime == main.starttime:
                yield from ((VmThread(ThreadId(int(tid), stat.starttime), ThreadRole.EMULATOR, stat.comm, main.tid),
                             main) for tid, stat in stats.items() if stat is not None)


def _shown(masks: Iterable[CpuSet]) -> str:
    """The different masks among these, for a line of the log: `2|3|0-1,4-7`."""
    different = sorted(set(masks), key=lambda cpus: (len(cpus), cpus.bits))
    return "|".join(map(str, different[:SHOWN])) + ("|…" if len(different) > SHOWN else "")


def _restoring(sandbox: SandboxId, before: OriginalMasks, threads: Iterable[tuple[VmThread, ThreadId]],
               topology: Topology) -> Iterable[SetAffinity]:
    for thread, main in threads:
        mask = before.mask(thread, main)
        actual = affinity.get(thread.id.tid)
        if mask is None or actual is None:
            continue
        if mask >= topology.online:
            # It was free to run anywhere: so it shall be on CPUs that come online later, too.
            mask |= topology.known
        yield SetAffinity(sandbox, thread, mask, CpuSet(actual))


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
