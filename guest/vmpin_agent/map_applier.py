"""Applies a map in the guest and reports the outcome. Idempotent: the whole map each time, and nothing is set twice.

In three steps: read and note the originals, change, read back. A container is narrowed by the cpuset of its cgroup, so
that new processes inherit it; without a cpuset, or if it cannot be written, thread by thread."""

from typing import Dict, List, Optional, Set, Tuple

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.protocol.frames import clean
from vmpin.protocol.messages import APPLIED, ERROR, MAX_OUTSIDE, PENDING, UNKNOWN, Applied, ContainerOutcome, VcpuMap
from vmpin_agent import cpusets, file_io
from vmpin_agent.guest_cgroups import ContainerCgroup, GuestCgroups, within
from vmpin_agent.guest_cpus import CpuReader, CpuTable
from vmpin_agent.guest_threads import SystemProcesses, ThreadKey, mask
from vmpin_agent.originals import Originals
from vmpin_agent.thread_masks import PinTarget, ThreadGroup, ThreadMasks, outside

#: Attempts to read threads and their cpuset consistently while another program writes the cpuset.
_TRIES = 5


class MappedContainer(PinTarget):
    """One container while a map is applied."""

    def __init__(self, cid: str, place: ContainerCgroup, wanted: CpuSet, missing: str, pending: bool,
                 excluded: Set[str]) -> None:
        self.cid = cid
        self.place = place
        self.wanted = wanted
        #: Which vCPUs are not online, "" if none, and whether they may still come.
        self.missing = missing
        self.pending = pending
        self.cgroups = within(place, excluded)
        #: Threads with a mask of their own, and the cgroup each is in.
        self.own_masks: List[Tuple[ThreadKey, str]] = []
        #: The writes to its cpuset; None if it has none or it cannot be written, so that its threads are pinned.
        self.writes: Optional[List[cpusets.CpusetWrite]] = None

    def allowed(self, path: str = "") -> Optional[CpuSet]:
        """The CPUs that one of its cgroups, by default the uppermost, allows its threads; None without a cpuset."""
        return cpusets.effective(self.place.hierarchy, path or self.place.path)


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
        containers, outcomes = self._begin(map, table, places)
        for container in containers:
            self._gather(container, masks, table.online)
        self._enable(containers)
        for container in containers:
            container.writes = cpusets.plan(container.place, container.cgroups[1:], container.cid,
                                            container.wanted, self._originals)
        file_io.log(self._originals.save())
        by_thread = {container: self._group(container, table.online)
                     for container in containers if not self._write_cpuset(container)}
        # Set threads' own masks again, which older kernels drop when the cpuset changes.
        masks.pin([(container, key, container.allowed(path) or container.wanted)
                   for container in containers if container not in by_thread for key, path in container.own_masks])
        masks.pin_all(list(by_thread.values()))
        for container, group in by_thread.items():
            container.trouble = container.trouble or group.trouble
        for container in containers:
            outcomes[container.cid] = self._check(container)
        system = None if map.system is None else self._pin_system(map, map.system, table, masks)
        masks.prune()
        cpusets.prune(self._originals)
        file_io.log(self._originals.save())
        return Applied(None, map.generation, {cid: outcomes[cid] for cid in map.containers}, system)

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
            masks.free(set(self._originals.left), SystemProcesses(self._proc, set()).threads)
            file_io.log(self._originals.save())

    def _begin(self, map: VcpuMap, table: CpuTable, places: Dict[str, ContainerCgroup]
               ) -> Tuple[List[MappedContainer], Dict[str, ContainerOutcome]]:
        """The containers to change, and the outcomes of those that cannot be changed."""
        containers, outcomes = [], {}
        paths_in_map = {place.path for place in places.values()}
        for cid, share in map.containers.items():
            wanted, missing, pending = table.find(share.hw)
            if cid not in places:
                outcomes[cid] = ContainerOutcome(UNKNOWN, wanted=wanted, error="no such container in the guest")
            elif not wanted:
                # An empty cpuset would stop it, and all CPUs would include other containers'.
                place, paths = places[cid], within(places[cid], paths_in_map)
                outcomes[cid] = ContainerOutcome(PENDING if pending else ERROR, place.shown, EMPTY, EMPTY,
                                                 self._cgroups.count(paths), len(self._tids(place, paths)),
                                                 error=missing or "the map gives it no vCPU")
            else:
                containers.append(MappedContainer(cid, places[cid], wanted, missing, pending, paths_in_map))
        return containers, outcomes

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
        system = self._system_processes(set(places)) if "" in cids else None

        def tids() -> List[int]:
            members = [tid for cid in cids & places.keys() for tid in self._tids(places[cid], within(places[cid]))]
            return members if system is None else members + system.threads()

        if cids:
            masks.restore(cids, tids)

    def _system_processes(self, named: Set[str]) -> SystemProcesses:
        inside = {pid for place in self._cgroups.all(named).values() for path in within(place)
                  for pid in self._cgroups.processes(path)}
        return SystemProcesses(self._proc, inside)

    def _tids(self, place: ContainerCgroup, paths: List[str]) -> List[int]:
        return [tid for path in paths for tid in self._cgroups.threads(place.hierarchy, path)]

    def _gather(self, container: MappedContainer, masks: ThreadMasks, online: CpuSet) -> None:
        """Note threads whose mask differs from their cgroup's cpuset: Linux before 6.2 drops it when that changes."""
        for path in container.cgroups:
            for _ in range(_TRIES):
                base = container.allowed(path) or online
                masked = ((tid, mask(tid)) for tid in self._cgroups.threads(container.place.hierarchy, path))
                differing = [(tid, current) for tid, current in masked
                             if current is not None and (current != base or masks.noted(tid))]
                # Otherwise a cpuset that another program writes meanwhile, such as Kata's agent, looks like the
                # threads' own mask.
                if not differing or base == (container.allowed(path) or online):
                    break
            for tid, current in differing:
                key = masks.note(tid, current, base, container.cid)
                if key is not None:
                    container.own_masks.append((key, path))

    def _enable(self, containers: List[MappedContainer]) -> None:
        paths = {container.cid: cpusets.closed(container.place) for container in containers}
        fresh = [path for group in paths.values() for path in group if path not in self._originals.enabled]
        if fresh:
            self._originals.enabled = sorted({*self._originals.enabled, *fresh}, key=lambda path: path.count("/"))
            self._originals.changed()
        file_io.log(self._originals.save())
        for container in containers:
            container.trouble = cpusets.enable(cpusets.closed(container.place)) if paths[container.cid] else ""
            refused = cpusets.closed(container.place) if container.trouble else []
            self._originals.enabled = [path for path in self._originals.enabled if path not in refused]

    def _write_cpuset(self, container: MappedContainer) -> bool:
        """Write the container's cpuset. :returns: False if that does not narrow it: its threads have to be pinned."""
        if container.writes is None:
            return False
        for write in container.writes:
            container.trouble = cpusets.run(write) or container.trouble
        for path in {write.path for write in container.writes} & self._originals.cgroups.keys():
            self._originals.cgroups[path].done()
        got = container.allowed()
        if got and got <= container.wanted and not container.trouble:
            return True
        container.writes = None
        container.trouble = container.trouble or f"its cgroup leaves it {got or 'no CPU'}"
        return False

    def _group(self, container: MappedContainer, online: CpuSet) -> ThreadGroup:
        base = container.allowed() or online
        return ThreadGroup(container.cid, lambda: self._tids(container.place, container.cgroups),
                           (container.wanted & base) or container.wanted, base)

    def _check(self, container: MappedContainer) -> ContainerOutcome:
        tids = self._tids(container.place, container.cgroups)
        strays = outside(tids, container.wanted)
        if container.writes is not None:
            got = container.allowed() or EMPTY
            if got != container.wanted:
                container.missing = container.missing or f"the cgroups above leave it {got or 'no CPU'}"
            cgroup: Optional[str] = container.place.shown
        else:
            got, cgroup = _union_of_masks(tids), None
        return ContainerOutcome(_state(strays, container.missing, container.pending), cgroup, container.wanted, got,
                                self._cgroups.count(container.cgroups), len(tids), tuple(strays[:MAX_OUTSIDE]),
                                clean("; ".join(filter(None, (container.missing, container.trouble)))))

    def _pin_system(self, map: VcpuMap, hw: Tuple[int, ...], table: CpuTable, masks: ThreadMasks) -> ContainerOutcome:
        """Pin the guest's own processes. :returns: the outcome, as for a container."""
        wanted, missing, pending = table.find(hw)
        if not wanted:
            return ContainerOutcome(PENDING if pending else ERROR, error=missing or "the map gives it no vCPU")
        if not self._cgroups.hierarchies:
            return ContainerOutcome(ERROR, wanted=wanted,
                                    error="no cgroups: containers' processes cannot be distinguished")
        system = self._system_processes(set(map.containers))
        self._originals.add(self._originals.system, wanted)
        group = ThreadGroup("", system.threads, wanted, table.online)
        masks.pin_all([group])
        tids = system.threads()
        strays = outside(tids, wanted)
        return ContainerOutcome(_state(strays, missing, pending), None, wanted, _union_of_masks(tids),
                                len(system.processes()), len(tids), tuple(strays[:MAX_OUTSIDE]),
                                "; ".join(filter(None, (missing, group.trouble))))


def _state(outside: List[int], missing: str, pending: bool) -> str:
    """The state to report. :param outside: threads outside their CPUs. :param pending: vCPUs may still come."""
    return PENDING if outside or pending else ERROR if missing else APPLIED


def _union_of_masks(tids: List[int]) -> CpuSet:
    return union(mask(tid) or EMPTY for tid in tids)
