"""The agent's state and answers: the newest map, and its outcome as the guest changes."""

import json
import os
from typing import List, Optional

from vmpin.cpuset import EMPTY, union
from vmpin.protocol import messages
from vmpin_agent import VERSION, file_io, guest_threads
from vmpin_agent.guest_cgroups import GuestCgroups
from vmpin_agent.guest_cpus import CpuReader
from vmpin_agent.map_applier import MapApplier
from vmpin_agent.originals import Originals

#: Seconds after which the map is applied again even if nothing seems to have changed.
_RESYNC = 10
#: Seconds after a change in which the map is applied again: a new process enters its container's cgroup late.
_AFTER = 2


class Agent:
    """:param proc, cgroup, sys, run, kata: the roots of those trees (run: the agent's own directory)."""

    def __init__(self, proc: str = "/proc", cgroup: str = "/sys/fs/cgroup", sys: str = "/sys", run: str = "/run/vmpin",
                 kata: str = "/run/kata-containers") -> None:
        self._proc = proc
        self._cpus = CpuReader(proc, sys)
        self._cgroups = GuestCgroups(cgroup, proc, kata)
        boot_id = (file_io.read(f"{proc}/sys/kernel/random/boot_id") or "").strip()
        self.originals = Originals(f"{run}/agent.json", boot_id)
        self._pinner = MapApplier(proc, self._cpus, self._cgroups, self.originals)
        self._export = CpusFile(f"{run}/cpus.json")
        self._map: Optional[messages.VcpuMap] = None
        #: The highest generation received, also after an unpin: an older map is never applied.
        self._generation = 0
        self._applied: Optional[messages.Applied] = None
        self._online = self._cpus.plugged()
        self.newest = guest_threads.newest(proc)
        #: Whether an unpin failed and is to be repeated.
        self._owes = False
        self._resync = _RESYNC
        self._checks_due = 0

    def greeting(self) -> List[messages.AgentMessage]:
        """The messages that a new connection begins with."""
        return [messages.NeedMap()] if self._map is None else []

    def answer(self, request: messages.HostMessage) -> messages.AgentMessage:
        """Carry out a request. :returns: its answer, with the request's id."""
        if isinstance(request, messages.VcpuMap):
            return self._take(request)
        if isinstance(request, messages.Unpin):
            self._map = self._applied = None
            self._unpin()
            return messages.Applied(request.id, self._generation, {})
        assert isinstance(request, messages.Ping)
        return messages.Pong(request.id, VERSION, self._cpus.read().note)

    def check(self) -> Optional[messages.Applied]:
        """Apply the map again if the guest has changed. Called once a second; reads small files if nothing changed.
        :returns: the outcome if it has changed."""
        online, newest = self._cpus.plugged(), guest_threads.newest(self._proc)
        cpus_changed = online != self._online
        self._resync -= 1
        if newest is None or newest != self.newest:
            self._checks_due = _AFTER + 1
        if cpus_changed:
            self._pinner.cpus_changed()
        due = cpus_changed or self._checks_due > 0 or self._resync <= 0
        self._online, self.newest = online, newest
        if self._owes and self._resync <= 0:
            self._resync = _RESYNC
            self._unpin()
        if not due or self._map is None:
            return None
        self._checks_due -= 1
        self._resync = _RESYNC
        before, self._applied = self._applied, self._apply(self._map)
        return self._applied if before is None or _gist(before) != _gist(self._applied) else None

    def _take(self, map: messages.VcpuMap) -> messages.Applied:
        if map.generation >= self._generation:
            self._map, self._generation, self._owes = map, map.generation, False
            self._applied = self._apply(map)
            self._checks_due = _AFTER
        return (self._applied or messages.Applied(None, self._generation, {}))._replace(id=map.id)

    def _unpin(self) -> None:
        self._owes = True
        self._pinner.unpin()
        self._export.remove()
        self._owes = False

    def _apply(self, map: messages.VcpuMap) -> messages.Applied:
        applied = self._pinner.apply(map)
        self._export.update(map, applied)
        if any(report.state == messages.PENDING and report.outside for report in applied.containers.values()):
            self._checks_due = max(self._checks_due, 1)
        return applied


def _gist(applied: messages.Applied) -> object:
    """The part of an outcome whose change is reported; the number of threads is not."""
    def gist(outcome: messages.ContainerOutcome) -> object:
        return outcome._replace(processes=0, threads=0, outside=()), bool(outcome.outside)

    return ({cid: gist(outcome) for cid, outcome in applied.containers.items()},
            None if applied.system is None else gist(applied.system))


class CpusFile:
    """/run/vmpin/cpus.json: each container's CPUs, for programs in the guest that place their own threads (as DPDK).

        {"generation": 7, "containers": {"ID": {"own": "2-3", "shared": "0-1"}}}

    These are the guest's CPU numbers; `own` is empty for a container without exclusive CPUs. `host`, the host's CPUs
    behind those that it may use, is included if the host's map has them. The file is replaced atomically."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._written = self._trouble = ""

    def update(self, map: messages.VcpuMap, applied: messages.Applied) -> None:
        """Write the file if its content changes; remove it if the map does not ask for it."""
        if not map.export:
            self.remove()
            return
        shared = union(outcome.wanted for cid, outcome in applied.containers.items()
                       if not map.containers[cid].exclusive)
        if not shared and applied.system is not None:
            shared = applied.system.wanted
        containers = {}
        for cid, outcome in applied.containers.items():
            share = map.containers[cid]
            own, common = (outcome.wanted, shared) if share.exclusive else (EMPTY, outcome.wanted)
            containers[cid] = {"own": str(own), "shared": str(common),
                               **({"host": str(share.host)} if share.host else {})}
        text = json.dumps({"generation": map.generation, "containers": containers}, sort_keys=True) + "\n"
        if text == self._written:
            return
        try:
            file_io.replace(self._path, text, 0o644)
            self._written, self._trouble = text, ""
        except OSError as err:
            before, self._trouble = self._trouble, f"{self._path}: {err.strerror}"
            file_io.log("" if self._trouble == before else self._trouble)

    def remove(self) -> None:
        self._written = ""
        try:
            os.unlink(self._path)
        except OSError:
            return  # there is no file
