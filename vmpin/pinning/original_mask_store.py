"""The original masks of all sandboxes' processes: learned when a process is first seen, kept until they are restored.

After the record of this boot was lost, the mask of a process that is older than this one may be vmpin's own: its
original mask is not known then.

Changed by the pinner (a process seen in a pass), the reconciler (a process that has just appeared, one that ended) and
`restoration` (masks that were given back). Saved in the state file.
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
    """`masks` is by sandbox. :param saved: what the state file has.
    :param lost: whether vmpin may have set masks in this boot of which there is no record. `learns`: whether masks
    that are seen for the first time are taken for original ones; off where vmpin is only to leave."""

    def __init__(self, proc: Procfs, saved: Mapping[SandboxId, OriginalMasks], lost: bool = False) -> None:
        self.proc = proc
        self.masks = dict(saved)
        self.learns = True
        #: Processes that are as old or older, in clock ticks since boot, may have masks of vmpin's; -1 for none.
        self._lost_until = boottime.now() * os.sysconf("SC_CLK_TCK") // 10**9 if lost else -1
        #: Processes that have got their masks back since: what they have now is not vmpin's.
        self._restored: set[ThreadId] = set()
        #: Masks were learned that are not in the state file yet.
        self.unsaved = False

    def keep_only(self, sandboxes: Set[SandboxId], runs: Callable[[ThreadId], bool]) -> bool:
        """Forget other sandboxes, but for those of which a process still runs: it is followed no longer (watch.only),
        and has to get its mask back all the same. :returns: whether any was forgotten."""
        ended = [sandbox for sandbox in self.masks.keys() - sandboxes
                 if not any(map(runs, self.masks[sandbox].processes))]
        for sandbox in ended:
            del self.masks[sandbox]
        return bool(ended)

    def unknown(self, main: ThreadId) -> bool:
        """Whether a process that has no record may have a mask of vmpin's."""
        return main.starttime <= self._lost_until and main not in self._restored

    def doubt(self, sandbox: SandboxId, mains: Iterable[ThreadId]) -> OriginalMasks | None:
        """The original masks of a sandbox, with those of its processes that are not known, which are recorded as such;
        None where nothing is to be restored."""
        for main in filter(self.unknown, mains):
            before = self.masks.get(sandbox, OriginalMasks())
            doubted = before.with_unknown(main)
            if doubted is not before:
                self.masks[sandbox] = doubted
                self.unsaved = True
        return self.masks.get(sandbox)

    def restored(self, sandbox: SandboxId) -> None:
        """Forget the masks of a sandbox, which its threads have got back."""
        self._restored |= self.masks.pop(sandbox).processes.keys()

    def remember(self, vm: Vm, observed: Iterable[Observed]) -> None:
        """Learn the masks of a VM's processes that are seen for the first time: what a thread has then is its original
        mask."""
        before = self.masks.get(vm.sandbox, OriginalMasks())
        mains = [*(process.id for process in vm.processes()), *(thread.id for thread in vm.kernel_threads)]
        if len(mains) == len(before.processes) and all(main in before.processes for main in mains):
            return
        kept = before.only(mains)
        met: dict[int, list[tuple[VmThread, CpuSet]]] = {main.tid: [] for main in mains if main not in kept.processes}
        for seen in observed:
            if (mine := met.get(seen.thread.pid)) is not None:  # a kernel thread is a process of its own
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
        """The original mask of a process that was forked by one whose mask vmpin had set already, or that took its
        place (QEMU's -daemonize: the VM is a child of the process that was started, which ends). Empty where that
        one's is not known."""
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
        for it, empty where it is not known, None when there was one already."""
        before = self.masks.get(sandbox, OriginalMasks())
        original = self._inherited(before, main.id)
        if original is None:
            original = EMPTY if self.unknown(main.id) else mask
        learned = before.remember(main.id, [(main, original)]) if original else before.with_unknown(main.id)
        if learned is before:
            return None
        self.masks[sandbox] = learned
        return original
