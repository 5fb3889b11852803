"""What the agent knows and answers: the newest map, what became of it, and what changed in the guest since.

No sockets and no clock: the server gives it messages, and tells it every second to look.
"""

from __future__ import annotations

import platform
from typing import Dict, List, Optional, Set, Tuple

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.protocol.messages import (
    PENDING,
    AgentMessage,
    Applied,
    ContainerOutcome,
    GuestContainer,
    GuestEvent,
    HostMessage,
    Inventory,
    InventoryRequest,
    NeedMap,
    Ping,
    Pong,
    Subscribe,
    Unpin,
    VcpuMap,
)
from vmpin.protocol.parsing import MAX_CONTAINERS
from vmpin_agent import VERSION, file_io, guest_threads
from vmpin_agent.cpus_file import CpusFile
from vmpin_agent.guest_cgroups import ContainerCgroup, GuestCgroups, within
from vmpin_agent.guest_cpus import CpuReader
from vmpin_agent.map_applier import MapApplier
from vmpin_agent.originals import Originals

#: Every so many seconds all is looked at, whether anything seems to have changed or not.
_RESYNC = 10
#: A process is in its container's cgroup some time after it was born.
_AFTER = 2


class Agent:
    """:param proc, cgroup, sys, run, kata: where those trees are (run: the agent's own directory)."""

    def __init__(self, proc: str = "/proc", cgroup: str = "/sys/fs/cgroup", sys: str = "/sys", run: str = "/run/vmpin",
                 kata: str = "/run/kata-containers") -> None:
        self._proc = proc
        self._cpus = CpuReader(proc, sys)
        self._cgroups = GuestCgroups(cgroup, proc, kata)
        self.boot_id = (file_io.read(f"{proc}/sys/kernel/random/boot_id") or "").strip()
        self._memory = Originals(f"{run}/agent.json", self.boot_id)
        self._pinner = MapApplier(proc, self._cpus, self._cgroups, self._memory)
        self._export = CpusFile(f"{run}/cpus.json")
        self._map: Optional[VcpuMap] = None
        #: Also when it was taken back: an older map is none to go back to.
        self._generation = 0
        self._applied: Optional[Applied] = None
        self._online = self._cpus.plugged()
        self._newest = guest_threads.newest(proc)
        self._known: Dict[str, ContainerCgroup] = {}
        #: Whether somebody had subscribed at the last look, or has since.
        self._watched = False
        #: Whether something is yet to be taken back, because that failed.
        self._owes = False
        self._resync = _RESYNC
        self._look_again = 0

    def greeting(self) -> List[AgentMessage]:
        """What a new connection is told."""
        return [NeedMap()] if self._map is None else []

    def answer(self, request: HostMessage) -> AgentMessage:
        if isinstance(request, VcpuMap):
            return self._take(request)
        if isinstance(request, Unpin):
            self._map = self._applied = None
            self._unpin()
            return Applied(request.id, self._generation, {})
        if isinstance(request, (InventoryRequest, Subscribe)):
            if isinstance(request, Subscribe) and not self._watched:
                # Else others are yet to be told what came since the last look.
                self._watched = True
                self._known = self._cgroups.all(self._named())
            return self.inventory(request.id)
        assert isinstance(request, Ping)
        uptime = (file_io.read(f"{self._proc}/uptime") or "").split()
        try:
            seconds = float(uptime[0])
        except (IndexError, ValueError):
            seconds = 0.0
        return Pong(request.id, VERSION, self.boot_id, seconds)

    def inventory(self, id: Optional[int] = None) -> Inventory:
        table = self._cpus.read()
        containers = []
        for cid, place in list(self._cgroups.all(self._named()).items())[:MAX_CONTAINERS]:
            containers.append(GuestContainer(cid, place.shown, sum(len(self._cgroups.processes(each))
                                                                   for each in within(place))))
        return Inventory(id, table.cpus, containers, self._cgroups.layout, platform.python_version(), table.note)

    def look(self, subscribed: bool) -> List[AgentMessage]:
        """Once a second: what is to be told to who has subscribed. Costs two small files when nothing happened."""
        self._watched = subscribed
        online, newest = self._cpus.plugged(), guest_threads.newest(self._proc)
        cpus_changed = online != self._online
        self._resync -= 1
        if newest is None or newest != self._newest:
            self._look_again = _AFTER + 1
        if cpus_changed:
            self._pinner.cpus_changed()
        look = cpus_changed or self._look_again > 0 or self._resync <= 0
        self._online, self._newest = online, newest
        if self._owes and self._resync <= 0:
            self._resync = _RESYNC
            self._unpin()
        if not look or (self._map is None and not subscribed):
            return []
        self._look_again -= 1
        self._resync = _RESYNC
        told: List[AgentMessage] = []
        if cpus_changed:
            told.append(GuestEvent("cpus", _parsed(online)))
        if subscribed:
            told += self._containers_changed()
        if self._map is not None:
            before = self._applied
            self._applied = self._apply(self._map)
            if before is None or _gist(before) != _gist(self._applied):
                told.append(self._applied)
        return told

    def _take(self, map: VcpuMap) -> Applied:
        if map.generation >= self._generation:
            self._map, self._generation, self._owes = map, map.generation, False
            self._applied = self._apply(map)
            self._look_again = _AFTER
        return (self._applied or Applied(None, self._generation, {}))._replace(id=map.id)

    def _unpin(self) -> None:
        self._owes = True
        self._pinner.unpin()
        self._export.remove()
        self._owes = False

    def _apply(self, map: VcpuMap) -> Applied:
        applied = self._pinner.apply(map)
        self._export.update(map, applied)
        if any(each.state == PENDING and each.outside for each in applied.containers.values()):
            self._look_again = max(self._look_again, 1)
        return applied

    def _containers_changed(self) -> List[AgentMessage]:
        known, self._known = self._known, self._cgroups.all(self._named())
        started = tuple(sorted(cid for cid, place in self._known.items() if known.get(cid) != place))
        stopped = tuple(sorted(cid for cid, place in known.items() if self._known.get(cid) != place))
        if not started and not stopped:
            return []
        return [GuestEvent("containers", started=started[:MAX_CONTAINERS], stopped=stopped[:MAX_CONTAINERS])]

    def _named(self) -> Set[str]:
        return set() if self._map is None else set(self._map.containers)


def _gist(applied: Applied) -> object:
    """What is worth telling anew: not how many threads there are."""
    def gist(outcome: Optional[ContainerOutcome]) -> Tuple[object, ...]:
        return () if outcome is None else (outcome.state, outcome.cgroup, outcome.wanted, outcome.effective,
                                           bool(outcome.outside), outcome.error)

    return {cid: gist(outcome) for cid, outcome in applied.containers.items()}, gist(applied.system)


def _parsed(text: Optional[str]) -> CpuSet:
    """The online ones of Cpus.plugged()."""
    try:
        return CpuSet.parse((text or "").partition(";")[0])
    except CpuSetError:
        return CpuSet()
