"""The CPUs of containers as the runtime reports them over NRI, and which of its lists' CPUs are current.

A list may be old: CRI-O keeps updates in memory, so after its own restart it lists the CPUs of creation. A process of
the runtime's that has made or updated a container since its first list, or lists it with other CPUs than at first (as
when another plugin changed them in its answer to Synchronize), has its CPUs in memory: its next lists are right. Those
of containerd always are; only what is repaired (`cpus`) is not taken from a new process's list.
"""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.sources.nri.nri_events import ContainerEvent, CpusGiven, NriEvent, Synced
from vmpin.wire.nri_enums import Verb


class NriCpusetReports:
    """The reports of one process of the runtime's at a time."""

    def __init__(self) -> None:
        #: The CPUs of each container that this process of the runtime's has in memory for certain.
        self.cpus: dict[ContainerId, CpuSet] = {}
        self._runtime = 0
        #: What it listed first, and the containers of which it has the CPUs in memory.
        self._first: dict[ContainerId, CpuSet | None] = {}
        self._certain: set[ContainerId] = set()

    def take(self, event: NriEvent) -> NriEvent:
        """Record an event. :returns: the event; a list with `Synced.current`."""
        match event:
            case ContainerEvent(verb=Verb.STOP | Verb.REMOVE):
                self._forget(event.container.id)
            case ContainerEvent(verb=Verb.POST_CREATE | Verb.POST_START | Verb.POST_UPDATE):
                container = event.container
                if event.verb is not Verb.POST_START or container.id not in self._first:
                    self._certain.add(container.id)
                if container.cpus and container.id in self._certain:
                    self.cpus[container.id] = container.cpus
            case CpusGiven():
                self.cpus |= event.cpus
                self._certain |= event.cpus.keys()
            case Synced():
                found = self._synced(event)
                current = frozenset(each.id for each in event.containers) if event.stored else found.current
                return found._replace(current=current)
        return event

    def _synced(self, event: Synced) -> Synced:
        listed = {container.id: container.cpus for container in event.containers}
        if not event.runtime or event.runtime != self._runtime:
            self._runtime, self._first, self._certain, self.cpus = event.runtime, listed, set(), {}
            return event
        for gone in (self._first.keys() | self._certain) - listed.keys():
            self._forget(gone)
        self._certain |= {container for container, cpus in listed.items()
                          if container not in self._first or self._first[container] != cpus}
        self.cpus = {container: cpus for container in self._certain if (cpus := listed.get(container))}
        return event._replace(current=frozenset(self._certain))

    def _forget(self, container: ContainerId) -> None:
        self.cpus.pop(container, None)
        self._first.pop(container, None)
        self._certain.discard(container)
