"""The masks that threads had before vmpin set any, so that they can be restored.

Pure. A thread created later inherits a mask that vmpin set. Its original mask is the one that it would have inherited
without vmpin: that of its process's main thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ThreadId, VmThread
from vmpin.named_tuple import NamedTuple


class ProcessMasks(NamedTuple):
    """The original masks of one process: its main thread's mask (EMPTY if unknown, because the record was lost), and
    the masks of threads that had a different one."""

    main: CpuSet
    others: Mapping[ThreadId, CpuSet] = MappingProxyType({})


class OriginalMasks(NamedTuple):
    """The original masks of one sandbox by process (main thread). A kernel thread is its own process."""

    processes: Mapping[ThreadId, ProcessMasks] = MappingProxyType({})

    def mask(self, thread: VmThread, main: ThreadId) -> CpuSet | None:
        """The original mask of a thread of process `main`, EMPTY if unknown; None if none was recorded."""
        masks = self.processes.get(main)
        return None if masks is None else masks.others.get(thread.id, masks.main)

    def with_process(self, main: ThreadId, masks: Sequence[tuple[VmThread, CpuSet]]) -> OriginalMasks:
        """Return a copy with the masks of a new process; `self` if the process is recorded already."""
        if main in self.processes:
            return self
        main_mask = next((cpus for thread, cpus in masks if thread.id == main), None)
        if not main_mask:
            return self
        kept = {thread.id: cpus for thread, cpus in masks if cpus is not main_mask and cpus and cpus != main_mask}
        return OriginalMasks({**self.processes, main: ProcessMasks(main_mask, kept)})

    def with_unknown(self, main: ThreadId) -> OriginalMasks:
        """Return a copy with a process whose original mask is unknown; `self` if it is recorded already."""
        if main in self.processes:
            return self
        return OriginalMasks({**self.processes, main: ProcessMasks(EMPTY)})

    def of_parent(self, parent: ThreadId) -> CpuSet | None:
        """The original mask of a process forked by `parent`: the parent's, because it inherited vmpin's mask."""
        masks = self.processes.get(parent)
        return None if masks is None else masks.main

    def only(self, mains: Iterable[ThreadId]) -> OriginalMasks:
        """Return a copy with these processes only; `self` if there are no others."""
        alive = set(mains)
        if self.processes.keys() <= alive:
            return self
        return OriginalMasks({main: masks for main, masks in self.processes.items() if main in alive})
