"""The allocator's calls to the runtime over CRI, outside NRI's answers: updates that no answer has carried, pods that
ended unreported, and the pool given back once the allocator is switched off.

Where no CRI runtime answers, the updates are made in the answer to the runtime's next list, for which the plugin
connects again. NRI's UpdateContainers is never used, as it hangs runtimes (sources.nri.session.NriSession.register),
and no call is made from within an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Container, Iterable, Set
from pathlib import Path
from typing import Protocol

from vmpin.config.settings import Config
from vmpin.domain.events import Source
from vmpin.domain.model import ContainerId, Pod, SandboxId
from vmpin.domain.topology import Topology
from vmpin.errors import SourceError
from vmpin.features.allocator.allocate_settings import ledger_path
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.grants.admission import pod_of_note
from vmpin.features.allocator.grants.live_change import release_pool
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs
from vmpin.reconcile.view import NodeView

logger = logging.getLogger(__name__)

#: How often in so many seconds a container whose cgroup has other CPUs is given its own again.
TRIES, WITHIN = 3, 600.0
#: Seconds between two lists that are requested over NRI for want of a CRI socket, as the runtime makes no container
#: then: to give CPUs (and between two CRI calls for a container for which one has failed); and to find ended pods.
UPDATE_PAUSE, ENDED_PAUSE = 30.0, 600.0


class RuntimeLists(Protocol):
    """The connection to the runtime, as far as the allocator uses it: it can request a list."""

    def request_list(self) -> None:
        """Have the runtime list its containers again, where it can."""

    def request_list_for(self, purpose: str, pause: float, why: Exception) -> None:
        """Request a list for a purpose that can wait: once in `pause` seconds, and with `why` in the log."""


class PoolUpdates:
    """:param read_back: reads the cgroups of containers again (`Reconciler.read_cgroups`).
    :param runtime: None without NRI. :param deadline: seconds for a CRI call. :param pause: as UPDATE_PAUSE."""

    def __init__(self, view: NodeView, allocator: CpuAllocator, read_back: Callable[[Container[ContainerId]], None],
                 runtime: Callable[[], RuntimeLists | None], deadline: float, pause: float = UPDATE_PAUSE) -> None:
        self._view, self._allocator, self._read_back, self._runtime = view, allocator, read_back, runtime
        self._deadline, self._pause = deadline, pause
        self._wake = asyncio.Event()
        self._tries: dict[ContainerId, list[float]] = {}
        #: The containers for which a call has failed, and until when none is made again (CLOCK_MONOTONIC in seconds).
        self._refused: dict[ContainerId, float] = {}

    def touch(self) -> None:
        """Called after the runtime's events: CPUs may wait for an update."""
        self._wake.set()

    def compare(self) -> None:
        """Called after a resync. Give containers their CPUs again that have had other CPUs for longer than a resync:
        an update may have failed, which no runtime reports."""
        self._correct(self._view.disagreements)

    def started(self, containers: Iterable[tuple[SandboxId, ContainerId]]) -> None:
        """Have the cgroups of containers read back that have just started; those with other CPUs are given their own
        again. A container in a VM has no cgroup: there Kata's state and its vCPUs' masks are the proof."""
        begun = list(containers)
        if begun:
            self._read_back({container for _, container in begun})
            self._correct(begun)

    def _correct(self, containers: Iterable[tuple[SandboxId, ContainerId]]) -> None:
        view, vms, now = self._view, self._view.vm_sandboxes(), time.monotonic()
        expected = self._allocator.expected()
        self._tries = {container: recent for container, times in self._tries.items()
                       if (recent := [time for time in times if time > now - WITHIN])}
        for sandbox, container in containers:
            state, cpus = view.sandboxes.get(sandbox), expected.get(container)
            record = None if state is None else state.containers.get(container)
            report = None if record is None else record.reports.get(Source.CGROUP)
            if sandbox in vms or cpus is None or report is None or report.cpuset == cpus:
                continue
            times = self._tries.setdefault(container, [])
            if len(times) > TRIES:
                continue
            times.append(now)
            if len(times) > TRIES:
                logger.error("other CPUs again container=%s has=%s granted=%s: another program changes them; after "
                             "%d tries vmpin leaves them for some minutes", container, report.cpuset, cpus, TRIES)
                continue
            logger.warning("other CPUs container=%s has=%s granted=%s: vmpin gives it its own again", container,
                           report.cpuset, cpus)
            self._allocator.read_back(container, report.cpuset)
            self.touch()

    async def run(self) -> None:
        """Make the CRI calls that are due, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (pause := self._allocator.pause()) is not None:
                if not pause:
                    await self._make_calls()
                    continue
                with contextlib.suppress(TimeoutError):  # another update may be due sooner
                    await asyncio.wait_for(self._wake.wait(), pause)
                self._wake.clear()

    async def _make_calls(self) -> None:
        """Make the calls that are due, one after the other: an update that an answer carries meanwhile is not due."""
        from vmpin.features.common import cri  # protobuf and gRPC, which a node without an allocator does not load

        now, pause = time.monotonic(), self._pause
        self._refused = {container: until for container, until in self._refused.items() if until > now}
        with cri.connected(cri.sockets(self._view.config.paths.cri)) as servers:
            while (update := self._allocator.next_update(self._refused)) is not None:
                container, cpus = update
                try:
                    if not servers:
                        raise cri.NoRuntime("CRI", "no socket (paths.cri)")
                    await asyncio.to_thread(cri.update_cpus, servers, container, cpus, self._deadline)
                except cri.NoRuntime as err:
                    self._allocator.postpone(pause)
                    if (lists := self._runtime()) is not None:
                        lists.request_list_for("CPUs are given with the answer to the next list", pause, err)
                    return
                except SourceError as err:
                    self._refused[container] = time.monotonic() + pause
                    logger.warning("CPUs not given container=%s by=CRI cpus=%s: %s", container, cpus, err)
                    self._keep_due(container)
                    if cri.is_mute(err):
                        break
                    continue
                self._allocator.given(update)
                logger.info("CPUs given container=%s by=CRI cpus=%s", container, cpus)
                self._read_back([container])
        if self._refused:
            self._allocator.postpone(max(0.0, min(self._refused.values()) - time.monotonic()))

    def _keep_due(self, container: ContainerId) -> None:
        """Put the ledger right after a call that failed. The runtime had the call decided on before it tried, as any
        other update: so the ledger has CPUs that the container does not have. No other program changed any: a try that
        a pass counted during the call does not count."""
        self._tries.pop(container, None)
        self._read_back([container])
        for state in self._view.sandboxes.values():
            record = state.containers.get(container)
            report = None if record is None else record.reports.get(Source.CGROUP)
            if report is not None and report.cpuset is not None:
                self._allocator.read_back(container, report.cpuset)


class EndedPods:
    """Ends the pods of the ledger whose end the runtime has not reported: they would hold their CPUs for ever.

    A containerd that is started again reports over NRI the end of no pod that existed before (containerd#8426; so does
    2.1). A pod all of whose containers have stopped is looked up in the runtime's own list after two resyncs.
    :param configured: the CRI socket of the configuration. :param ended: called after a pod has been ended.
    :param runtime: None without NRI. :param deadline: seconds for a CRI call."""

    def __init__(self, allocator: CpuAllocator, configured: Path | None, ended: Callable[[], None],
                 runtime: Callable[[], RuntimeLists | None], deadline: float) -> None:
        self._allocator, self._configured, self._ended, self._runtime = allocator, configured, ended, runtime
        self._deadline = deadline
        self._wake = asyncio.Event()
        self._before: Set[SandboxId] = frozenset()

    def touch(self) -> None:
        """Called after a resync: have pods of the ledger looked up."""
        self._wake.set()

    async def run(self) -> None:
        """Find and end such pods whenever that is due, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.refresh()

    async def refresh(self) -> None:
        """End the pods that were idle at the last refresh, too, and that the runtime does not list as ready."""
        idle = self._allocator.idle_pods()
        waiting, self._before = idle & self._before, idle
        if not waiting:
            return
        from vmpin.features.common import cri  # protobuf and gRPC, which a node whose pods run does not load for this

        try:
            with cri.connected(cri.sockets(self._configured)) as servers:
                ready = await asyncio.to_thread(cri.ready_pods, servers, self._deadline)
        except cri.NoRuntime as err:
            if (lists := self._runtime()) is not None:
                lists.request_list_for("ended pods are found in the runtime's next list", ENDED_PAUSE, err)
            return
        except SourceError as err:
            logger.debug("allocate: pods not listed (%s): pods that ended unreported keep their CPUs until the next "
                         "resync", err)
            return
        for sandbox in sorted(waiting - ready):
            if self._allocator.end_idle(sandbox):
                logger.info("pod ended unreported sandbox=%s: its CPUs are free", sandbox)
                self._ended()


def release_ledger(config: Config, timeout: float) -> bool:
    """Give the pool back, once the allocator is switched off: shared containers get all online CPUs, by CRI calls, and
    the ledger's file goes. Containers with CPUs of their own keep these until they end; the log names them. It is due
    when the watcher starts with `allocate.mode` off or observe and finds a ledger, and at `vmpin unpin --all`.
    Interrupted at any moment and called again, it does the rest. The run directory's lock is held.
    :param timeout: in seconds, for each CRI call. :returns: whether nothing is left to do."""
    path = ledger_path(config)
    if not path.exists():
        return True
    ledger = LedgerFile(path, Procfs(config.paths.proc).boot_id()).load()
    if ledger is None:
        if not path.exists():  # damaged, and set aside
            logger.warning("allocate: switched off without a ledger: shared containers keep the CPUs that they have "
                           "until their pods are created again")
        path.unlink(missing_ok=True)  # of another boot: nothing of it runs
        return True
    from vmpin.features.common import cri  # protobuf and gRPC, which a node without a ledger does not load

    updates, kept = release_pool(Topology.build(Sysfs(config.paths.sys).online()), ledger)
    done = failed = 0
    with cri.connected(cri.sockets(config.paths.cri)) as servers:
        for container, cpus in updates:
            try:
                cri.update_cpus(servers, container, cpus, timeout)
                done += 1
            except SourceError as err:
                if getattr(err, "code", "") == "NOT_FOUND":
                    continue  # it has ended meanwhile
                failed += 1
                grant = ledger.grants[container]
                logger.warning("CPUs not given container=%s by=CRI cpus=%s: %s", container, cpus, err,
                               extra={"pod": Pod(grant.namespace, grant.pod)})
                if isinstance(err, cri.NoRuntime) or cri.is_mute(err):
                    break
    if failed:
        logger.error("allocate: not every shared container has all CPUs again; the ledger stays until then")
        return False
    path.unlink(missing_ok=True)
    logger.info("allocate: switched off; shared containers with all online CPUs again: %d", done)
    for name in kept:
        logger.warning("allocate: %s keeps its CPUs until it ends", name, extra={"pod": pod_of_note(name)})
    return True
