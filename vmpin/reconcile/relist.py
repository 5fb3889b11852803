"""Decides when the runtime has to list everything again: a VM's cgroup was written, and NRI reported no change.

Kata writes the sandbox's cgroup at every update. NRI reports an update that another plugin made in its own answer to
Synchronize (balloons, whenever it connects) to no plugin; the runtime's next list has it. What stays out: making the
list (sources.nri), and which of its CPUs count (sources.nri.cpuset_reports, domain.desired_state). Owned by the
watcher.
"""

import time
from collections.abc import Iterable

from vmpin.domain.model import SandboxId
from vmpin.sources.nri.nri_events import ContainerEvent, NriEvent, PodEvent

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
        self._last = float("-inf")

    def written(self, sandboxes: Iterable[SandboxId], now: float | None = None) -> None:
        """Note VMs whose cgroups were written."""
        now = time.monotonic() if now is None else now
        for sandbox in sandboxes:
            self._written.setdefault(sandbox, now)

    def take(self, events: Iterable[NriEvent], now: float | None = None) -> None:
        """Note what the runtime reported."""
        now = time.monotonic() if now is None else now
        for event in events:
            match event:
                case ContainerEvent():
                    self._reported[event.container.pod] = now
                case PodEvent():
                    self._reported[event.pod.id] = now

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
