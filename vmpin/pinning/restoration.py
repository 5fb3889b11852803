"""Restores the original masks of threads, or plans it, for sandboxes that are unpinned, excluded or left behind.

A thread whose original mask is unknown gets all CPUs, as it would have without vmpin; its cgroup trims the mask.
"""

import logging
from collections.abc import Callable, Iterable

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VmThread
from vmpin.domain.topology import Topology
from vmpin.host import affinity
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.pinning.apply import Outcome, Result, carry_out
from vmpin.pinning.original_mask_store import OriginalMaskStore
from vmpin.pinning.original_masks import OriginalMasks
from vmpin.pinning.plan import SetAffinity, ordered

logger = logging.getLogger(__name__)

#: How often a sandbox's threads are listed at most while their masks are restored.
LISTINGS = 100
#: Threads, each with the main thread of its process.
Threads = Iterable[tuple[VmThread, ThreadId]]


class FreeThread(SetAffinity):
    """Let a thread run on all CPUs, because its original mask is unknown."""

    def describe(self) -> str:
        role = self.thread.role if self.thread.vcpu is None else f"{self.thread.role} {self.thread.vcpu}"
        return (f"sandbox {self.sandbox}: let {role} (thread {self.thread.id.tid}, {self.thread.name}) run on all "
                f"CPUs that its cgroup allows, was {self.was or 'none'}: its original mask is not known")


class Restoration:
    """Restores masks from `originals`, and removes restored ones from it.
    :param listings: how often threads are listed at most.
    :param cgroups: for the CPUs that a thread's cgroup allows; None: this machine's."""

    def __init__(self, proc: Procfs, originals: OriginalMaskStore, listings: int = LISTINGS,
                 cgroups: Cgroups | None = None) -> None:
        self.proc, self.cgroups = proc, cgroups or Cgroups(proc=proc)
        self.listings = listings
        self.originals = originals

    def restore(self, sandbox: SandboxId, threads: Callable[[], Threads], topology: Topology) -> list[Result]:
        """Restore the original masks of a sandbox's threads, and forget them unless one was refused.
        :param threads: lists the current threads, each with its process. It is called until there are no new threads:
            a thread created meanwhile may have inherited a mask that was not restored yet."""
        results: list[Result] = []
        met: set[ThreadId] = set()
        for turn in range(self.listings):
            listed = list(threads())
            masks = self.originals.doubt(sandbox, {main for _, main in listed})
            if masks is None:
                return []
            listed = self._with_astray(masks, listed)
            new = [(thread, main) for thread, main in listed if thread.id not in met]
            met.update(thread.id for thread, _ in new)
            operations = ordered(_restoring(sandbox, masks, new, topology))
            results += carry_out(self.proc, operations)
            # Threads created since the last listing have the right mask already, and so will their own new threads.
            if turn and not any(self._changes(operation, topology) for operation in operations):
                break
        else:
            logger.warning("not all masks restored sandbox=%s: it creates threads faster; unpin it again", sandbox)
            return results
        if not any(result.outcome is Outcome.REFUSED for result in results):
            self.originals.restored(sandbox)
        return results

    def plan(self, sandbox: SandboxId, threads: Threads, topology: Topology) -> tuple[SetAffinity, ...]:
        """Return the operations with which `restore` would change masks of these threads.
        :param threads: the current threads, each with its process."""
        listed = list(threads)
        masks = self.originals.masks.get(sandbox, OriginalMasks())
        for main in filter(self.originals.unknown, {main for _, main in listed}):
            masks = masks.with_unknown(main)
        listed = self._with_astray(masks, listed)
        return ordered(operation for operation in _restoring(sandbox, masks, listed, topology)
                       if self._changes(operation, topology))

    def _changes(self, operation: SetAffinity, topology: Topology) -> bool:
        """Whether an operation changes the thread's mask, considering that its cgroup trims the new mask."""
        shown = operation.cpus & topology.online
        if shown == operation.was:
            return False
        cgroup = self.cgroups.cpuset_of(operation.thread.pid, operation.thread.id.tid)
        return cgroup is None or shown & cgroup.effective != operation.was

    def _with_astray(self, masks: OriginalMasks, threads: Threads) -> list[tuple[VmThread, ThreadId]]:
        """Add the threads of recorded processes that no longer count as the sandbox's: `watch.only` was narrowed, a
        claim could not be read, or the process executed another program."""
        extended = list(threads)
        for main in masks.processes.keys() - {main for _, main in extended}:
            stats = {tid: self.proc.thread_stat(main.tid, tid) for tid in self.proc.tids(main.tid)}
            leader = stats.get(str(main.tid))
            if leader is not None and leader.starttime == main.starttime:
                role, pid = ThreadRole.EMULATOR, main.tid
                extended += [(VmThread(ThreadId(int(tid), stat.starttime), role, stat.comm, pid), main)
                             for tid, stat in stats.items() if stat is not None]
        return extended


def _restoring(sandbox: SandboxId, masks: OriginalMasks, threads: Threads,
               topology: Topology) -> Iterable[SetAffinity]:
    for thread, main in threads:
        mask = masks.mask(thread, main)
        actual = affinity.get(thread.id.tid)
        if mask is None or actual is None:
            continue
        if not mask:
            yield FreeThread(sandbox, thread, topology.all_cpus, CpuSet(actual))
            continue
        if mask >= topology.online:
            # It could run on all CPUs, so it also gets those that come online later.
            mask |= topology.all_cpus
        yield SetAffinity(sandbox, thread, mask, CpuSet(actual))
