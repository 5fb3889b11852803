"""Gives threads their original masks back, and works out what that would change.

A thread whose original mask is not known gets every CPU, as it would have without vmpin: its cgroup leaves what it
allows. For sandboxes that are unpinned, excluded or left.
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

#: How often a sandbox's threads are listed while they get their masks back.
LISTINGS = 100
#: Each with the main thread of its process.
Threads = Iterable[tuple[VmThread, ThreadId]]


class FreeThread(SetAffinity):
    """Let a thread run on every CPU, as its original mask is not known."""

    def describe(self) -> str:
        role = self.thread.role if self.thread.vcpu is None else f"{self.thread.role} {self.thread.vcpu}"
        return (f"sandbox {self.sandbox}: let {role} (thread {self.thread.id.tid}, {self.thread.name}) run on all "
                f"CPUs that its cgroup allows, was {self.was or 'none'}: its original mask is not known")


class Restoration:
    """:param originals: its masks are forgotten when they have been given back.
    :param listings: how often threads are listed at most.
    :param cgroups: shows what a thread's cgroup allows; None for those of this machine."""

    def __init__(self, proc: Procfs, originals: OriginalMaskStore, listings: int = LISTINGS,
                 cgroups: Cgroups | None = None) -> None:
        self.proc, self.cgroups = proc, cgroups or Cgroups(proc=proc)
        self.listings = listings
        self.originals = originals

    def restore(self, sandbox: SandboxId, threads: Callable[[], Threads], topology: Topology) -> list[Result]:
        """Give a sandbox's threads their original masks; those are forgotten then, unless one was refused.
        :param threads: lists them as they are at the moment, each with its process. A thread created by one that has
            not got its mask back inherits that one's: so they are listed again until there is no new one."""
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
            # Threads created since the last listing have the right mask already, and so will those that they create.
            if turn and not any(self._changes(operation, topology) for operation in operations):
                break
        else:
            logger.warning("not all masks restored sandbox=%s: it creates threads faster; unpin it again", sandbox)
            return results
        if not any(result.outcome is Outcome.REFUSED for result in results):
            self.originals.restored(sandbox)
        return results

    def plan(self, sandbox: SandboxId, threads: Threads, topology: Topology) -> tuple[SetAffinity, ...]:
        """Return what `restore` would set for these threads, without what they have already.
        :param threads: as in `restore`, those there are now."""
        listed = list(threads)
        masks = self.originals.masks.get(sandbox, OriginalMasks())
        for main in filter(self.originals.unknown, {main for _, main in listed}):
            masks = masks.with_unknown(main)
        listed = self._with_astray(masks, listed)
        return ordered(operation for operation in _restoring(sandbox, masks, listed, topology)
                       if self._changes(operation, topology))

    def _changes(self, operation: SetAffinity, topology: Topology) -> bool:
        """Whether a thread shows another mask than its cgroup leaves of the one that it is to get."""
        shown = operation.cpus & topology.online
        if shown == operation.was:
            return False
        cgroup = self.cgroups.cpuset_of(operation.thread.pid, operation.thread.id.tid)
        return cgroup is None or shown & cgroup.effective != operation.was

    def _with_astray(self, masks: OriginalMasks, threads: Threads) -> list[tuple[VmThread, ThreadId]]:
        """Add the threads of processes whose masks were set and that belong to the sandbox no longer, as far as it can
        be read: `watch.only` was narrowed, a claim could not be read, or the process executes another program."""
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
            # It could run anywhere: it gets CPUs that come online later, too.
            mask |= topology.all_cpus
        yield SetAffinity(sandbox, thread, mask, CpuSet(actual))
