"""What placements wait for of the container runtime: its first list over NRI (`FirstList`), and the completion of its
requests (`RuntimeRequests`)."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Set

from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import DesiredState, SandboxState
from vmpin.domain.events import RequestExpired, Source
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.placement.ownership import is_counted

logger = logging.getLogger(__name__)

#: The longest wait for the runtime's first list, in seconds from the start.
AWAITED_FOR = 30.0
WAITS = "waits for the runtime to list its containers (NRI)"
#: The longest wait for a request, in seconds. The kubelet gives a runtime two minutes for a request
#: (runtimeRequestTimeout), CRI-O's own limits are four; an update takes milliseconds, or as long as Kata plugs in
#: vCPUs and memory.
CREATION, UPDATE = 300.0, 60.0


class FirstList:
    """The wait for the runtime's first list. Until then a VM without known containers may have some: a watcher that
    starts without a state file finds VMs whose containers only the runtime reports (runtime-rs). If it placed an
    exclusive VM on the shared pool for the seconds until the list, the VM would leave its CPUs.
    :param awaited: whether there is a runtime that will list its containers.
    :param known: the sandboxes whose containers are known from an earlier watcher.
    :param in_files: whether the runtime's own files list a sandbox's containers (Kata's Go runtime).
    :param saved: whether the state file has the containers of an earlier list."""

    def __init__(self, awaited: bool = False, known: Set[SandboxId] = frozenset(),
                 in_files: Callable[[SandboxId], bool] = lambda sandbox: False, saved: bool = False) -> None:
        self.awaited = awaited
        self._known, self._in_files, self._saved = known, in_files, saved
        #: The end of the longest wait (monotonic, s); None before `connect`, which a command never calls.
        self._until: float | None = None
        #: Until when the last list is complete (monotonic, s): without end while the connection is up.
        self._complete_until = 0.0

    @property
    def complete(self) -> bool:
        """Whether every container of the node is known: the runtime has listed them and reports each since, or the
        state file has those of an earlier list while the next one is awaited. A connection that ends is made again
        within seconds; without it the list counts for `AWAITED_FOR` more."""
        return time.monotonic() < self._complete_until or (self.awaited and self._saved)

    @staticmethod
    def of(config: Config, saved: DesiredState, in_files: Callable[[SandboxId], bool]) -> FirstList:
        """The wait as configured. :param saved: the state in the state file."""
        # Not Path.exists(), which raises up to Python 3.13: containerd makes the directory for root alone, and the
        # status without a watcher is for everyone.
        return FirstList(config.watch.nri != "off" and os.path.exists(config.paths.nri),
                         {sandbox.id for sandbox in saved.sandboxes.values() if sandbox.containers}, in_files,
                         any(record.reported_by(Source.NRI) for sandbox in saved.sandboxes.values()
                             for record in sandbox.containers.values()))

    def connect(self, wanted: bool, seconds: float = AWAITED_FOR) -> None:
        """Note that this process connects to the runtime, and so gets the list.
        :param wanted: whether the runtime must exist (`watch.nri: on`). :param seconds: the longest wait."""
        self.awaited = self.awaited or wanted
        self._until = time.monotonic() + seconds

    def came(self) -> bool:
        """Note that the list came. :returns: whether it was awaited."""
        self._complete_until = math.inf
        return self._end_wait()

    def connection_lost(self) -> None:
        """Note that the runtime reports nothing until its next list."""
        self._complete_until = min(self._complete_until, time.monotonic() + AWAITED_FOR)

    def _end_wait(self) -> bool:
        awaited, self.awaited = self.awaited, False
        return awaited

    def overdue(self) -> bool:
        """Whether the longest wait is over. If so, the list is no longer awaited."""
        if not self.awaited or self._until is None or time.monotonic() < self._until:
            return False
        logger.warning("nri: the runtime has not listed its containers yet: VMs are placed by other sources' reports")
        return self._end_wait()

    def defers(self, sandbox: SandboxId, state: SandboxState | None) -> bool:
        """Whether a VM is not to be placed before the list comes. A command without a watcher gets no list: it places
        VMs by their known containers.
        :param state: the sandbox as reported by the sources."""
        if not self.awaited or sandbox in self._known or self._in_files(sandbox):
            return False
        return self._until is not None or state is None or not any(map(is_counted, state.live()))

    def waits(self, sandbox: SandboxId) -> str:
        """`WAITS` if a sandbox's containers may have other CPUs than known, "" otherwise."""
        return WAITS if self.awaited and self._until is not None and not self._in_files(sandbox) else ""


class RuntimeRequests:
    """The requests that the runtime is working on: creations of containers, and updates of their CPUs. A request ends
    with the runtime's next report about the container. There is none for a failed update, nor for a creation that
    fails together with the connection; so each request has a longest wait."""

    def __init__(self) -> None:
        #: When each request was first seen (monotonic, s). The CPUs are those of an update.
        self._since: dict[tuple[SandboxId, ContainerId, CpuSet | None], float] = {}

    def expired(self, state: DesiredState, now: float) -> list[RequestExpired]:
        """The requests that take too long. :param now: CLOCK_MONOTONIC in seconds."""
        pending: dict[tuple[SandboxId, ContainerId, CpuSet | None], float] = {}
        for sandbox in state.sandboxes.values():
            for container, record in sandbox.containers.items():
                if record.pending:
                    creation = record.requested or record.container.creating
                    cpuset = None if creation else record.container.requested_cpuset
                    pending[sandbox.id, container, cpuset] = CREATION if creation else UPDATE
        self._since = {key: self._since.get(key, now) for key in pending}
        return [RequestExpired(sandbox, container) for (sandbox, container, cpuset), limit in pending.items()
                if now - self._since[sandbox, container, cpuset] >= limit]
