"""The original masks of all sandboxes' processes: recorded when a process is first seen, kept until they are restored,
and saved in the state file.

If the record of this boot was lost, a process older than the watcher may have a mask that vmpin set; its original mask
is unknown then.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Set

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VmThread
from vmpin.domain.topology import Topology
from vmpin.host import affinity, boottime
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.pinning.apply import Outcome, Result, carry_out
from vmpin.pinning.original_masks import OriginalMasks
from vmpin.pinning.plan import Observed, SetAffinity, ordered
from vmpin.vmm.virtual_machine import Vm

logger = logging.getLogger(__name__)

#: How often a sandbox's threads are listed at most while their masks are restored.
LISTINGS = 100
#: Threads, each with the main thread of its process.
Threads = Iterable[tuple[VmThread, ThreadId]]


class FreeThread(SetAffinity):
    """Let a thread run on all CPUs, because its original mask is unknown."""

    def describe(self) -> str:
        return (f"sandbox {self.sandbox}: let {self._described()} run on all CPUs that its cgroup allows, was "
                f"{self.was or 'none'}: its original mask is not known")


class OriginalMaskStore:
    """Original masks by sandbox (`masks`).
    :param cgroups: for the CPUs that a thread's cgroup allows.
    :param saved: the masks in the state file.
    :param lost: whether vmpin may have set masks since the machine booted without a record of the original ones.
    `records`: whether the masks of new processes are recorded as original; False while vmpin only restores masks."""

    def __init__(self, proc: Procfs, cgroups: Cgroups, saved: Mapping[SandboxId, OriginalMasks],
                 lost: bool = False) -> None:
        self.proc, self.cgroups = proc, cgroups
        self.masks = dict(saved)
        self.records = True
        #: Processes started at or before this time (clock ticks since boot) may have masks set by vmpin; -1: none.
        self._lost_until = boottime.now() * os.sysconf("SC_CLK_TCK") // 10**9 if lost else -1
        #: Those of them whose masks were restored since: their masks are not vmpin's.
        self._restored: set[ThreadId] = set()
        #: Whether masks were recorded that are not in the state file yet.
        self.unsaved = False

    def keep_only(self, sandboxes: Set[SandboxId], runs: Callable[[ThreadId], bool]) -> bool:
        """Forget other sandboxes, except those with a running process: it is no longer followed (watch.only), but its
        mask must still be restored. :returns: whether any was forgotten."""
        ended = [sandbox for sandbox in self.masks.keys() - sandboxes
                 if not any(map(runs, self.masks[sandbox].processes))]
        for sandbox in ended:
            del self.masks[sandbox]
        return bool(ended)

    def predates_record(self, main: ThreadId) -> bool:
        """Whether a process without a record may have a mask that vmpin set."""
        return main.starttime <= self._lost_until and main not in self._restored

    def is_unknown(self, sandbox: SandboxId, main: ThreadId) -> bool:
        """Whether the original mask of a VM's process is not known."""
        masks = self.masks.get(sandbox, OriginalMasks()).processes.get(main)
        return self.predates_record(main) if masks is None else not masks.main

    def _replace(self, sandbox: SandboxId, before: OriginalMasks, masks: OriginalMasks) -> bool:
        """Keep a sandbox's masks. :returns: whether they differ from those before."""
        if masks is before:
            return False
        self.masks[sandbox] = masks
        self.unsaved = True
        return True

    def record(self, vm: Vm, observed: Iterable[Observed]) -> None:
        """Record the current masks of a VM's new processes as original."""
        before = self.masks.get(vm.sandbox, OriginalMasks())
        mains = [*(process.id for process in (vm.vmm, *vm.helpers)), *(thread.id for thread in vm.kernel_threads)]
        if len(mains) == len(before.processes) and all(main in before.processes for main in mains):
            return
        masks = before.only(mains)
        new: dict[int, list[tuple[VmThread, CpuSet]]] = {main.tid: [] for main in mains if main not in masks.processes}
        for seen in observed:
            if (threads := new.get(seen.thread.pid)) is not None:  # a kernel thread is its own process
                threads.append((seen.thread, seen.actual))
        for main in mains:
            if not (threads := new.get(main.tid)):
                continue
            original = self._original(before, main)
            if original:
                masks = masks.with_process(main, [(thread, original) for thread, _ in threads])
            elif original is not None:
                masks = masks.with_unknown(main)
            elif self.records:
                masks = masks.with_process(main, threads)
        self._replace(vm.sandbox, before, masks)

    def _original(self, before: OriginalMasks, main: ThreadId) -> CpuSet | None:
        """The original mask of a new process that may have one of vmpin's, EMPTY if unknown; None for its mask now."""
        inherited = self._inherited(before, main)
        return EMPTY if inherited is None and self.predates_record(main) else inherited

    def _inherited(self, before: OriginalMasks, process: ThreadId) -> CpuSet | None:
        """The original mask of a process whose parent had a mask set by vmpin: the parent's original mask, EMPTY if
        that is unknown. The parent may have ended: with QEMU's -daemonize the VM is a child of the started process,
        which exits. None for any other process."""
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

    def record_early(self, sandbox: SandboxId, main: VmThread, mask: CpuSet) -> CpuSet | None:
        """Record the original mask of a process that is placed before its VM is known. :returns: the recorded mask,
        EMPTY if it is unknown; None if one was recorded before."""
        before = self.masks.get(sandbox, OriginalMasks())
        original = self._original(before, main.id)
        if original is None:
            original = mask
        masks = before.with_process(main.id, [(main, original)]) if original else before.with_unknown(main.id)
        return original if self._replace(sandbox, before, masks) else None

    # Restoring

    def restore(self, sandbox: SandboxId, threads: Callable[[], Threads], topology: Topology) -> list[Result]:
        """Restore the original masks of a sandbox's threads, and forget them unless one was refused.
        :param threads: lists the current threads, each with its process. It is called until there are no new threads:
            a thread created meanwhile may have inherited a mask that was not restored yet."""
        results: list[Result] = []
        seen, retried = set[ThreadId](), set[ThreadId]()
        for turn in range(LISTINGS):
            listed = list(threads())
            before = self.masks.get(sandbox, OriginalMasks())
            masks = self._with_unknown(before, listed)
            self._replace(sandbox, before, masks)
            if sandbox not in self.masks:
                return []
            listed = self._with_astray(masks, listed)
            new = [(thread, main) for thread, main in listed if thread.id not in seen]
            seen.update(thread.id for thread, _ in new)
            operations = ordered(_restoring(sandbox, masks, new, topology))
            carried_out = carry_out(self.proc, operations)
            results += carried_out
            # Once more, if it is listed again: a listing of threads may lack one that lives.
            gone = {result.operation.thread.id for result in carried_out if result.outcome is Outcome.GONE} - retried
            seen -= gone
            retried |= gone
            # Threads created since the last listing have the right mask already, and so will their own new threads.
            if turn and not any(self._changes(operation, topology) for operation in operations):
                break
        else:
            logger.warning("not all masks restored sandbox=%s: it creates threads faster than they are restored; "
                           "unpin it again", sandbox)
            return results
        if not any(result.outcome is Outcome.REFUSED for result in results):
            restored = self.masks.pop(sandbox).processes
            self._restored.update(main for main in restored if main.starttime <= self._lost_until)
        return results

    def restoring(self, sandbox: SandboxId, threads: Threads, topology: Topology) -> tuple[SetAffinity, ...]:
        """Return the operations with which `restore` would change masks of these threads.
        :param threads: the current threads, each with its process."""
        listed = list(threads)
        masks = self._with_unknown(self.masks.get(sandbox, OriginalMasks()), listed)
        listed = self._with_astray(masks, listed)
        return ordered(operation for operation in _restoring(sandbox, masks, listed, topology)
                       if self._changes(operation, topology))

    def _with_unknown(self, masks: OriginalMasks, threads: Threads) -> OriginalMasks:
        """Add as unknown the original masks of the threads' processes that cannot be known."""
        for main in filter(self.predates_record, {main for _, main in threads}):
            masks = masks.with_unknown(main)
        return masks

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
