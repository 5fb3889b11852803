"""Threads' masks: noting the originals, setting new ones, and restoring."""

import os
import re
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from vmpin.cpuset import CpuSet
from vmpin_agent import guest_threads
from vmpin_agent.guest_threads import ThreadKey
from vmpin_agent.originals import Original, Originals

#: Linux before 6.2 forgets a thread's mask when its cpuset changes, and gives it all of that (kernel commit
#: 8f9ea86fdf99): then that is no wish of the thread's. Nor does it take a CPU into a mask that is not online.
_FORGETFUL = tuple(int(number) for number in re.findall(r"[0-9]+", os.uname().release)[:2]) < (6, 2)

#: Rounds of listing new threads; with a process that creates them faster the agent continues a second later.
_ROUNDS = 10


class PinTarget:
    """The container or group that threads are pinned for; `trouble` is the error of one of them, "" without one."""

    trouble = ""


class ThreadGroup(PinTarget):
    """Threads pinned one by one: what `tids` gives now, on `cpus`. `base` is the mask of one without its own wish."""

    def __init__(self, cid: str, tids: Callable[[], Iterable[int]], cpus: CpuSet, base: CpuSet) -> None:
        self.cid = cid
        self.tids = tids
        self.cpus = cpus
        self.base = base
        self.seen: Set[int] = set()


class ThreadMasks:
    """The threads of one pass. :param everything: the mask of a thread that has none of its own."""

    def __init__(self, proc: str, originals: Originals, everything: CpuSet) -> None:
        self._proc = proc
        self._originals = originals
        self._everything = everything
        self._noted = {key.tid for key in originals.threads}
        self._seen: Set[ThreadKey] = set()
        #: By container, the masks that its threads were given: a new thread begins with its creator's.
        self._given: Dict[str, Set[CpuSet]] = {}
        for kept in originals.threads.values():
            if kept.own is None:
                self._given.setdefault(kept.container, set()).update(kept.ours)

    def noted(self, tid: int) -> bool:
        return tid in self._noted

    def note(self, tid: int, now: CpuSet, base: CpuSet, cid: str) -> Optional[ThreadKey]:
        """Remember a thread's mask before it is changed; None if it has ended. :param base: as of a ThreadGroup."""
        key = guest_threads.key(self._proc, tid)
        if key is None:
            return None
        self._seen.add(key)
        kept = self._originals.threads.get(key)
        if kept is not None and kept.container == cid and (
                now in kept.ours or now == kept.within(base) or (_FORGETFUL and now == base)):
            return key  # as it was left, or what its cpuset made of that
        own = now if now and now < base and not self._is_inherited(now, cid) else None
        if kept is None:
            self._originals.threads[key] = Original(cid, own or self._everything, own)
            self._noted.add(tid)
            self._originals.changed()
        elif (kept.container, kept.own) != (cid, own) and now != kept.own:
            kept.container, kept.own, kept.before = cid, own, own or self._everything
            self._originals.changed()
        return key

    def _is_inherited(self, now: CpuSet, cid: str) -> bool:
        """Whether a mask may have been inherited from the creator, instead of being set by the thread itself."""
        return (now in self._given.get(cid, ()) or now in self._originals.left
                or (cid != "" and now in self._originals.system))

    def will_be(self, key: ThreadKey, cpus: CpuSet) -> CpuSet:
        """The part of these CPUs that the thread gets; notes it."""
        kept = self._originals.threads[key]
        target = kept.within(cpus)
        if kept.will_be(target):
            self._originals.changed()
        if kept.own is None:
            self._given.setdefault(kept.container, set()).add(target)
        return target

    def pin_all(self, groups: List[ThreadGroup]) -> None:
        """Pin every thread of every group, until there is no new one."""
        for _ in range(_ROUNDS):
            planned: List[Tuple[PinTarget, ThreadKey, CpuSet]] = []
            groups = [group for group in groups if self._plan(group, planned)]
            self.pin(planned)

    def _plan(self, group: ThreadGroup, planned: List[Tuple[PinTarget, ThreadKey, CpuSet]]) -> bool:
        """Add the group's new threads to `planned`. :returns: whether there were any."""
        fresh = [tid for tid in group.tids() if tid not in group.seen]
        for tid in fresh:
            now = guest_threads.mask(tid)
            key = None if now is None else self.note(tid, now, group.base, group.cid)
            if key is not None:
                group.seen.add(tid)
                planned.append((group, key, group.cpus))
        return bool(fresh)

    def pin(self, planned: Sequence[Tuple[PinTarget, ThreadKey, CpuSet]]) -> None:
        """Give each thread its part of the CPUs. The notes are saved before any mask is set."""
        targets = [(of, key, self.will_be(key, cpus)) for of, key, cpus in planned]
        trouble = self._originals.save()
        for of, key, target in targets:
            if guest_threads.mask(key.tid) != target:
                of.trouble = guest_threads.pin(self._proc, key, target) or of.trouble or trouble
            self._originals.threads[key].done()

    def prune(self) -> None:
        """Forget the threads that have ended."""
        for key in list(self._originals.threads):
            if key not in self._seen and guest_threads.key(self._proc, key.tid) != key:
                del self._originals.threads[key]
                self._originals.changed()

    def restore(self, cids: Set[str], tids: Callable[[], Iterable[int]]) -> None:
        """Restore the masks of these containers' threads, unless their owner has changed them since; forget them.
        :param tids: returns all present threads: those created since the last pass inherited their creator's mask."""
        masks = {cpus for cid in cids for cpus in self._given.get(cid, ())}
        for key, kept in list(self._originals.threads.items()):
            if kept.container not in cids:
                continue
            del self._originals.threads[key]
            self._originals.changed()
            if kept.own is not None or guest_threads.mask(key.tid) in kept.ours:
                self._let_go(key, kept.before)
        self.free(masks, tids)

    def free(self, masks: Set[CpuSet], tids: Callable[[], Iterable[int]]) -> None:
        """Give every CPU to the threads that have one of these masks and no notes, now or earlier."""
        seen: Set[int] = set()
        for _ in range(_ROUNDS if masks else 0):
            fresh = [tid for tid in tids() if tid not in seen]
            seen.update(fresh)
            for tid in fresh:
                free = not self.noted(tid) and guest_threads.mask(tid) in masks
                key = guest_threads.key(self._proc, tid) if free else None
                if key is not None:
                    self._let_go(key, self._everything)
            if not fresh:
                return

    def _let_go(self, key: ThreadKey, before: CpuSet) -> None:
        guest_threads.pin(self._proc, key, before)
        got = guest_threads.mask(key.tid) if _FORGETFUL and before == self._everything else None
        if got is not None and got != before:
            self._originals.add(self._originals.left, got)


def outside(tids: Iterable[int], cpus: CpuSet) -> List[int]:
    """The threads whose mask is not within these CPUs."""
    masks = ((tid, guest_threads.mask(tid)) for tid in tids)
    return [tid for tid, mask in masks if mask is not None and not mask <= cpus]
