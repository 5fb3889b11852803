"""Asks the runtime to give runc containers back their CPUs (`policy.runc_repair`), outside the event loop.

It makes the CRI call UpdateContainerResources; where no CRI runtime answers, it uses NRI: the plugin reconnects, and
the updates go into the answer to the runtime's Synchronize. It never uses NRI's UpdateContainers, which hangs runtimes
(sources.nri.session.NriSession.register). After a failed call the next resync tries again, with the CPUs that the
container should have by then."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.assignments import Rulings
from vmpin.domain.counters import Counters
from vmpin.domain.desired_state import DesiredState
from vmpin.domain.events import Source
from vmpin.domain.model import ContainerId, SandboxId, uid_of
from vmpin.errors import SourceError
from vmpin.reconcile.view import NodeView
from vmpin.sources.nri.nri_events import NriEvent, NriUpdate, Synced

if TYPE_CHECKING:
    from vmpin.sources.nri.plugin import NriPlugin

logger = logging.getLogger(__name__)


class RuncRepair:
    """Repairs in one task at a time, and counts in `counters.repairs`.
    :param read_back: reads the cgroups of containers again. :param plugin: the NRI plugin, None without one."""

    def __init__(self, view: NodeView, counters: Counters, read_back: Callable[[Container[ContainerId]], None],
                 plugin: Callable[[], NriPlugin | None], timeouts: Timeouts = TIMEOUTS) -> None:
        self._view, self._counters, self._read_back = view, counters, read_back
        self._plugin, self._timeouts = plugin, timeouts
        self._repairs = RuncDriftRepairs(timeouts.runc_repair_pause)
        self._task: asyncio.Task[None] | None = None
        self._warning = ""  #: The last one that was logged.
        self._unconfirmed: set[ContainerId] = set()  #: The containers for which the runtime's list was requested.
        self._listed: dict[ContainerId, CpuSet | None] = {}  #: Their CPUs in that list.

    def begin(self) -> None:
        """Begin the repairs that are due after a resync, unless earlier ones are under way. Returns at once."""
        view, busy = self._view, self._task is not None and not self._task.done()
        if not (view.config.policy.runc_repair and view.nri_listed) or busy or view.rulings.written:
            return  # the authority that writes cpusets repairs them, too
        if due := self._due():
            self._task = asyncio.create_task(self._repair(due))
            self._task.add_done_callback(_ended)

    def _due(self) -> dict[ContainerId, CpuSet]:
        view = self._view
        return self._repairs.due(view.state, view.rulings, view.vm_sandboxes(), view.disagreements, view.announced)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _repair(self, due: Mapping[ContainerId, CpuSet]) -> None:
        from vmpin.sources import cri  # protobuf and gRPC, which a node without repairs does not load

        servers = cri.sockets(self._view.config.paths.cri)
        left = self._confirmed(due) if servers else dict(due)
        while servers and left:
            container, cpus = next(iter(left.items()))
            if self._due().get(container) != cpus:  # an update came while another container was repaired
                del left[container]
                continue
            failure: SourceError | None = None
            try:
                await asyncio.to_thread(cri.update_cpus, servers, container, cpus, self._timeouts.cri_call)
            except cri.NoRuntime as err:
                self._warn(str(err))
                break
            except SourceError as err:
                failure = err
            del left[container]
            self._repairs.began(container, cpus, "CRI")
            self._counters.repairs["done" if failure is None else "failed"] += 1
            if failure is None:
                self._read_back([container])
                continue
            logger.warning("CPUs not given back container=%s: %s", container, failure)
            if cri.is_mute(failure):
                return  # the next resync tries the others
        if left:
            self._by_nri(left)

    def _confirmed(self, due: Mapping[ContainerId, CpuSet]) -> dict[ContainerId, CpuSet]:
        """The containers to repair now. One that no authority lists may have its CPUs from another NRI plugin, which
        NRI does not report: the runtime's list is requested first."""
        view = self._view
        listed = {container for sandbox in view.sandboxes.values()
                  for container in due.keys() & sandbox.containers.keys()
                  if view.rulings.assigned(uid_of(sandbox.pod),
                                           sandbox.containers[container].container)}
        sure = {container: cpus for container, cpus in due.items()
                if container in listed or self._listed.pop(container, None) == cpus}
        plugin = self._plugin()
        if len(sure) < len(due) and plugin is not None and plugin.can_reconnect:
            self._unconfirmed = due.keys() - sure.keys()
            plugin.reconnect()
        return sure

    def _by_nri(self, due: Mapping[ContainerId, CpuSet]) -> None:
        plugin = self._plugin()
        if plugin is None or not plugin.can_reconnect:
            self._warn("no CRI socket (paths.cri), and no second NRI connection, as the runtime started this plugin: "
                       "runc containers are not repaired")
            return
        updates = {}
        for sandbox in self._view.sandboxes.values():
            for container in due.keys() & sandbox.containers.keys():
                report = sandbox.containers[container].reports.get(Source.NRI)
                if report is not None:
                    updates[container] = NriUpdate(due[container], report.cpuset)
                    self._repairs.began(container, due[container], "NRI")
        plugin.reconnect(updates)

    def take(self, events: Iterable[NriEvent]) -> None:
        """Process the runtime's events. The runtime writes what the answer to a list gave back after this: the files'
        own events, or the next resync, read it."""
        for event in events:
            if isinstance(event, Synced):
                self._listed = {container.id: container.cpus for container in event.containers
                                if container.id in self._unconfirmed}
                self._unconfirmed = set()
                self._counters.repairs["done"] += len(event.updated)

    def _warn(self, text: str) -> None:
        """Log a warning once until another one comes."""
        if text != self._warning:
            logger.warning("runc_repair: %s", text)
        self._warning = text


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (err := task.exception()) is not None:
        logger.error("runc_repair failed: %r", err)


#: A container is given its CPUs back so often within so many seconds; then it is left to the other writer.
TRIES, WITHIN = 3, 600.0


class RuncDriftRepairs:
    """Decides which containers to repair: those whose cgroup has had other CPUs than given for longer than a resync
    (an update in progress is no drift). After three repairs a container is left to the other writer for some minutes.
    :param pause: seconds between two tries."""

    def __init__(self, pause: float = TIMEOUTS.runc_repair_pause) -> None:
        self._pause = pause
        #: The times (monotonic) of each container's repairs, and the containers reported as left alone.
        self._times: dict[ContainerId, list[float]] = {}
        self._left: set[ContainerId] = set()

    def due(self, state: DesiredState, rulings: Rulings, vms: Container[SandboxId],
            lasting: Iterable[tuple[SandboxId, ContainerId]], announced: Mapping[ContainerId, CpuSet],
            now: float | None = None) -> dict[ContainerId, CpuSet]:
        """The CPUs to request now, by container.
        :param vms: the sandboxes that are VMs: no cgroup of the host sets their containers' CPUs.
        :param lasting: the containers on whose CPUs the sources have disagreed for longer than a resync.
        :param announced: the CPUs that the runtime reported as they changed (sources.nri.nri_reports).
        :param now: CLOCK_MONOTONIC in seconds."""
        now = time.monotonic() if now is None else now
        self._times = {container: recent for container, times in self._times.items()
                       if (recent := [tried for tried in times if tried > now - WITHIN])}
        self._left &= self._times.keys()
        due: dict[ContainerId, CpuSet] = {}
        for sandbox, container in lasting:
            wanted = None if sandbox in vms else _wanted(state, rulings, sandbox, container, announced)
            if wanted is None:
                continue
            times = self._times.get(container, [])
            if len(times) < TRIES:
                if not times or now >= times[-1] + self._pause:
                    due[container] = wanted
            elif container not in self._left:
                self._left.add(container)
                logger.warning("CPUs lost again container=%s cpus=%s: given back %d times, and another writer takes "
                               "them: left alone for some minutes", container, wanted, TRIES)
        return due

    def began(self, container: ContainerId, cpus: CpuSet, protocol: str, now: float | None = None) -> None:
        """Record a try, over "CRI" or "NRI". :param now: CLOCK_MONOTONIC in seconds."""
        self._times.setdefault(container, []).append(time.monotonic() if now is None else now)
        logger.info("giving CPUs back container=%s by=%s cpus=%s", container, protocol, cpus)


def _wanted(state: DesiredState, rulings: Rulings, sandbox: SandboxId, container: ContainerId,
            announced: Mapping[ContainerId, CpuSet]) -> CpuSet | None:
    """The CPUs that a container should have, if its cgroup has others; None otherwise, and if NRI does not report
    it."""
    sandbox_state = state.sandboxes.get(sandbox)
    record = None if sandbox_state is None else sandbox_state.containers.get(container)
    if (sandbox_state is None or record is None or record.pending
            or not {Source.NRI, Source.CGROUP} <= record.reports.keys()):
        return None
    cpuset = record.reports[Source.CGROUP].cpuset
    wanted = announced.get(container)
    uid = uid_of(sandbox_state.pod)
    ruling = rulings.assigned(uid, record.container)
    if ruling is not None:
        own = ruling.assignments.cpus_of(uid, record.container) or EMPTY
        # The other CPUs of its cpuset are shared (mixed CPUs), and stay unless they are another pod's.
        with_shared = cpuset if cpuset >= own else wanted or record.reports[Source.NRI].cpuset
        shared = with_shared - rulings.exclusive_of_others(sandbox_state) if with_shared >= own else EMPTY
        wanted = own | shared
    return wanted if wanted is not None and cpuset != wanted else None
