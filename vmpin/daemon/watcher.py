"""`vmpin watch`: keeps every VM's threads in place, on events of its sources and at each resync.

The watcher owns the feeds, the tasks and the run directory, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from vmpin import log
from vmpin.config.settings import Config
from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.daemon import sd_notify
from vmpin.daemon.feeds import FileFeed, NriFeed, source_health, wants_nri
from vmpin.daemon.hook_intake import HookIntake
from vmpin.daemon.passes import Passes
from vmpin.daemon.reloading import reloaded
from vmpin.daemon.run_directory import RunDirectory
from vmpin.daemon.state_saving import StateSaving
from vmpin.daemon.supervision import Source, SupervisedTasks
from vmpin.feature import WatcherPart, features, present
from vmpin.guests.manager import GuestManager
from vmpin.host.lock import Lock
from vmpin.procevents.feed import ProcEventsFeed
from vmpin.procevents.newborn_placer import FollowUp
from vmpin.reconcile import teardown
from vmpin.reconcile.cpuset_files import CpusetFiles
from vmpin.reconcile.intake import take_nri
from vmpin.reconcile.reconciler import PassReport, Reconciler
from vmpin.reconcile.runtime_waits import AWAITED_FOR
from vmpin.reconcile.urgency import can_wait
from vmpin.sources.nri.nri_events import ContainerEvent, Disconnected, NriEvent, PodEvent, Synced
from vmpin.sources.nri.nri_reports import Relist
from vmpin.sources.spool import Spool
from vmpin.status.collector import About
from vmpin.status.health import SourceHealth
from vmpin.wire.nri_enums import Verb

logger = logging.getLogger(__name__)


class Watcher:
    """Runs once per process, with the lock held, and with a reconciler that has made its first pass.
    :param load: loads the configuration again, at SIGHUP.
    :param kept: messages in the spool that the reconciler has processed, and that the state file lacks yet.
    :param changed: True if the configuration's file has changed, called at each resync with `watch.reload` change."""

    def __init__(self, load: Callable[[], Config], reconciler: Reconciler, spool: Spool, kept: list[str], lock: Lock,
                 timeouts: Timeouts = TIMEOUTS, changed: Callable[[], bool] = lambda: False) -> None:
        self._load, self._changed = load, changed
        self.reconciler, self.view = reconciler, reconciler.view
        self.node_state = node_state = reconciler.node_state
        config = self.view.config
        self.lock = lock
        self.timeouts = timeouts
        self._stop = asyncio.Event()
        self._resync = asyncio.Event()
        self._full = False  #: Whether the next resync inspects every process again.
        self.resynced = time.monotonic()  #: When the last resync ended, by time.monotonic().
        self._tasks = SupervisedTasks(timeouts)
        self.restarts, self.counters = self._tasks.restarts, node_state.counters
        self.saving = StateSaving(node_state, spool, kept, lock, self._resync.set, timeouts)
        #: What features do in this watcher, by the feature's name, without those that are switched off.
        self.parts: Mapping[str, WatcherPart] = {
            feature.name: part for feature in features()
            if feature.watch is not None and (part := feature.watch(self)) is not None}
        parts = self.parts.values()
        self._before_events = [*present(part.before_events for part in parts)]
        self._after_events = [*present(part.after_events for part in parts)]
        self._after_pass = [*present(part.after_pass for part in parts)]
        decider = next(present(part.decider for part in parts), None)
        self.nri = (NriFeed(config, self._on_nri, self._stop.set, timeouts, decider, partial(can_wait, self.view))
                    if wants_nri(config) else None)
        self.files = FileFeed(self._on_files, timeouts)
        self.proc_events = (ProcEventsFeed(reconciler, self._on_new_threads, self._on_lost, timeouts=timeouts)
                            if config.watch.births else None)
        self._relist = Relist()
        self._cpuset_files = CpusetFiles(node_state, self.files.watched)
        self.guests = GuestManager(early=config.watch.births and config.guest.via_for() != "off",
                                   timeouts=timeouts)
        self.guest = self.guests.report
        self.passes = Passes(reconciler, self.guests, self.saving, self.proc_events, self._passed, timeouts)
        self.hooks = HookIntake(node_state, spool, self.saving, self.passes.follow_hook)
        self.about: About | None = None  #: None until it is ready.

    async def run(self, tasks_of: Callable[[Watcher, RunDirectory], dict[str, Source]]) -> None:
        """Run the watcher until SIGTERM or SIGINT.
        :param tasks_of: its tasks, by name (task_table).
        :raises LockHeldError: when another process took the run directory's lock."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        # `vmpin watch` has blocked them until here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        directory = RunDirectory(self.view.config, self.lock, self.saving.prepare_again)
        directory.open()
        if self.nri is not None:
            self.node_state.judge_drift_after(self.nri.unread)
        for begin in present(part.begin for part in self.parts.values()):
            begin()
        self.hooks.take_spool()
        if self.saving.kept:
            self._resync.set()  # now, for the messages since the first pass
        self.saving.save()
        self._watch_files()
        self.guests.update(self.view)
        unpinned = False
        try:
            async with asyncio.TaskGroup() as group:
                self._tasks.start(group, tasks_of(self, directory))
                sd_notify.notify("READY=1")
                logger.info("watching vms=%d run=%s", len(self.view.vms), self.view.config.paths.run)
                self.about = About()
                self.passes.ask_qmp()
                # However long resyncs are apart, no VM waits for the runtime's list longer than this.
                loop.call_later(AWAITED_FOR, self._resync.set)
                await self._stop.wait()
                unpinned = await self._end_tasks(directory)
        finally:
            if not unpinned and directory.ousted is None:
                self.saving.save()
            directory.close()
            if directory.ousted is None:
                teardown.all_done("not ended in order", ((name, part.end) for name, part in self.parts.items()
                                                         if part.end is not None))
        if directory.ousted is not None:
            raise directory.ousted
        if not unpinned:
            logger.info("stopped; threads keep their masks (`vmpin unpin --every` gives them back)")
            return
        teardown.give_all_back(self.reconciler)
        if teardown.forget(self.view.config, self.reconciler):
            logger.info("stopped; original masks are restored, and nothing is left")

    def _passed(self) -> None:
        for after_pass in self._after_pass:
            after_pass()

    async def _end_tasks(self, directory: RunDirectory) -> bool:
        """End the tasks, those of guests last: with `watch.on_exit` unpin they first restore the guests' masks.
        :returns: True if the original masks are restored."""
        directory.keep(self.view.config)
        sd_notify.notify("STOPPING=1")
        self._tasks.cancel(*(name for name in self._tasks.names if name != "guests"))
        self.passes.stop()
        unpin = self.view.config.watch.on_exit == "unpin" and directory.ousted is None
        if unpin:
            teardown.give_all_back(self.reconciler)
            self.guests.update(self.view)
            for sandbox, result in (await self.guests.unpin_results(self.view.all_sandboxes())).items():
                logger.info("unpinned in the guest sandbox=%s: %s", sandbox, result)
        self._tasks.cancel("guests")
        return unpin

    def _reload(self) -> None:
        sd_notify.notify("RELOADING=1")
        config = reloaded(self.view.config, self._load)
        if config is not None:
            self.node_state.reconfigure(config)
            self._resync.set()
        sd_notify.notify("READY=1")

    # Events

    @log.operation()
    def _on_nri(self, events: list[NriEvent], since: float, waited: bool) -> None:
        """Take the runtime's events, and make a pass for their sandboxes.
        :param waited: whether each could wait (`can_wait`): then their pass is made only if a VM has to move."""
        self._relist.take(events)
        for event in events:
            match event:
                case Synced():
                    self.node_state.nri_list_came()
                    self._resync.set()  # containers that are no longer listed may have left files and masks behind
                case Disconnected():
                    self.node_state.nri_connection_lost()
        for before_events in self._before_events:
            before_events()
        touched, lost = take_nri(self.node_state, events)
        for after_events in self._after_events:
            after_events(events)
        if lost and self.nri is not None:
            self.nri.request_list()
        started = [event.container.pod for event in events
                   if isinstance(event, ContainerEvent) and event.verb is Verb.POST_START and event.container.cpus]
        if started:
            self._relist.joined(self.view.without_kata(self.view.pods_of_others(started)))
        ownership = self.view.ownership
        if waited and not any(map(self.view.may_get_vm, touched)):
            moved = self.reconciler.place()
            if not moved and self.view.ownership is ownership:
                self._passed()
                return
            touched |= moved
        if not touched:
            return
        # Only these bring threads that no pass has seen.
        begun = {event.pod.id if isinstance(event, PodEvent) else event.container.pod for event in events
                 if isinstance(event, PodEvent | ContainerEvent) and event.verb in (Verb.RUN_POD, Verb.POST_START)}
        # A VM gets vCPUs and another cgroup cpuset before a container of it is started.
        grows = {event.container.pod for event in events
                 if isinstance(event, ContainerEvent) and event.verb in (Verb.CREATE, Verb.POST_CREATE, Verb.UPDATE)}
        grows &= self.view.vms.keys()
        self.passes.run(touched, "nri", since, scan=bool(begun))
        if self._cpuset_files.moved(grows):
            self._watch_files()
        self.passes.recheck_soon(begun | grows, waited)
        # A container that shares CPUs, and is in no VM, is in the state file from the next resync on.
        only_if_unsaved = self.view.ownership is ownership and touched.isdisjoint(self.view.vms)
        self.saving.save_soon(only_if_unsaved)
        self.saving.save_with_others()

    @log.operation()
    def _on_files(self, written: set[Path], since: float) -> None:
        """Make a pass for the sandboxes of written files: the kubelet's checkpoint, cpuset cgroups."""
        touched = self._cpuset_files.read(written)
        self._relist.written(self.view.without_kata(touched))
        self.passes.run(touched, "files", since, scan=False)
        self.saving.save_soon()

    def _watch_files(self) -> None:
        """Watch the directories of the kubelet and of CDI specs, and the cpusets of containers and VMs."""
        config = self.view.config
        kubelet = [config.paths.kubelet] if config.watch.kubelet else []
        paths = [*kubelet, config.paths.cdi, *self._cpuset_files.paths()]
        self.files.watch(paths, again=self._cpuset_files.looked_up)

    @log.operation()
    def _on_new_threads(self, follow_up: FollowUp, since: float) -> None:
        if follow_up.now:
            self.passes.run(follow_up.now, "new_threads", since, scan=False)
            self.passes.ask_qmp()
        self.passes.rechecks.restart(follow_up.started)
        self.passes.rechecks.unnamed_thread(follow_up.unnamed)
        self.saving.save_soon(only_if_unsaved=True)

    def _on_lost(self) -> None:
        """The kernel dropped events of processes."""
        self._full = True
        self._resync.set()

    # Passes

    async def resync_regularly(self, directory: RunDirectory) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.view.config.watch.resync_seconds):
                    await self._resync.wait()
            self._resync.clear()
            if not directory.keep(self.view.config):
                self._stop.set()
                return
            if self.view.config.watch.reload == "change" and self._changed():
                self._reload()
            self.hooks.take_spool()
            self.node_state.forks_reported(self.proc_events is not None and self.proc_events.connected)
            with log.operation():
                self.passes.record(self.reconciler.resync(full=self._full), "resync")
            self._full = False  # after the pass: one that fails leaves the request
            self.resynced = time.monotonic()
            if self.node_state.outdated:
                self.saving.save_soon()
            self.passes.ask_qmp()
            self._watch_files()
            for after_resync in present(part.after_resync for part in self.parts.values()):
                after_resync()
            if self._relist.due() and self.nri is not None:
                self.nri.request_list()

    # What control, features and status read

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def source_health(self) -> Iterable[SourceHealth]:
        """The health of the sources now, for metrics and probes."""
        return (*source_health(self.view, self.nri, self.proc_events, self._tasks.names, self._tasks.failing),
                *(source for health in present(part.health for part in self.parts.values()) for source in health()))

    def feeds(self) -> tuple[dict[str, object] | None, dict[str, object] | None]:
        """The states of the NRI feed and the proc-events feed, for the status; None for one that is switched off."""
        return (None if self.nri is None else self.nri.data(),
                None if self.proc_events is None else self.proc_events.data())

    @log.operation()
    def refresh_everything(self) -> PassReport:
        """Make a full resync at once, on an operator's request: it inspects every process again."""
        self.hooks.take_spool()
        report = self.reconciler.resync(full=True)
        self.guests.retry_now()
        self.passes.record(report, "request")
        return report
