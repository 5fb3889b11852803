"""Applies a map in the guest and reports the outcome. Idempotent: the whole map each time, and nothing is set twice.

In three steps: read and note the originals, change, read back. A container is narrowed by the cpuset of its cgroup, so
that new processes inherit it; without a cpuset, or if it cannot be written, thread by thread."""

from typing import Dict, List, Optional, Set, Tuple

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.protocol.frames import clean
from vmpin.protocol.messages import APPLIED, ERROR, MAX_OUTSIDE, PENDING, UNKNOWN, Applied, ContainerOutcome, VcpuMap
from vmpin_agent import cpusets, file_io, system_processes
from vmpin_agent.guest_cgroups import ContainerCgroup, GuestCgroups, within
from vmpin_agent.guest_cpus import CpuReader, CpuTable
from vmpin_agent.guest_threads import ThreadKey, mask
from vmpin_agent.originals import Originals
from vmpin_agent.thread_masks import PinTarget, ThreadGroup, ThreadMasks, outside

#: Attempts to read threads and their cpuset consistently while another program writes the cpuset.
_TRIES = 5


class ContainerWork(PinTarget):
    """One container while a map is applied."""

    def __init__(self, cid: str, place: ContainerCgroup, wanted: CpuSet, lacking: str, pending: bool,
                 excluded: Set[str]) -> None:
        self.cid = cid
        self.place = place
        self.wanted = wanted
        self.lacking = lacking
        self.pending = pending
        self.directories = within(place, excluded)
        #: Threads with a mask of their own, and the cgroup each is in.
        self.narrower: List[Tuple[ThreadKey, str]] = []
        self.writes: Optional[List[cpusets.CpusetWrite]] = None


class MapApplier:
    """:param originals: the originals, noted by this agent or an earlier one."""

    def __init__(self, proc: str, cpus: CpuReader, cgroups: GuestCgroups, originals: Originals) -> None:
        self._proc = proc
        self._cpus = cpus
        self._cgroups = cgroups
        self._originals = originals
        self._everything = cpus.everything()

    def apply(self, map: VcpuMap) -> Applied:
        """Change cpusets and masks as the map demands. :returns: the outcome for each container, without an id."""
        table = self._cpus.read()
        masks = ThreadMasks(self._proc, self._originals, self._everything)
        places = self._give_back(masks, map)
        works, outcomes = self._begin(map, table, places)
        for work in works:
            self._gather(work, masks, table.online)
        self._enable(works)
        for work in works:
            work.writes = cpusets.plan(work.place, work.directories[1:], work.cid, work.wanted, self._originals)
        file_io.log(self._originals.save())
        refused = {work: self._group(work, table.online) for work in works if not self._change(work)}
        # Set threads' own masks again, which older kernels drop when the cpuset changes.
        masks.pin([(work, key, cpusets.effective(work.place.hierarchy, path) or work.wanted)
                   for work in works if work not in refused for key, path in work.narrower])
        masks.pin_all(list(refused.values()))
        for work, group in refused.items():
            work.trouble = work.trouble or group.trouble
        for work in works:
            outcomes[work.cid] = self._check(work)
        own = None if map.system is None else self._system(map, map.system, table, masks)
        masks.prune()
        cpusets.prune(self._originals)
        file_io.log(self._originals.save())
        return Applied(None, map.generation, {cid: outcomes[cid] for cid in map.containers}, own)

    def unpin(self) -> None:
        """Restore everything to what it was before the first map."""
        kept = self._originals.containers()
        cpusets.restore(self._cgroups, self._originals, list(self._originals.cgroups))
        for path in reversed(self._originals.enabled):
            file_io.log(cpusets.run(cpusets.CpusetWrite(path, "cgroup.subtree_control", "-cpuset")))
        masks = ThreadMasks(self._proc, self._originals, self._everything)
        self._restore(masks, kept, self._cgroups.locate(kept - {""}))
        self._originals.forget()
        file_io.log(self._originals.save())

    def cpus_changed(self) -> None:
        """Give freed threads the CPUs that have come online since (Linux before 6.2)."""
        if self._originals.left:
            masks = ThreadMasks(self._proc, self._originals, self._everything)
            masks.free(set(self._originals.left), system_processes.SystemProcesses(self._proc, set()).threads)
            file_io.log(self._originals.save())

    def _begin(self, map: VcpuMap, table: CpuTable, places: Dict[str, ContainerCgroup]
               ) -> Tuple[List[ContainerWork], Dict[str, ContainerOutcome]]:
        """The containers to work on, and the outcomes of those that cannot be."""
        works, outcomes = [], {}
        paths_in_map = {place.path for place in places.values()}
        for cid, share in map.containers.items():
            wanted, lacking, pending = table.find(share.hw)
            if cid not in places:
                outcomes[cid] = ContainerOutcome(UNKNOWN, wanted=wanted, error="no such container in the guest")
            elif not wanted:
                # An empty cpuset would stop it, and all CPUs would include other containers'.
                place, paths = places[cid], within(places[cid], paths_in_map)
                outcomes[cid] = ContainerOutcome(PENDING if pending else ERROR, place.shown, EMPTY, EMPTY,
                                                 self._cgroups.count(paths), len(self._tids(place, paths)),
                                                 error=lacking or "the map gives it no vCPU")
            else:
                works.append(ContainerWork(cid, places[cid], wanted, lacking, pending, paths_in_map))
        return works, outcomes

    def _give_back(self, masks: ThreadMasks, map: VcpuMap) -> Dict[str, ContainerCgroup]:
        """Restore what containers had that left the map or have ended. :returns: the cgroups of those in the map."""
        kept = self._originals.containers()
        places = self._cgroups.locate((set(map.containers) | kept) - {""})
        named = {cid: place for cid, place in places.items() if cid in map.containers}
        cpusets.restore(self._cgroups, self._originals, [path for path, original in self._originals.cgroups.items()
                                                         if original.container not in ("", *named)])
        self._restore(masks, kept - named.keys() - ({""} if map.system is not None else set()), places)
        return named

    def _restore(self, masks: ThreadMasks, cids: Set[str], places: Dict[str, ContainerCgroup]) -> None:
        own = self._own(set(places)) if "" in cids else None

        def tids() -> List[int]:
            members = [tid for cid in cids & places.keys() for tid in self._tids(places[cid], within(places[cid]))]
            return members if own is None else members + own.threads()

        if cids:
            masks.restore(cids, tids)

    def _own(self, named: Set[str]) -> system_processes.SystemProcesses:
        inside = {pid for place in self._cgroups.all(named).values() for path in within(place)
                  for pid in self._cgroups.processes(path)}
        return system_processes.SystemProcesses(self._proc, inside)

    def _tids(self, place: ContainerCgroup, paths: List[str]) -> List[int]:
        return [tid for path in paths for tid in self._cgroups.threads(place.hierarchy, path)]

    def _gather(self, work: ContainerWork, masks: ThreadMasks, online: CpuSet) -> None:
        """Note threads whose mask differs from their cgroup's cpuset: Linux before 6.2 drops it when that changes."""
        for path in work.directories:
            for _ in range(_TRIES):
                base = cpusets.effective(work.place.hierarchy, path) or online
                masked = ((tid, mask(tid)) for tid in self._cgroups.threads(work.place.hierarchy, path))
                odd = [(tid, now) for tid, now in masked if now is not None and (now != base or masks.noted(tid))]
                # Otherwise a cpuset that another program writes meanwhile, such as Kata's agent, looks like the
                # threads' own mask.
                if not odd or base == (cpusets.effective(work.place.hierarchy, path) or online):
                    break
            for tid, now in odd:
                key = masks.note(tid, now, base, work.cid)
                if key is not None:
                    work.narrower.append((key, path))

    def _enable(self, works: List[ContainerWork]) -> None:
        paths = {work.cid: cpusets.closed(work.place) for work in works}
        fresh = [path for group in paths.values() for path in group if path not in self._originals.enabled]
        if fresh:
            self._originals.enabled = sorted({*self._originals.enabled, *fresh}, key=lambda path: path.count("/"))
            self._originals.changed()
        file_io.log(self._originals.save())
        for work in works:
            work.trouble = cpusets.enable(cpusets.closed(work.place)) if paths[work.cid] else ""
            refused = cpusets.closed(work.place) if work.trouble else []
            self._originals.enabled = [path for path in self._originals.enabled if path not in refused]

    def _change(self, work: ContainerWork) -> bool:
        """Write the container's cpuset. :returns: False if that does not narrow it: its threads have to be pinned."""
        hierarchy = work.place.hierarchy
        if work.writes is not None:
            for write in work.writes:
                work.trouble = cpusets.run(write) or work.trouble
            for path in {write.path for write in work.writes} & self._originals.cgroups.keys():
                self._originals.cgroups[path].done()
            got = cpusets.effective(hierarchy, work.place.path)
            if got and got <= work.wanted and not work.trouble:
                return True
            work.writes = None
            work.trouble = work.trouble or f"its cgroup leaves it {got or 'no CPU'}"
        return False

    def _group(self, work: ContainerWork, online: CpuSet) -> ThreadGroup:
        base = cpusets.effective(work.place.hierarchy, work.place.path) or online
        return ThreadGroup(work.cid, lambda: self._tids(work.place, work.directories),
                     (work.wanted & base) or work.wanted, base)

    def _check(self, work: ContainerWork) -> ContainerOutcome:
        tids = self._tids(work.place, work.directories)
        out = outside(tids, work.wanted)
        if work.writes is not None:
            got = cpusets.effective(work.place.hierarchy, work.place.path) or EMPTY
            if got != work.wanted:
                work.lacking = work.lacking or f"the cgroups above leave it {got or 'no CPU'}"
        else:
            got = union(mask(tid) or EMPTY for tid in tids)
        state = PENDING if out or work.pending else ERROR if work.lacking else APPLIED
        cgroup = work.place.shown if work.writes is not None else None
        return ContainerOutcome(state, cgroup, work.wanted, got, self._cgroups.count(work.directories), len(tids),
                                tuple(out[:MAX_OUTSIDE]), clean("; ".join(filter(None, (work.lacking, work.trouble)))))

    def _system(self, map: VcpuMap, hw: Tuple[int, ...], table: CpuTable, masks: ThreadMasks) -> ContainerOutcome:
        wanted, lacking, pending = table.find(hw)
        if not wanted:
            return ContainerOutcome(PENDING if pending else ERROR, error=lacking or "the map gives it no vCPU")
        if not self._cgroups.hierarchies:
            return ContainerOutcome(ERROR, wanted=wanted,
                                    error="no cgroups: containers' processes cannot be distinguished")
        outcome = system_processes.pin(self._own(set(map.containers)), self._originals, masks, wanted, table.online)
        if lacking and outcome.state == APPLIED:
            outcome = outcome._replace(state=PENDING if pending else ERROR)
        return outcome._replace(error="; ".join(filter(None, (lacking, outcome.error))))
