"""What tells the watcher, beside hooks and the clock: the container runtime (NRI), and files that the kernel watches.

Each turns what comes from a thread or a descriptor into one call in the loop for all that has come. What stays out:
what is then done.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.errors import SourceError
from vmpin.reconcile.view import NodeView
from vmpin.sources.nri.translation import NriCounters, NriEvent
from vmpin.status.health import SourceHealth

if TYPE_CHECKING:
    from vmpin.host.inotify import Inotify
    from vmpin.procevents.feed import ProcEventsFeed
    from vmpin.sources.nri.plugin import NriPlugin

logger = logging.getLogger(__name__)

#: Files change in bursts (a write, a rename); they are read this many seconds after the first.
CALM = 0.02
#: Within so many seconds a runtime tells a plugin that it started of all there is.
SYNC_DEADLINE = 2.0
#: What the runtime told and the loop has not taken yet.
MAX_WAITING = 1024
_GRPC_DEADLINE = 2.0
_STARTED_BY_RUNTIME = "NRI_PLUGIN_SOCKET"


def wants_nri(config: Config) -> bool:
    """Whether to be an NRI plugin; one that the runtime itself started has to be."""
    return config.watch.nri != "off" or _STARTED_BY_RUNTIME in os.environ


class NriFeed:
    """The plugin, from the moment that there is a runtime to connect to.

    :param take: called in the loop, with all that was told since.
    :param ended: called in the loop when no connection will come any more (a plugin that the runtime started).
    """

    def __init__(self, config: Config, take: Callable[[list[NriEvent]], None], ended: Callable[[], None]) -> None:
        self._config = config
        self._take = take
        self._ended = ended
        self._waiting: deque[NriEvent] = deque()
        self._stopped = False
        self.state = "waits for the runtime's socket"
        #: When the first of the events came that were handed on last, by time.perf_counter().
        self.since = 0.0
        self._first = 0.0
        self.plugin: NriPlugin | None = None

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        self._stopped = False
        started_by_runtime = _STARTED_BY_RUNTIME in os.environ
        if not started_by_runtime:
            while self._config.watch.nri == "auto" and not self._config.paths.nri.exists():  # noqa: ASYNC110
                await asyncio.sleep(self._config.watch.resync_seconds)
        from vmpin.sources.nri import plugin as nri
        from vmpin.sources.nri.connect import connect_to

        sys.setswitchinterval(nri.SWITCH_INTERVAL)

        def handle(event: NriEvent) -> None:
            # A loop that hangs: what comes waits in the plugin's queue, which has a bound.
            while len(self._waiting) >= MAX_WAITING and not self._stopped:
                time.sleep(0.01)
            if not self._waiting:
                self._first = time.perf_counter()
            self._waiting.append(event)
            loop.call_soon_threadsafe(self._drain)  # for each: the first one takes all, and the others find nothing

        def on_state(up: bool, text: str) -> None:
            self.state = f"connected to {text}" if up else f"not connected: {text}"

        def on_end(up: bool, text: str) -> None:
            on_state(up, text)
            if not up:
                loop.call_soon_threadsafe(self._ended)

        def of_its_own(name: str = "vmpin") -> NriPlugin:
            return nri.NriPlugin(connect_to(self._config.paths.nri), handle, name, on_state=on_state)

        plugins = [nri.from_environment(handle, on_end) or of_its_own()]
        self.plugin = plugins[0]
        self.state = "waits for the runtime to tell what there is"
        self.plugin.start()
        try:
            if started_by_runtime:
                await asyncio.sleep(SYNC_DEADLINE)
                if not self.plugin.counters.syncs:
                    # containerd 1.7 never synchronizes a plugin that it started (containerd/nri#43).
                    logger.info("nri: the runtime that started this plugin does not tell what there is: it is asked "
                                "over %s", self._config.paths.nri)
                    self.plugin = of_its_own("vmpin-sync")
                    plugins.append(self.plugin)
                    self.plugin.start()
            await asyncio.Event().wait()
        finally:
            self._stopped = True
            self.plugin = None
            for plugin in plugins:
                plugin.stop()

    def _drain(self) -> None:
        self.since = self._first
        events = []
        while self._waiting:
            events.append(self._waiting.popleft())
        if events:
            self._take(events)

    def data(self) -> dict[str, object]:
        """For the status."""
        return {"state": self.state, **asdict(NriCounters() if self.plugin is None else self.plugin.counters)}


def pod_resources_socket(config: Config) -> Path:
    return config.paths.kubelet / "pod-resources/kubelet.sock"


class PodResourcesFeed:
    """Asks the kubelet, as a second witness beside its checkpoint, which CPUs it gave to whom.

    :param heard: called in the loop with what it said; None when it cannot be asked.
    """

    def __init__(self, config: Config, heard: Callable[[Mapping[tuple[str, str, str], CpuSet] | None], None]) -> None:
        self._socket = pod_resources_socket(config)
        # it answers a hundred questions a second, of all who ask
        self._pause = max(config.watch.resync_seconds, 5.0)
        self._heard = heard

    async def run(self) -> None:
        """Until cancelled."""
        told = ""
        while True:
            if self._socket.exists():
                from vmpin.sources import pod_resources  # gRPC: nothing that a node without a kubelet should load

                try:
                    self._heard(await asyncio.to_thread(pod_resources.list_cpus, self._socket, _GRPC_DEADLINE))
                    told = ""
                except SourceError as err:
                    self._heard(None)
                    if str(err) != told:
                        logger.warning("%s", err)
                    told = str(err)
            else:
                self._heard(None)
            await asyncio.sleep(self._pause)


class FileFeed:
    """Says which of the watched files were written, and into which directories something was put.

    :param changed: called in the loop, with the paths that are watched.
    """

    def __init__(self, changed: Callable[[set[Path]], None]) -> None:
        self._changed = changed
        self._inotify: Inotify | None = None
        self._wanted: set[Path] = set()
        self._watched: dict[Path, int] = {}
        self._written: set[Path] = set()
        #: When the first of the changes came that were told last, by time.perf_counter().
        self.since = 0.0
        self._mask = 0
        self._due: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Until cancelled. :raises OSError: when the kernel gives no more of it."""
        # Here, as it loads ctypes, which a hardened service may be refused the memory for.
        from vmpin.host import inotify

        loop = asyncio.get_running_loop()
        self._mask = inotify.IN_MODIFY | inotify.IN_MOVED_TO | inotify.IN_DELETE
        self._inotify = made = inotify.Inotify()
        self.watch(self._wanted)
        loop.add_reader(made.fd, self._read, made)
        try:
            await asyncio.Event().wait()
        finally:
            loop.remove_reader(made.fd)
            made.close()
            self._inotify, self._watched = None, {}
            if self._due is not None:
                self._due.cancel()

    def watch(self, paths: Iterable[Path]) -> None:
        """Watch these, and nothing else any more. What is not there is left out, until it is asked for again."""
        wanted = self._wanted = set(paths)
        if self._inotify is None:
            return
        for path in self._watched.keys() - wanted:
            self._inotify.unwatch(self._watched.pop(path))
        for path in wanted - self._watched.keys():
            number = self._inotify.watch(path, self._mask)
            if number is not None:
                self._watched[path] = number

    def _read(self, made: Inotify) -> None:
        events = made.read()
        of = {number: path for path, number in self._watched.items()}
        for event in events:
            if event.overflow:
                self._written |= self._watched.keys()
            elif event.wd in of:
                self._written.add(of[event.wd])
            if event.ended:
                self._watched.pop(of.get(event.wd, Path()), None)
        if self._written and self._due is None:
            self.since = time.perf_counter()
            self._due = asyncio.get_running_loop().call_later(CALM, self._tell)

    def _tell(self) -> None:
        self._due = None
        written, self._written = self._written, set()
        self._changed(written)


#: Tasks of the watcher's without which it is not ready.
NEEDED = {"hook", "control", "resync", "settle"}


def source_health(config: Config, view: NodeView, nri: NriFeed | None, births: ProcEventsFeed | None,
                  tasks: Iterable[str], failing: Mapping[str, str]) -> Iterator[SourceHealth]:
    """What the watcher hears of, and whether it does. What there is none of on this node is left out.

    :param failing: the tasks that wait to be started again, with why.
    """
    for name in tasks:
        if name in failing:
            yield SourceHealth(name, False, name in NEEDED, failing[name])
        elif name == "nri" and nri is not None:
            wanted = config.watch.nri == "on" or nri.plugin is not None or config.paths.nri.exists()
            if wanted:
                yield SourceHealth(name, view.nri_listed, True, nri.state)
        elif name == "births" and births is not None:
            yield births.source_health()
        elif name == "podresources":
            if pod_resources_socket(config).exists():
                yield SourceHealth(name, view.pod_resources is not None, False)
        else:
            yield SourceHealth(name, True, name in NEEDED)
    if config.watch.kubelet and (view.kubelet is not None or view.checkpoint.trouble):
        yield SourceHealth("kubelet", not view.checkpoint.trouble, True, view.checkpoint.trouble)
