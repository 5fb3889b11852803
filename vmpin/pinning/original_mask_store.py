"""The original masks of all sandboxes' processes: recorded when a process is first seen, kept until they are restored,
and saved in the state file.

If the record of this boot was lost, a process older than the watcher may have a mask that vmpin set; its original mask
is unknown then.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Set

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import SandboxId, ThreadId, VmThread
from vmpin.host import boottime
from vmpin.host.procfs import Procfs
from vmpin.pinning.original_masks import OriginalMasks
from vmpin.pinning.plan import Observed
from vmpin.vmm.virtual_machine import Vm


class OriginalMaskStore:
    """Original masks by sandbox (`masks`).
    :param saved: the masks in the state file.
    :param lost: whether vmpin may have set masks since the machine booted without a record of the original ones.
    `learns`: whether the masks of new processes are recorded as original; False while vmpin only restores masks."""

    def __init__(self, proc: Procfs, saved: Mapping[SandboxId, OriginalMasks], lost: bool = False) -> None:
        self.proc = proc
        self.masks = dict(saved)
        self.learns = True
        #: Processes started at or before this time (clock ticks since boot) may have masks set by vmpin; -1: none.
        self._lost_until = boottime.now() * os.sysconf("SC_CLK_TCK") // 10**9 if lost else -1
        #: Processes whose masks were restored since: their masks are not vmpin's.
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

    def unknown(self, main: ThreadId) -> bool:
        """Whether a process without a record may have a mask that vmpin set."""
        return main.starttime <= self._lost_until and main not in self._restored

    def doubt(self, sandbox: SandboxId, mains: Iterable[ThreadId]) -> OriginalMasks | None:
        """Return a sandbox's original masks, after recording as unknown those of `mains` that cannot be known; None if
        there is nothing to restore."""
        for main in filter(self.unknown, mains):
            before = self.masks.get(sandbox, OriginalMasks())
            doubted = before.with_unknown(main)
            if doubted is not before:
                self.masks[sandbox] = doubted
                self.unsaved = True
        return self.masks.get(sandbox)

    def restored(self, sandbox: SandboxId) -> None:
        """Forget a sandbox's masks after they were restored."""
        self._restored |= self.masks.pop(sandbox).processes.keys()

    def remember(self, vm: Vm, observed: Iterable[Observed]) -> None:
        """Record the current masks of a VM's new processes as original."""
        before = self.masks.get(vm.sandbox, OriginalMasks())
        mains = [*(process.id for process in vm.processes()), *(thread.id for thread in vm.kernel_threads)]
        if len(mains) == len(before.processes) and all(main in before.processes for main in mains):
            return
        kept = before.only(mains)
        met: dict[int, list[tuple[VmThread, CpuSet]]] = {main.tid: [] for main in mains if main not in kept.processes}
        for seen in observed:
            if (mine := met.get(seen.thread.pid)) is not None:  # a kernel thread is its own process
                mine.append((seen.thread, seen.actual))
        for main in mains:
            if masks := met.get(main.tid):
                inherited = self._inherited(before, main)
                if inherited:
                    kept = kept.remember(main, [(thread, inherited) for thread, _ in masks])
                elif inherited is not None or self.unknown(main):
                    kept = kept.with_unknown(main)
                elif self.learns:
                    kept = kept.remember(main, masks)
        if kept is not before:
            self.masks[vm.sandbox] = kept
            self.unsaved = True

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

    def learn(self, sandbox: SandboxId, main: VmThread, mask: CpuSet) -> CpuSet | None:
        """Record the original mask of a process that is placed before its VM is known. :returns: the recorded mask,
        EMPTY if it is unknown; None if one was recorded before."""
        before = self.masks.get(sandbox, OriginalMasks())
        original = self._inherited(before, main.id)
        if original is None:
            original = EMPTY if self.unknown(main.id) else mask
        learned = before.remember(main.id, [(main, original)]) if original else before.with_unknown(main.id)
        if learned is before:
            return None
        self.masks[sandbox] = learned
        return original
