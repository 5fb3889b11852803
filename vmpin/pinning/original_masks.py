"""The masks that threads had before vmpin set any, so that they can be restored.

Pure. A thread created later inherits a mask that vmpin set, so its original mask is the one it would have inherited:
that of its process's main thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ThreadId, VmThread


class ProcessMasks(NamedTuple):
    """The masks of one process: its main thread's mask (empty: not known, as the record was lost), and those of its
    threads that had another."""

    main: CpuSet
    others: Mapping[ThreadId, CpuSet] = MappingProxyType({})


class OriginalMasks(NamedTuple):
    """Of one sandbox, by process (its main thread); a kernel thread is a process of its own."""

    processes: Mapping[ThreadId, ProcessMasks] = MappingProxyType({})

    def mask(self, thread: VmThread, main: ThreadId) -> CpuSet | None:
        """The original mask of a thread of the process `main`, empty where it is not known; None for a process of
        which none was learned."""
        masks = self.processes.get(main)
        return None if masks is None else masks.others.get(thread.id, masks.main)

    def remember(self, main: ThreadId, masks: Sequence[tuple[VmThread, CpuSet]]) -> OriginalMasks:
        """Return these with the masks of a process that is seen for the first time; unchanged for one that was seen
        before."""
        if main in self.processes:
            return self
        mine = next((cpus for thread, cpus in masks if thread.id == main), None)
        if not mine:
            return self
        kept = {thread.id: cpus for thread, cpus in masks if cpus is not mine and cpus and cpus != mine}
        return OriginalMasks({**self.processes, main: ProcessMasks(mine, kept)})

    def with_unknown(self, main: ThreadId) -> OriginalMasks:
        """Return these with a process whose original mask is not known; unchanged for one that was seen before."""
        if main in self.processes:
            return self
        return OriginalMasks({**self.processes, main: ProcessMasks(EMPTY)})

    def of_parent(self, parent: ThreadId) -> CpuSet | None:
        """The original mask of a process that `parent` forked: its parent's, as its own mask was set by vmpin."""
        masks = self.processes.get(parent)
        return None if masks is None else masks.main

    def only(self, mains: Iterable[ThreadId]) -> OriginalMasks:
        """Return these without the processes that have ended: all but the given ones."""
        alive = set(mains)
        if self.processes.keys() <= alive:
            return self
        return OriginalMasks({main: masks for main, masks in self.processes.items() if main in alive})
