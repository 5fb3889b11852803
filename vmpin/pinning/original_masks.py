"""The masks threads had before vmpin, so that they can be given back.

Pure. A thread born after vmpin came inherits a mask that vmpin made, so what it had "before" is what it would have
inherited: the mask its process's main thread had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ThreadId, VmThread


class ProcessMasks(NamedTuple):
    """Of one process: its main thread's mask, and those of its threads that had another."""

    main: CpuSet
    others: Mapping[ThreadId, CpuSet] = MappingProxyType({})


class OriginalMasks(NamedTuple):
    """Of one sandbox, by process (its main thread); a kernel thread is a process of its own."""

    processes: Mapping[ThreadId, ProcessMasks] = MappingProxyType({})

    def mask(self, thread: VmThread, main: ThreadId) -> CpuSet | None:
        """What `thread` of the process `main` had, None for a process that vmpin never touched."""
        known = self.processes.get(main)
        return None if known is None else known.others.get(thread.id, known.main)

    def remember(self, main: ThreadId, masks: Iterable[tuple[VmThread, CpuSet]]) -> OriginalMasks:
        """With a process met for the first time; one that is known stays as it was met."""
        if main in self.processes:
            return self
        found = {thread.id: cpus for thread, cpus in masks if cpus}
        if main not in found:
            return self
        kept = {id_: cpus for id_, cpus in found.items() if cpus != found[main]}
        return OriginalMasks({**self.processes, main: ProcessMasks(found[main], kept)})

    def of_parent(self, parent: ThreadId) -> CpuSet | None:
        """What the main thread of a process had of which another was born. That one's mask is vmpin's work, and no
        word on what it would have had."""
        known = self.processes.get(parent)
        return None if known is None else known.main

    def only(self, mains: Iterable[ThreadId]) -> OriginalMasks:
        """Without processes that have ended."""
        alive = set(mains)
        if self.processes.keys() <= alive:
            return self
        return OriginalMasks({main: masks for main, masks in self.processes.items() if main in alive})
