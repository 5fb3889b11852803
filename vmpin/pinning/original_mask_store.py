"""The original masks of all sandboxes' processes: learned when a process is first seen, kept until they are restored.

Changed by the pinner (a process seen in a pass), the reconciler (a process that has just appeared, one that ended) and
`restoration` (masks that were given back). Saved in the state file. What stays out: setting masks (restoration).
Called by pinner, restoration and reconcile.node_state.
"""

from collections.abc import Callable, Iterable, Mapping, Set

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, VmThread
from vmpin.host.procfs import Procfs
from vmpin.pinning.original_masks import OriginalMasks
from vmpin.pinning.plan import Observed
from vmpin.vmm.virtual_machine import Vm


class OriginalMaskStore:
    """`masks` is by sandbox. :param saved: what the state file has."""

    def __init__(self, proc: Procfs, saved: Mapping[SandboxId, OriginalMasks]) -> None:
        self.proc = proc
        self.masks = dict(saved)
        #: Masks were learned that are not in the state file yet.
        self.unsaved = False

    def keep_only(self, sandboxes: Set[SandboxId], runs: Callable[[ThreadId], bool]) -> bool:
        """Forget other sandboxes, but for those of which a process still runs: it is followed no longer (watch.only),
        and has to get its mask back all the same. :returns: whether any was forgotten."""
        gone = [sandbox for sandbox in self.masks.keys() - sandboxes
                if not any(map(runs, self.masks[sandbox].processes))]
        for sandbox in gone:
            del self.masks[sandbox]
        return bool(gone)

    def remember(self, vm: Vm, observed: Iterable[Observed]) -> None:
        """Learn the masks of a VM's processes that are seen for the first time: what a thread has then is its original
        mask."""
        before = self.masks.get(vm.sandbox, OriginalMasks())
        here = [*(process.id for process in vm.processes()), *(thread.id for thread in vm.kernel_threads)]
        if len(here) == len(before.processes) and all(main in before.processes for main in here):
            return
        kept = before.only(here)
        met: dict[int, list[tuple[VmThread, CpuSet]]] = {main.tid: [] for main in here if main not in kept.processes}
        for seen in observed:
            if (mine := met.get(seen.thread.pid)) is not None:  # a kernel thread is a process of its own
                mine.append((seen.thread, seen.actual))
        for main in here:
            if masks := met.get(main.tid):
                had = self._inherited(before, main)
                kept = kept.remember(main, masks if had is None else [(thread, had) for thread, _ in masks])
        if kept is not before:
            self.masks[vm.sandbox] = kept
            self.unsaved = True

    def _inherited(self, before: OriginalMasks, process: ThreadId) -> CpuSet | None:
        """The original mask of a process that was forked by one whose mask vmpin had set already, or that took its
        place (QEMU's -daemonize: the VM is a child of the process that was started, which ends)."""
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

    def learn(self, sandbox: SandboxId, main: VmThread, mask: CpuSet) -> CpuSet | None:
        """Learn the mask of a process that is placed before its VM is seen. :returns: the original mask that is kept
        for it, None when there was one already."""
        before = self.masks.get(sandbox, OriginalMasks())
        had = self._inherited(before, main.id) or mask
        learned = before.remember(main.id, [(main, had)])
        if learned is before:
            return None
        self.masks[sandbox] = learned
        return had
