"""Feeds of the watcher: the container runtime (NRI), the kubelet's PodResources API, and inotify; and their health.

A feed calls into the event loop once for all that has come from a thread or a descriptor."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from vmpin import log
from vmpin.config.settings import Config
from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId
from vmpin.errors import SourceError
from vmpin.reconcile.view import NodeView
from vmpin.sources.nri.event_queue import NriQueue, merged
from vmpin.sources.nri.nri_events import NriCounters, NriEvent, never_waits
from vmpin.status.health import SourceHealth
from vmpin.wire.nri_enums import Verb

if TYPE_CHECKING:
    from vmpin.host.inotify import Inotify
    from vmpin.procevents.feed import ProcEventsFeed
    from vmpin.sources.nri.nri_events import CallFacts, CanWait, CpuDecider
    from vmpin.sources.nri.plugin import NriPlugin

logger = logging.getLogger(__name__)

_STARTED_BY_RUNTIME = "NRI_PLUGIN_SOCKET"


def wants_nri(config: Config) -> bool:
    """Whether to be an NRI plugin; a watcher that the runtime started as one has to be."""
    return config.watch.nri != "off" or _STARTED_BY_RUNTIME in os.environ


class NriFeed:
    """The NRI plugin, once there is a runtime to connect to. Its thread puts events into a queue and wakes the loop.

    :param take: called in the loop with all events that waited, when the first of them came (time.perf_counter()), and
        whether each of them could wait.
    :param ended: called in the loop when no connection will come any more (a plugin that the runtime started).
    :param decider: gives out CPUs, in the plugin's thread; None: nothing does.
    :param can_wait: see `CanWait`."""

    def __init__(self, config: Config, take: Callable[[list[NriEvent], float, bool], None], ended: Callable[[], None],
                 timeouts: Timeouts = TIMEOUTS, decider: CpuDecider | None = None,
                 can_wait: CanWait = never_waits) -> None:
        self._config, self._timeouts, self._decider, self._may_wait = config, timeouts, decider, can_wait
        #: The sandboxes whose events the loop applies at the moment.
        self._applied = set[SandboxId]()
        self._take, self._ended = take, ended
        self._queues: list[NriQueue] = []
        self.state = "waits for the runtime's socket"
        self.plugin: NriPlugin | None = None
        self._plugins: list[NriPlugin] = []
        self._requested: dict[str, float] = {}  #: When a list was requested last, by purpose (time.monotonic()).
        #: The list that is to be requested for lost events, and when the last one was (loop.time()).
        self._relist: asyncio.TimerHandle | None = None
        self._relisted = float("-inf")

    async def run(self) -> None:
        """Keep the plugin running until cancelled."""
        started_by_runtime = _STARTED_BY_RUNTIME in os.environ
        if not started_by_runtime:
            while self._config.watch.nri == "auto" and not self._config.paths.nri.exists():  # noqa: ASYNC110
                await asyncio.sleep(self._config.watch.resync_seconds)
        from vmpin.sources.nri import plugin as nri

        sys.setswitchinterval(nri.SWITCH_INTERVAL)
        loop = asyncio.get_running_loop()

        def on_end(up: bool, text: str) -> None:
            self._on_state(up, text)
            if not up:
                loop.call_soon_threadsafe(self._ended)

        started = nri.from_environment(self._new_queue(loop), on_end, decider=self._decider,
                                       can_wait=self._can_wait) if started_by_runtime else None
        self.plugin = started or self._connecting(loop, "vmpin")
        self._plugins = [self.plugin]
        self.state = "waits for the runtime's list"
        self.plugin.start()
        try:
            if started_by_runtime:
                await asyncio.sleep(self._timeouts.nri_sync)
                if self.plugin is started and not started.counters.syncs:
                    # containerd 1.7 never synchronizes a plugin that it started (containerd/nri#43).
                    logger.info("nri: the runtime that started this plugin has sent no list: connecting to %s for one",
                                self._config.paths.nri)
                    self._connect_beside()
            await asyncio.Event().wait()
        finally:
            self.plugin = None
            self._queues = []
            if self._relist is not None:
                self._relist.cancel()
                self._relist = None
            for plugin in self._plugins:
                plugin.stop()

    def _connecting(self, loop: asyncio.AbstractEventLoop, name: str) -> NriPlugin:
        """A plugin that connects to the runtime's socket."""
        from vmpin.sources.nri.connection import connect_to
        from vmpin.sources.nri.plugin import NriPlugin

        return NriPlugin(connect_to(self._config.paths.nri), self._new_queue(loop), name, on_state=self._on_state,
                         decider=self._decider, can_wait=self._can_wait)

    def _connect_beside(self) -> None:
        """Connect for a list, beside a plugin that the runtime started: that one gets no other."""
        self.plugin = self._connecting(asyncio.get_running_loop(), "vmpin-sync")
        self._plugins.append(self.plugin)
        self.plugin.start()

    def request_list(self) -> None:
        """Have the runtime list its containers again, where it can: a new connection begins with that."""
        if self.plugin is not None and self.plugin.can_reconnect:
            self.plugin.reconnect()

    def request_list_for(self, purpose: str, pause: float, why: Exception) -> None:
        """Request a list for a purpose that can wait: once in `pause` seconds, with `why` in the log."""
        now = time.monotonic()
        if now >= self._requested.get(purpose, float("-inf")) + pause:
            self._requested[purpose] = now
            logger.info("%s: %s", purpose, why)
            self.request_list()

    def _list_again(self) -> None:
        """Request a list for events that were lost, as no later report has them: at once, but at most one per
        `nri_lost` seconds, so that a container whose events always fail does not reconnect for ever."""
        if self._relist is None:
            loop = asyncio.get_running_loop()
            self._relist = loop.call_at(max(loop.time(), self._relisted + self._timeouts.nri_lost), self._list_now)

    def _list_now(self) -> None:
        self._relist, self._relisted = None, asyncio.get_running_loop().time()
        if self._decider is None and self.plugin is not None and not self.plugin.can_reconnect and (
                self._config.paths.nri.exists()):  # two plugins that give out CPUs would contradict each other
            self._connect_beside()
        else:
            self.request_list()

    def unread(self) -> set[SandboxId]:
        """The sandboxes of events that wait to be taken."""
        return {sandbox for queue in self._queues for sandbox in queue.sandboxes()}

    def _new_queue(self, loop: asyncio.AbstractEventLoop) -> NriQueue:
        # The first call takes all.
        self._queues.append(NriQueue(lambda: loop.call_soon_threadsafe(self._drain)))
        return self._queues[-1]

    def _on_state(self, up: bool, text: str) -> None:
        """Called in a plugin's thread."""
        self.state = f"connected to {text}" if up else f"not connected: {text}"

    def _can_wait(self, call: CallFacts) -> bool:
        """Called in a plugin's thread. A start that comes during the pass of its container's creation would be judged
        by the placement before that pass: it does not wait."""
        return not (call.verb is Verb.START and call.pod in self._applied) and self._may_wait(call)

    def _drain(self) -> None:
        self._applied = self.unread()
        try:
            batch = merged(self._queues)
            if batch.lost:
                self._list_again()
            if batch.events:
                self._take(batch.events, batch.times[0], batch.waited)
        except Exception as err:
            logger.error("NRI events not applied, everything is listed again: a mistake of vmpin's in %s: %r",
                         log.raised_at(err), err)
            logger.debug("NRI events", exc_info=True)
            self._list_again()
        finally:
            self._applied = set()

    def data(self) -> dict[str, object]:
        """Return the plugin's state and counters for the status."""
        return {"state": self.state, **asdict(NriCounters() if self.plugin is None else self.plugin.counters)}


def pod_resources_socket(config: Config) -> Path:
    return config.paths.kubelet / "pod-resources/kubelet.sock"


async def poll_pod_resources(config: Config, answered: Callable[[Mapping[tuple[str, str, str], CpuSet] | None], None],
                             timeouts: Timeouts) -> None:
    """Ask the kubelet which CPUs it gave which container, as a second source beside its checkpoint. Until cancelled.
    :param answered: called in the loop with the answer, None without one."""
    kubelet, logged = pod_resources_socket(config), ""
    while True:
        answer = None
        if kubelet.exists():
            from vmpin.sources import pod_resources  # gRPC, which a node without a kubelet does not load

            try:
                answer = await asyncio.to_thread(pod_resources.list_cpus, kubelet, timeouts.pod_resources)
                logged = ""
            except SourceError as err:
                if str(err) != logged:
                    logger.warning("PodResources not read: %s", err)
                logged = str(err)
        answered(answer)
        # The kubelet limits all its clients to 100 requests a second.
        await asyncio.sleep(max(config.watch.resync_seconds, timeouts.pod_resources_pause))


class FileFeed:
    """Reports which of the watched files were written, and in which directories an entry appeared or went.
    :param changed: called in the loop with the watched paths, and when the first change came (time.perf_counter())."""

    def __init__(self, changed: Callable[[set[Path], float], None], timeouts: Timeouts = TIMEOUTS) -> None:
        self._changed, self._timeouts = changed, timeouts
        self._inotify: Inotify | None = None
        self._wanted: set[Path] = set()
        self.watched: dict[Path, int] = {}  #: The number of each path's watch.
        self._written: set[Path] = set()
        self._mask = 0
        self._due: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Report until cancelled. :raises OSError: when the kernel has no more inotify instances or watches."""
        # Here, as it loads ctypes, for which a hardened service may not get the memory.
        from vmpin.host import inotify

        loop = asyncio.get_running_loop()
        self._mask = inotify.IN_MODIFY | inotify.IN_MOVED_TO | inotify.IN_DELETE
        self._inotify = watch = inotify.Inotify()
        try:
            self.watch(self._wanted)
            loop.add_reader(watch.fd, self._read, watch)
            await asyncio.Event().wait()
        finally:
            loop.remove_reader(watch.fd)
            watch.close()
            self._inotify = None
            self.watched.clear()
            if self._due is not None:
                self._due.cancel()
                self._due = None  # else nothing would be reported after a restart

    def watch(self, paths: Iterable[Path], again: Set[Path] = frozenset()) -> None:
        """Watch these paths alone. One that does not exist is left out until the next call.
        :param again: those of them that may be other files by now: the end of a cgroup is not reported."""
        wanted = self._wanted = set(paths)
        if self._inotify is None:
            return
        for path in self.watched.keys() - wanted:
            self._inotify.unwatch(self.watched.pop(path))
        for path in wanted - (self.watched.keys() - again):
            number, before = self._inotify.watch(path, self._mask), self.watched.pop(path, None)
            if before is not None and before != number:
                self._inotify.unwatch(before)
            if number is not None:
                self.watched[path] = number

    def _read(self, watch: Inotify) -> None:
        events = watch.read()
        paths = {number: path for path, number in self.watched.items()}
        for event in events:
            if event.overflow:
                self._written |= self.watched.keys()
            elif event.wd in paths:
                self._written.add(paths[event.wd])
            if event.ended:
                self.watched.pop(paths.get(event.wd, Path()), None)
        if self._written and self._due is None:
            loop, now = asyncio.get_running_loop(), time.perf_counter()
            self._due = loop.call_later(self._timeouts.file_calm, self._report, now)

    def _report(self, since: float) -> None:
        self._due = None
        written, self._written = self._written, set()
        try:
            self._changed(written, since)
        except Exception:
            for path in written:  # not read: the next resync reads what is not watched, and has it watched again
                self.watched.pop(path, None)
            raise


NEEDED = {"hook", "control", "resync", "recheck"}  #: The watcher is not ready without these tasks.


def source_health(view: NodeView, nri: NriFeed | None, proc_events: ProcEventsFeed | None,
                  tasks: Iterable[str], failing: Mapping[str, str]) -> Iterator[SourceHealth]:
    """The health of each source that this node has. :param failing: tasks that wait for their restart, with why."""
    config = view.config
    for name in tasks:
        if name in failing:
            yield SourceHealth(name, False, name in NEEDED, failing[name])
        elif name == "nri" and nri is not None:
            if config.watch.nri == "on" or nri.plugin is not None or config.paths.nri.exists():
                yield SourceHealth(name, view.nri_listed, True, nri.state)
        elif name == "new_threads" and proc_events is not None:
            yield proc_events.source_health()
        elif name == "podresources":
            if pod_resources_socket(config).exists():
                yield SourceHealth(name, view.pod_resources is not None, False)
        else:
            yield SourceHealth(name, True, name in NEEDED)
    if config.watch.kubelet and (view.kubelet is not None or view.checkpoint.trouble):
        yield SourceHealth("kubelet", not view.checkpoint.trouble, True, view.checkpoint.trouble)
