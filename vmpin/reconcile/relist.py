"""Decides when the runtime has to list everything again: a VM's cgroup was written, and NRI reported no change.

Kata writes the sandbox's cgroup at every update. NRI reports an update that another plugin made in its own answer to
Synchronize (balloons, whenever it connects) to no plugin; the runtime's next list has it.

A container that was reported and has not started yet explains a write as well, however long its creation takes: Kata
writes the cgroup when its VM and the container's file system are ready, up to half a minute after CreateContainer on a
slow node.
"""

import time
from collections.abc import Iterable

from vmpin.domain.model import ContainerId, SandboxId
from vmpin.sources.nri.nri_events import ContainerEvent, NriEvent, PodEvent, Synced
from vmpin.wire.nri_enums import CREATED, Verb

#: Seconds before and after the write in which a report of the sandbox explains it.
NEAR = 5.0
#: Seconds between two lists, at the least: the runtime makes no container meanwhile.
PAUSE = 30.0


class Relist:
    """Times are CLOCK_MONOTONIC in seconds; None is now."""

    def __init__(self) -> None:
        #: When each sandbox's cgroup was written without a report that explains it, and when it was last reported.
        self._written: dict[SandboxId, float] = {}
        self._reported: dict[SandboxId, float] = {}
        #: Containers that are being created, or are and have not started.
        self._starting: dict[SandboxId, set[ContainerId]] = {}
        self._last = float("-inf")

    def written(self, sandboxes: Iterable[SandboxId], now: float | None = None) -> None:
        """Note VMs whose cgroups were written."""
        now = time.monotonic() if now is None else now
        for sandbox in sandboxes:
            if not self._starting.get(sandbox):
                self._written.setdefault(sandbox, now)

    def take(self, events: Iterable[NriEvent], now: float | None = None) -> None:
        """Note what the runtime reported."""
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
                case Synced():
                    self._starting = {}
                    for container in event.containers:
                        if container.state == CREATED:
                            self._starting.setdefault(container.pod, set()).add(container.id)

    def _take_start(self, event: ContainerEvent) -> None:
        """Note a container that is created, or has started or ended."""
        sandbox, container = event.container.pod, event.container.id
        if event.verb in (Verb.CREATE, Verb.POST_CREATE):
            self._starting.setdefault(sandbox, set()).add(container)
        elif event.verb in (Verb.POST_START, Verb.STOP, Verb.REMOVE):
            starting = self._starting.get(sandbox, set())
            starting.discard(container)
            if not starting:
                self._starting.pop(sandbox, None)

    def due(self, now: float | None = None) -> bool:
        """Whether a list is to be made; the next one is not due before `PAUSE`."""
        now = time.monotonic() if now is None else now
        if now < self._last + PAUSE:
            return False
        ripe = {sandbox: at for sandbox, at in self._written.items() if now >= at + NEAR}
        self._written = {sandbox: at for sandbox, at in self._written.items() if sandbox not in ripe}
        due = any(self._reported.get(sandbox, float("-inf")) < at - NEAR for sandbox, at in ripe.items())
        self._reported = {sandbox: at for sandbox, at in self._reported.items() if now < at + PAUSE + 2 * NEAR}
        if due:
            self._last = now
        return due
