"""Which mask each thread is to have, and what it had: the notes of them, setting them, and putting them back."""

from __future__ import annotations

import os
import re
from typing import Callable, Dict, Iterable, List, Optional, Set, Tuple

from vmpin.cpuset import CpuSet
from vmpin_agent import threads
from vmpin_agent.memory import Kept, Memory
from vmpin_agent.threads import ThreadKey

#: Linux before 6.2 forgets a thread's mask when its cpuset changes, and gives it all of that (kernel commit
#: 8f9ea86fdf99): then that is no wish of the thread's.
_FORGETFUL = tuple(int(each) for each in re.findall(r"[0-9]+", os.uname().release)[:2]) < (6, 2)

#: A process that makes threads faster than they are pinned is looked at again a second later.
_ROUNDS = 10


class Group:
    """Threads that are pinned one by one: those that `tids` gives now, on `cpus`.

    :param base: what a thread of them has without a wish of its own.
    """

    def __init__(self, cid: str, tids: Callable[[], Iterable[int]], cpus: CpuSet, base: CpuSet) -> None:
        self.cid = cid
        self.tids = tids
        self.cpus = cpus
        self.base = base
        self.seen: Set[int] = set()
        #: What is wrong with some of them.
        self.trouble = ""


class Masks:
    """The threads of one pass. :param everything: the mask of a thread that has none of its own."""

    def __init__(self, proc: str, memory: Memory, everything: CpuSet) -> None:
        self._proc = proc
        self._memory = memory
        self._everything = everything
        self._by_tid = {key.tid: key for key in memory.threads}
        self._seen: Set[ThreadKey] = set()
        #: By container, the masks that its threads were given: a new thread begins with its creator's.
        self._given: Dict[str, Set[CpuSet]] = {}
        for kept in memory.threads.values():
            if kept.own is None:
                self._given.setdefault(kept.container, set()).update(kept.ours)

    def noted(self, tid: int) -> bool:
        return tid in self._by_tid

    def note(self, tid: int, now: CpuSet, base: CpuSet, cid: str) -> Optional[ThreadKey]:
        """Remember what a thread has before it is changed; None when it has ended.

        :param base: what it would have without a wish of its own.
        """
        key = threads.key(self._proc, tid)
        if key is None:
            return None
        self._seen.add(key)
        kept = self._memory.threads.get(key)
        if kept is None or kept.container != cid or now not in kept.ours:
            given = self._given.get(cid, set())
            own = now if now and now < base and now not in given and now not in self._memory.system else None
            if kept is None:
                kept = self._memory.threads[key] = Kept(cid, own or self._everything, own)
                self._by_tid[tid] = key
                self._memory.changed()
            elif _FORGETFUL and now == base and kept.container == cid:
                return key
            elif (kept.container, kept.own) != (cid, own) and now != kept.own:
                kept.container, kept.own, kept.before = cid, own, own or self._everything
                self._memory.changed()
        return key

    def will_be(self, key: ThreadKey, cpus: CpuSet) -> CpuSet:
        """What the thread is to have of these CPUs, noted."""
        kept = self._memory.threads[key]
        target = kept.within(cpus)
        if kept.will_be(target):
            self._memory.changed()
        if kept.own is None:
            self._given.setdefault(kept.container, set()).add(target)
        return target

    def pin_all(self, groups: List[Group]) -> None:
        """Pin every thread of every group, until there is no new one. All are noted, and the notes kept, before."""
        for _ in range(_ROUNDS):
            planned: List[Tuple[Group, ThreadKey, CpuSet]] = []
            noted: List[ThreadKey] = []
            groups = [group for group in groups if self._plan(group, planned, noted)]
            if not groups:
                return
            trouble = self._memory.save()
            for group, key, target in planned:
                group.trouble = threads.pin(self._proc, key, target) or group.trouble or trouble
            for key in noted:
                self._memory.threads[key].done()

    def _plan(self, group: Group, planned: List[Tuple[Group, ThreadKey, CpuSet]], noted: List[ThreadKey]) -> bool:
        """:returns: whether it had threads that were not looked at yet."""
        fresh = [tid for tid in group.tids() if tid not in group.seen]
        for tid in fresh:
            now = threads.mask(tid)
            key = None if now is None else self.note(tid, now, group.base, group.cid)
            if now is None or key is None:
                continue
            group.seen.add(tid)
            noted.append(key)
            target = self.will_be(key, group.cpus)
            if now != target:
                planned.append((group, key, target))
        return bool(fresh)

    def settle(self, key: ThreadKey, cpus: CpuSet) -> str:
        """In a cpuset of these CPUs: its own wish again, which older kernels forget when the cpuset changes."""
        target = self.will_be(key, cpus)
        trouble = "" if threads.mask(key.tid) == target else threads.pin(self._proc, key, target)
        self._memory.threads[key].done()
        return trouble

    def prune(self) -> None:
        """Forget the threads that have ended."""
        dead = [key for key in self._memory.threads
                if key not in self._seen and threads.key(self._proc, key.tid) != key]
        for key in dead:
            del self._memory.threads[key]
        if dead:
            self._memory.changed()

    def restore(self, keys: Iterable[ThreadKey]) -> None:
        """Put them back to what they had before, and forget them; not one that was changed since."""
        for key in list(keys):
            kept = self._memory.threads.pop(key)
            self._memory.changed()
            if kept.own is not None or threads.mask(key.tid) in kept.ours:
                threads.pin(self._proc, key, kept.before)


def outside(tids: Iterable[int], cpus: CpuSet) -> List[int]:
    """Those of them that may run elsewhere."""
    found = []
    for tid in tids:
        mask = threads.mask(tid)
        if mask is not None and not mask <= cpus:
            found.append(tid)
    return found
