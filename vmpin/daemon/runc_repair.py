"""Asks the runtime to give runc containers back their CPUs (`policy.runc_repair`), outside the event loop.

It makes the CRI call UpdateContainerResources; where no CRI runtime answers, it uses NRI: the plugin reconnects, and
the updates go into the answer to the runtime's Synchronize. It never uses NRI's UpdateContainers, which hangs runtimes
(sources.nri.session.NriSession.register). A failed call is not repeated here: the next resync finds the container
unchanged, with the CPUs it is to have by then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.cpuset import CpuSet
from vmpin.domain.counters import Counters
from vmpin.domain.events import Source
from vmpin.domain.model import ContainerId
from vmpin.errors import SourceError
from vmpin.reconcile.runc_drift import RuncDriftRepairs
from vmpin.reconcile.view import NodeView
from vmpin.sources.nri.nri_events import NriEvent, NriUpdate, Synced

if TYPE_CHECKING:
    from vmpin.sources.nri.plugin import NriPlugin

logger = logging.getLogger(__name__)


class RuncRepair:
    """Repairs in one task at a time, and counts them in `counters.repairs`.
    :param read_back: reads the cgroups of containers again (`Reconciler.read_cgroups`).
    :param plugin: the NRI plugin, None while there is none."""

    def __init__(self, view: NodeView, counters: Counters, read_back: Callable[[Container[ContainerId]], None],
                 plugin: Callable[[], NriPlugin | None], timeouts: Timeouts = TIMEOUTS) -> None:
        self._view = view
        self._counters = counters
        self._read_back = read_back
        self._plugin = plugin
        self._timeouts = timeouts
        self._repairs = RuncDriftRepairs(timeouts.runc_repair_pause)
        self._task: asyncio.Task[None] | None = None
        self._reported = ""
        self._asked: set[ContainerId] = set()  #: The containers that a list was asked for.
        self._listed: dict[ContainerId, CpuSet | None] = {}  #: What the list had of them.

    def begin(self) -> None:
        """Called after a resync. Begin the repairs that are due, unless earlier ones are still under way. Returns at
        once."""
        view, busy = self._view, self._task is not None and not self._task.done()
        if not (view.config.policy.runc_repair and view.nri_listed) or busy or view.rulings.written:
            return  # the authority that writes cpusets repairs them, too
        due = self._due()
        if due:
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
                self._report(str(err))
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
        """The containers to repair now. For one that no authority lists, a list is requested from
        the runtime first: other CPUs than it reported may be another plugin's, which NRI reports to no plugin."""
        view = self._view
        listed = {container for sandbox in view.sandboxes.values()
                  for container in due.keys() & sandbox.containers.keys()
                  if view.rulings.assigned("" if sandbox.pod is None else sandbox.pod.uid,
                                           sandbox.containers[container].container)}
        sure = {container: cpus for container, cpus in due.items()
                if container in listed or self._listed.pop(container, None) == cpus}
        plugin = self._plugin()
        if len(sure) < len(due) and plugin is not None and plugin.can_reconnect:
            self._asked = due.keys() - sure.keys()
            plugin.reconnect()
        return sure

    def _by_nri(self, due: Mapping[ContainerId, CpuSet]) -> None:
        plugin = self._plugin()
        if plugin is None or not plugin.can_reconnect:
            self._report("no CRI socket (paths.cri), and no second NRI connection, as the runtime started this "
                         "plugin: runc containers are not repaired")
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
        """Process the runtime's events. CPUs that the answer to a list gave back are written to the cgroups after it:
        the files' own events, or the next resync, read them."""
        for event in events:
            if isinstance(event, Synced):
                self._listed = {container.id: container.cpus for container in event.containers
                                if container.id in self._asked}
                self._asked = set()
                self._counters.repairs["done"] += len(event.updated)

    def _report(self, text: str) -> None:
        if text != self._reported:
            logger.warning("runc_repair: %s", text)
        self._reported = text


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (err := task.exception()) is not None:
        logger.error("runc_repair failed: %r", err)
