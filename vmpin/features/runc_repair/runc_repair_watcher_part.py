"""Asks the runtime to give runc containers back their CPUs (`runc.repair`), outside the event loop.

It makes the CRI call UpdateContainerResources; where no CRI runtime answers, it uses NRI: the plugin reconnects, and
the updates go into the answer to the runtime's Synchronize. It never uses NRI's UpdateContainers, which hangs runtimes
(sources.nri.session.NriSession.register). After a failed call the next resync tries again, with the CPUs that the
container should have by then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from vmpin.cpuset import CpuSet
from vmpin.domain.events import Source
from vmpin.domain.model import ContainerId, uid_of
from vmpin.errors import SourceError
from vmpin.feature import WatcherPart
from vmpin.features.runc_repair.runc_drift import PAUSE, RuncDriftRepairs
from vmpin.reconcile.view import NodeView
from vmpin.sources.nri.nri_events import NriEvent, NriUpdate, Synced

if TYPE_CHECKING:
    from vmpin.features.common.metric_families import Metric
    from vmpin.sources.nri.plugin import NriPlugin

logger = logging.getLogger(__name__)


def repair_families(repairs: Mapping[str, int]) -> Iterator[Metric]:
    """The family of the metric. :param repairs: since the start, by outcome."""
    from vmpin.features.common.metric_families import counter

    yield counter("vmpin_runc_repairs_total", "Cpusets of runc containers restored by the runtime (runc.repair), by "
                  "result.", repairs, "outcome")


class RuncRepair:
    """Repairs in one task, which ends when the watcher begins to end.
    :param read_back: reads the cgroups of containers again. :param plugin: the NRI plugin, None without one.
    :param timeout: for a CRI call, in seconds. :param pause: between two repairs of a container, in seconds."""

    def __init__(self, view: NodeView, read_back: Callable[[Container[ContainerId]], None],
                 plugin: Callable[[], NriPlugin | None], timeout: float, pause: float = PAUSE) -> None:
        self._view, self._read_back, self._plugin, self._timeout = view, read_back, plugin, timeout
        self.repairs = {"done": 0, "failed": 0}  #: Since the start, by outcome.
        self._drift = RuncDriftRepairs(pause)
        self._resynced = asyncio.Event()
        self._warning = ""  #: The last one that was logged.
        self._unconfirmed: set[ContainerId] = set()  #: The containers for which the runtime's list was requested.
        self._listed: dict[ContainerId, CpuSet | None] = {}  #: Their CPUs in that list.

    def part(self) -> WatcherPart:
        return WatcherPart(tasks={"runc_repair": self.run}, after_events=self.take, after_resync=self.begin,
                           status=lambda: self.repairs.copy(), metrics=lambda *_: repair_families(self.repairs))

    def begin(self) -> None:
        """Have the repairs made that are due after a resync. Returns at once."""
        self._resynced.set()

    async def run(self) -> None:
        """Make the repairs that are due after each resync, until cancelled."""
        while True:
            await self._resynced.wait()
            self._resynced.clear()
            await self.repair()

    async def repair(self) -> None:
        """Make the repairs that are due now. What is no longer due when its turn comes is left."""
        if self._view.nri_listed and (due := self._due()):
            await self._repair(due)

    def _due(self) -> dict[ContainerId, CpuSet]:
        view = self._view
        if view.rulings.written:
            return {}  # the authority that writes cpusets repairs them, too
        return self._drift.due(view.state, view.rulings, view.vm_sandboxes(), view.disagreements, view.announced)

    def _still_due(self, due: Mapping[ContainerId, CpuSet]) -> dict[ContainerId, CpuSet]:
        """Leave out those of which an update came since."""
        now = self._due()
        return {container: cpus for container, cpus in due.items() if now.get(container) == cpus}

    async def _repair(self, due: Mapping[ContainerId, CpuSet]) -> None:
        from vmpin.features.common import cri  # protobuf and gRPC, which a node without repairs does not load

        paths = cri.sockets(self._view.config.paths.cri)
        left = self._confirmed(due) if paths else dict(due)
        with cri.connected(paths) as servers:
            while servers and (left := self._still_due(left)):
                container, cpus = next(iter(left.items()))
                failure: SourceError | None = None
                try:
                    await asyncio.to_thread(cri.update_cpus, servers, container, cpus, self._timeout)
                except cri.NoRuntime as err:
                    self._warn(str(err))
                    break
                except SourceError as err:
                    failure = err
                del left[container]
                self._drift.began(container, cpus, "CRI")
                self.repairs["done" if failure is None else "failed"] += 1
                if failure is None:
                    self._read_back([container])
                    continue
                logger.warning("CPUs not given back container=%s: %s", container, failure)
                if cri.is_mute(failure):
                    return  # the next resync tries the others
        if left := self._still_due(left):
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
                    self._drift.began(container, due[container], "NRI")
        plugin.reconnect(updates)

    def take(self, events: Iterable[NriEvent]) -> None:
        """Process the runtime's events. The runtime writes what the answer to a list gave back after this: the files'
        own events, or the next resync, read it."""
        for event in events:
            if isinstance(event, Synced):
                self._listed = {container.id: container.cpus for container in event.containers
                                if container.id in self._unconfirmed}
                self._unconfirmed = set()
                self.repairs["done"] += len(event.updated)

    def _warn(self, text: str) -> None:
        """Log a warning once until another one comes."""
        if text != self._warning:
            logger.warning("runc.repair: %s", text)
        self._warning = text
