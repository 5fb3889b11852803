"""Makes a map true in the guest, and says what became of it: the whole of it each time, and what is so already stays.

Everything is looked at and noted first, then changed, then read back. By the container's own cpuset, so that every
new process is born in it; where there is none, or it refuses, thread by thread.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Set, Tuple

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.guestproto import APPLIED, ERROR, MAX_OUTSIDE, PENDING, UNKNOWN, Applied, Map, Outcome
from vmpin_agent import cpusets, files, system
from vmpin_agent.cgroups import Cgroups, Place, walk
from vmpin_agent.cpus import Cpus, CpuTable
from vmpin_agent.masks import Group, Masks, outside
from vmpin_agent.memory import Memory
from vmpin_agent.threads import ThreadKey, mask


class Work:
    """One container in one pass."""

    def __init__(self, cid: str, place: Place, wanted: CpuSet, lacking: str, pending: bool, others: Set[str]) -> None:
        self.cid = cid
        self.place = place
        self.wanted = wanted
        self.lacking = lacking
        self.pending = pending
        self.directories = [place.path, *(path for path, _ in walk(place.path, others))]
        #: Threads with a mask of their own, and the cgroup each is in.
        self.narrower: List[Tuple[ThreadKey, str]] = []
        self.writes: Optional[List[cpusets.Write]] = None
        self.trouble = ""


class Pinner:
    """:param memory: what was before, this agent's or an earlier one's."""

    def __init__(self, proc: str, cpus: Cpus, cgroups: Cgroups, memory: Memory) -> None:
        self._proc = proc
        self._cpus = cpus
        self._cgroups = cgroups
        self._memory = memory
        self._everything = cpus.everything()

    def apply(self, map: Map) -> Applied:
        table = self._cpus.read()
        masks = Masks(self._proc, self._memory, self._everything)
        places = self._cgroups.locate(set(map.containers))
        self._give_back(masks, set(places) & set(map.containers), map.system is not None)
        works, outcomes = self._begin(map, table, places)
        for work in works:
            self._gather(work, masks, table.online)
        self._enable(works)
        for work in works:
            work.writes = cpusets.plan(work.place, work.directories[1:], work.cid, work.wanted, self._memory)
        self._note_trouble(self._memory.save())
        refused = {work: self._group(work, table.online) for work in works if not self._change(work, masks)}
        masks.pin_all(list(refused.values()))
        for work, group in refused.items():
            work.trouble = work.trouble or group.trouble
        for work in works:
            outcomes[work.cid] = self._check(work)
        for cid, place in places.items():
            if cid in outcomes and not outcomes[cid].wanted:
                work = Work(cid, place, EMPTY, "", False, set())
                outcomes[cid] = outcomes[cid]._replace(threads=len(self._tids(work)), processes=self._processes(work))
        told = None if map.system is None else self._system(map, map.system, table, masks)
        masks.prune()
        self._note_trouble(self._memory.save())
        ordered = {cid: outcomes[cid] for cid in map.containers}
        return Applied(None, map.generation, ordered, told)

    def unpin(self) -> None:
        """Everything as it was before the first map."""
        masks = Masks(self._proc, self._memory, self._everything)
        cpusets.restore(self._cgroups, self._memory, list(self._memory.cgroups))
        for path in reversed(self._memory.enabled):
            self._note_trouble(cpusets.run(cpusets.Write(path, "cgroup.subtree_control", "-cpuset")))
        masks.restore(list(self._memory.threads))
        self._memory.forget()
        self._note_trouble(self._memory.save())

    def _begin(self, map: Map, table: CpuTable, places: Dict[str, Place]) -> Tuple[List[Work], Dict[str, Outcome]]:
        works, outcomes = [], {}
        paths = {place.path for place in places.values()}
        for cid, share in map.containers.items():
            wanted, lacking, pending = table.find(share.hw)
            if cid not in places:
                outcomes[cid] = Outcome(UNKNOWN, wanted=wanted, error="no such container in the guest")
            elif not wanted:
                # An empty cpuset would stop it, and all CPUs would be other containers'.
                outcomes[cid] = Outcome(PENDING if pending else ERROR, places[cid].shown,
                                        error=lacking or "it is given no vCPU")
            else:
                works.append(Work(cid, places[cid], wanted, lacking, pending, paths))
        return works, outcomes

    def _give_back(self, masks: Masks, named: Set[str], system: bool) -> None:
        """What was pinned for a container that is no longer named, or has ended."""
        stays = {"", *named}
        gone = [path for path, kept in self._memory.cgroups.items() if kept.container not in stays]
        if gone:
            cpusets.restore(self._cgroups, self._memory, gone)
        masks.restore([key for key, kept in self._memory.threads.items()
                       if kept.container not in stays or (not kept.container and not system)])

    def _tids(self, work: Work) -> List[int]:
        return [tid for path in work.directories for tid in self._cgroups.threads(work.place.hierarchy, path)]

    def _processes(self, work: Work) -> int:
        return sum(len(self._cgroups.processes(path)) for path in work.directories)

    def _gather(self, work: Work, masks: Masks, online: CpuSet) -> None:
        """The threads that have another mask than their cgroup gives them: before a cpuset changes, which may take
        their masks from them (Linux before 6.2)."""
        for path in work.directories:
            base = cpusets.effective(work.place.hierarchy, path) or online
            for tid in self._cgroups.threads(work.place.hierarchy, path):
                now = mask(tid)
                if now is None or (now == base and not masks.noted(tid)):
                    continue
                key = masks.note(tid, now, base, work.cid)
                if key is not None:
                    work.narrower.append((key, path))

    def _enable(self, works: List[Work]) -> None:
        paths = {work.cid: cpusets.closed(work.place) for work in works}
        fresh = [path for each in paths.values() for path in each if path not in self._memory.enabled]
        if fresh:
            self._memory.enabled = sorted({*self._memory.enabled, *fresh}, key=lambda path: path.count("/"))
            self._memory.changed()
        self._note_trouble(self._memory.save())
        for work in works:
            work.trouble = cpusets.enable(cpusets.closed(work.place)) if paths[work.cid] else ""
            refused = cpusets.closed(work.place) if work.trouble else []
            self._memory.enabled = [path for path in self._memory.enabled if path not in refused]

    def _change(self, work: Work, masks: Masks) -> bool:
        """:returns: whether its cpuset does it; else its threads are to be pinned."""
        hierarchy = work.place.hierarchy
        if work.writes is not None:
            for write in work.writes:
                work.trouble = cpusets.run(write) or work.trouble
            for path in {write.path for write in work.writes} & self._memory.cgroups.keys():
                self._memory.cgroups[path].done()
            got = cpusets.effective(hierarchy, work.place.path)
            if got and got <= work.wanted and not work.trouble:
                for key, path in work.narrower:
                    work.trouble = masks.settle(key, cpusets.effective(hierarchy, path) or got) or work.trouble
                return True
            work.writes = None
            work.trouble = work.trouble or f"its cgroup leaves it {got or 'no CPU'}"
        return False

    def _group(self, work: Work, online: CpuSet) -> Group:
        base = cpusets.effective(work.place.hierarchy, work.place.path) or online
        return Group(work.cid, lambda: self._tids(work), (work.wanted & base) or work.wanted, base)

    def _check(self, work: Work) -> Outcome:
        tids = self._tids(work)
        out = outside(tids, work.wanted)
        if work.writes is not None:
            got = cpusets.effective(work.place.hierarchy, work.place.path) or EMPTY
            if got != work.wanted:
                work.lacking = work.lacking or f"the cgroups above leave it {got or 'no CPU'}"
        else:
            got = union(mask(tid) or EMPTY for tid in tids)
        state = PENDING if out or work.pending else ERROR if work.lacking else APPLIED
        cgroup = work.place.shown if work.writes is not None else None
        return Outcome(state, cgroup, work.wanted, got, self._processes(work), len(tids), tuple(out[:MAX_OUTSIDE]),
                       "; ".join(filter(None, (work.lacking, work.trouble))))

    def _system(self, map: Map, hw: Tuple[int, ...], table: CpuTable, masks: Masks) -> Outcome:
        wanted, lacking, pending = table.find(hw)
        if not wanted:
            return Outcome(PENDING if pending else ERROR, error=lacking or "it is given no vCPU")
        if not self._cgroups.hierarchies:
            return Outcome(ERROR, wanted=wanted, error="no cgroups: containers' processes cannot be told apart")
        inside: Set[int] = set()
        for place in self._cgroups.all(set(map.containers)).values():
            for path in (place.path, *(path for path, _ in walk(place.path))):
                inside.update(self._cgroups.processes(path))
        outcome = system.pin(self._proc, self._memory, masks, wanted, table.online, inside)
        if lacking and outcome.state == APPLIED:
            outcome = outcome._replace(state=PENDING if pending else ERROR)
        return outcome._replace(error="; ".join(filter(None, (lacking, outcome.error))))

    def _note_trouble(self, trouble: str) -> None:
        if trouble:
            files.log(trouble)
