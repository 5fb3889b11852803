"""What follows from the runtime's reports over NRI: which CPUs of its lists are current (`NriCpusetReports`), and when
it must list everything again (`Relist`).

A list may be old: CRI-O keeps updates in memory, so after its own restart it lists the CPUs at creation. The CPUs of a
container are current from then on if the same runtime process created or updated it after its first list, or lists it
with other CPUs than at first (another plugin changed them in its answer to Synchronize). The lists of containerd are
always current; only `NriCpusetReports.cpus`, which features may restore, is not taken from a new process's list.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.sources.nri.nri_events import ContainerEvent, CpusGiven, NriEvent, PodEvent, Synced
from vmpin.wire.nri_enums import CREATED, Verb


class NriCpusetReports:
    """The reports of the current runtime process."""

    def __init__(self) -> None:
        #: The current CPUs of containers, as far as they are certain.
        self.cpus: dict[ContainerId, CpuSet] = {}
        self._runtime = 0
        #: Its first list, and the containers whose CPUs are certain.
        self._first: dict[ContainerId, CpuSet | None] = {}
        self._certain: set[ContainerId] = set()

    def take(self, event: NriEvent) -> NriEvent:
        """Record an event. :returns: the event; a list with `Synced.current` filled in."""
        match event:
            case ContainerEvent(verb=Verb.STOP | Verb.REMOVE):
                self._forget(event.container.id)
            case ContainerEvent(verb=Verb.POST_CREATE | Verb.POST_START | Verb.POST_UPDATE):
                container = event.container
                # A start does not prove the CPUs of a container of the first list: it was created before that.
                if event.verb is not Verb.POST_START or container.id not in self._first:
                    self._certain.add(container.id)
                if container.cpus and container.id in self._certain:
                    self.cpus[container.id] = container.cpus
            case CpusGiven():
                self.cpus |= event.cpus
                self._certain |= event.cpus.keys()
            case Synced():
                listed = {container.id: container.cpus for container in event.containers}
                current = self._certain_of(event.runtime, listed)
                return event._replace(current=frozenset(listed) if event.stored else current)
        return event

    def _certain_of(self, runtime: int, listed: dict[ContainerId, CpuSet | None]) -> frozenset[ContainerId]:
        """Record a list. :returns: the containers whose listed CPUs are certain."""
        if not runtime or runtime != self._runtime:
            self._runtime, self._first, self._certain, self.cpus = runtime, listed, set(), {}
            return frozenset()
        for gone in (self._first.keys() | self._certain) - listed.keys():
            self._forget(gone)
        self._certain |= {container for container, cpus in listed.items()
                          if container not in self._first or self._first[container] != cpus}
        self.cpus = {container: cpus for container in self._certain if (cpus := listed.get(container))}
        return frozenset(self._certain)

    def _forget(self, container: ContainerId) -> None:
        self.cpus.pop(container, None)
        self._first.pop(container, None)
        self._certain.discard(container)


#: A report of the sandbox explains a write to its cgroup within so many seconds before and after.
NEAR = 5.0
#: The least time between two lists in seconds: the runtime creates no container while it lists.
PAUSE = 30.0


class Relist:
    """Decides when the runtime must list everything again: a VM's cgroup was written, and no report explains it, or a
    container was started in a VM beside others that another plugin may have changed for it.

    Kata writes the sandbox's cgroup at every update. An update that another plugin made in its own answer to
    Synchronize (balloons, whenever it connects) is reported to no plugin; only the runtime's next list has it. A
    container that was reported and has not started yet also explains a write, however long its creation takes: Kata
    writes the cgroup when its VM and the container's file system are ready, up to half a minute after CreateContainer
    on a slow node.

    An update that another plugin made in its answer to a creation is reported to no plugin either (balloons inflates
    a balloon, dra-driver-cpu takes a claim's CPUs from containers that share). In the VM of the new container the
    creation explains the write, so the list follows when all containers of the VM have been started.

    Times are CLOCK_MONOTONIC in seconds; None is now."""

    def __init__(self) -> None:
        #: The times of unexplained writes to sandboxes' cgroups, and of the last reports about sandboxes.
        self._written: dict[SandboxId, float] = {}
        self._reported: dict[SandboxId, float] = {}
        #: Containers that are being created, or have not started yet.
        self._starting: dict[SandboxId, set[ContainerId]] = {}
        #: VMs in which a container was started beside others since the last list.
        self._joined: set[SandboxId] = set()
        self._last = float("-inf")

    def written(self, sandboxes: Iterable[SandboxId], now: float | None = None) -> None:
        """Record writes to the cgroups of VMs."""
        now = time.monotonic() if now is None else now
        for sandbox in sandboxes:
            if not self._starting.get(sandbox):
                self._written.setdefault(sandbox, now)

    def joined(self, sandboxes: Iterable[SandboxId]) -> None:
        """Record VMs in which a container was started beside others, whose CPUs another plugin decides."""
        self._joined.update(sandboxes)

    def take(self, events: Iterable[NriEvent], now: float | None = None) -> None:
        """Record the runtime's reports."""
        now = time.monotonic() if now is None else now
        for event in events:
            match event:
                case ContainerEvent():
                    self._reported[event.container.pod] = now
                    self._take_start(event)
                case PodEvent():
                    self._reported[event.pod.id] = now
                    if event.verb is not Verb.RUN_POD:
                        self._starting.pop(event.pod.id, None)
                        self._joined.discard(event.pod.id)
                case Synced():
                    self._starting, self._joined = {}, set()
                    for container in event.containers:
                        if container.state == CREATED:
                            self._starting.setdefault(container.pod, set()).add(container.id)

    def _take_start(self, event: ContainerEvent) -> None:
        """Record a container's creation, start or end."""
        sandbox, container = event.container.pod, event.container.id
        if event.verb in (Verb.CREATE, Verb.POST_CREATE):
            self._starting.setdefault(sandbox, set()).add(container)
        elif event.verb in (Verb.POST_START, Verb.STOP, Verb.REMOVE):
            starting = self._starting.get(sandbox, set())
            starting.discard(container)
            if not starting:
                self._starting.pop(sandbox, None)

    def due(self, now: float | None = None) -> bool:
        """Whether another list is due. If so, the next one is not due before `PAUSE`."""
        now = time.monotonic() if now is None else now
        if now < self._last + PAUSE:
            return False
        old = {sandbox: time for sandbox, time in self._written.items() if now >= time + NEAR}
        self._written = {sandbox: time for sandbox, time in self._written.items() if sandbox not in old}
        due = any(self._reported.get(sandbox, float("-inf")) < time - NEAR for sandbox, time in old.items())
        self._reported = {sandbox: time for sandbox, time in self._reported.items() if now < time + PAUSE + 2 * NEAR}
        due = due or bool(self._joined - self._starting.keys())
        if due:
            self._last = now
        return due
