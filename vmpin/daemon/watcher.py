"""`vmpin watch`: keeps the node as it should be, from what hooks say, what runs, and the clock.

One task per source; each is started again on its own should it fail. The work itself is the reconciler's, done in the
loop: a pass takes milliseconds. What stays out: every decision.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vmpin import log
from vmpin.config import reload
from vmpin.config.settings import Config
from vmpin.config.timeouts import TIMEOUTS
from vmpin.daemon import sd_notify
from vmpin.daemon.control import Control
from vmpin.daemon.feeds import FileFeed, NriFeed, PodResourcesFeed, source_health, wants_nri
from vmpin.daemon.recheck import RecheckSchedule
from vmpin.daemon.run_directory import RunDirectory
from vmpin.daemon.runc_repair import RuncRepair
from vmpin.domain.model import SandboxId
from vmpin.errors import ConfigError, LockHeldError, SourceError, WatcherError
from vmpin.guests.manager import GuestManager
from vmpin.host.lock import Lock
from vmpin.host.unix_sockets import open_to, serve
from vmpin.pinning.apply import Outcome
from vmpin.procevents.feed import ProcEventsFeed
from vmpin.procevents.newborn_placer import FollowUp
from vmpin.reconcile import teardown
from vmpin.reconcile.intake import take_hook, take_spool
from vmpin.reconcile.reconciler import PassReport, Reconciler
from vmpin.reconcile.relist import Relist
from vmpin.reports.residency.sampler import Sampler
from vmpin.runtime.oci import MAX_STATE, HookState, parse_hook
from vmpin.sources.hook_state import began_at
from vmpin.sources.nri.nri_events import ContainerEvent, Disconnected, NriEvent, PodEvent, Synced
from vmpin.sources.spool import Spool
from vmpin.status.about import About
from vmpin.status.health import SourceHealth
from vmpin.vmm import qmp_identity
from vmpin.vmm.inventory import Vm
from vmpin.wire.nri_enums import Verb

if TYPE_CHECKING:
    from vmpin.domain.guest_report import GuestReport

logger = logging.getLogger(__name__)

#: Messages may come in bursts; the state file is written once for all that came within this time (seconds).
SAVE_AFTER = 0.2
MAX_REQUEST = 65536


class Watcher:
    """Made and run once per process, with the lock held, upon a reconciler that made its first pass.

    :param kept: spooled messages that the reconciler knows and the state file not yet.
    """

    def __init__(self, config: Config, reload: Callable[[], Config], reconciler: Reconciler, spool: Spool,
                 kept: list[str], lock: Lock) -> None:
        self.config = config
        self.reload = reload
        self.reconciler = reconciler
        self.view = reconciler.view
        self._tally = reconciler.tally
        self.spool = spool
        self._kept = kept
        self._lock = lock
        #: None until it runs.
        self._directory: RunDirectory | None = None
        #: Why it has to end: another watcher has the run directory.
        self._ousted: WatcherError | None = None
        #: Why the run directory could not be made again when it was last looked at, "" if it could.
        self._unmade = ""
        self._rechecks = RecheckSchedule()
        self._save = asyncio.Event()
        self._stop = asyncio.Event()
        self._resync = asyncio.Event()
        #: Whether the next resync is to look at every process again.
        self._full = False
        self._queries: set[asyncio.Task[None]] = set()
        self._nri = NriFeed(config, self._on_nri, self._stop.set) if wants_nri(config) else None
        self._files = FileFeed(self._on_files)
        self._proc_events = (ProcEventsFeed(reconciler, self._on_new_threads, self._on_lost) if config.watch.births
                             else None)
        self._relist = Relist()
        self._repair = RuncRepair(self.view, self._tally, reconciler.read_cgroups,
                                  lambda: None if self._nri is None else self._nri.plugin)
        self.guests = GuestManager(early=config.watch.births and config.guest.via_for() != "off")
        #: None as long as no samples are taken.
        self.sampler: Sampler | None = None
        #: When everything was last looked at, by time.monotonic().
        self.resynced: float | None = time.monotonic()
        #: How often each source failed; and which are waiting to be started again, with why.
        self.restarts: Counter[str] = Counter()
        self._failing: dict[str, str] = {}
        self._sources: list[str] = []
        self.about: About | None = None

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. :raises WatcherError: when another watcher has the run directory."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))  # cli/watch
        directory = self._directory = RunDirectory(self.config, self._lock)
        self._take_spool()
        if self._kept:
            self._resync.set()  # what came since the first pass does not wait for the clock
        self._saved()
        self._files.watch(self._watched())
        sources: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = [
            ("hook", directory.anew(
                lambda: serve(directory.hook.dup(), MAX_STATE + 4096, self._on_hook, line=False))),
            ("control", directory.anew(
                lambda: serve(directory.control.dup(), MAX_REQUEST, Control(self).answer, line=True))),
            ("resync", self._resyncing), ("settle", self._settles), ("state", self._saving),
            ("files", self._files.run), ("guests", self.guests.run),
            ("proof", self._sampling)]
        self.guests.update(self.view)
        if self.config.watch.kubelet:
            sources.append(("podresources", PodResourcesFeed(self.config, self.reconciler.pod_resources).run))
        if self._nri is not None:
            sources.append(("nri", self._nri.run))
        if self._proc_events is not None:
            sources.append(("births", self._proc_events.run))
        if sd_notify.watchdog_seconds() is not None:
            sources.append(("watchdog", self._patting))
        if self.config.metrics.address is not None:
            from vmpin.daemon.exporter import Exporter

            sources.append(("metrics", directory.anew(Exporter(self).run)))
        self._sources = [name for name, _ in sources]
        given = False
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._supervised(name, source)) for name, source in sources]
                sd_notify.notify("READY=1")
                logger.info("watching vms=%d run=%s", len(self.view.vms), self.config.paths.run)
                self.about = About()
                self._ask_qmp()
                await self._stop.wait()
                self._in_place()
                sd_notify.notify("STOPPING=1")
                guests = tasks[[name for name, _ in sources].index("guests")]
                self._repair.stop()
                for task in [*tasks, *self._queries]:
                    if task is not guests:
                        task.cancel()
                if self.config.watch.on_exit == "unpin" and self._ousted is None:
                    teardown.give_all_back(self.reconciler)
                    given = True
                    self.guests.update(self.view)
                    for sandbox, said in (await self.guests.unpin_results(self.reconciler.all_sandboxes())).items():
                        logger.info("sandbox=%s in its guest: %s", sandbox, said)
                guests.cancel()
        finally:
            if not given and self._ousted is None:
                self._saved()
            directory.close()
            if self.sampler is not None and self._ousted is None:
                try:
                    self.sampler.close()
                except Exception as err:  # whatever it is, the rest of the leaving goes on
                    logger.error("the last sample failed: %r", err)
        if self._ousted is not None:
            raise self._ousted
        if not given:
            logger.info("stopped; threads keep their masks (`vmpin unpin --every` gives them back)")
            return
        teardown.give_all_back(self.reconciler)
        if teardown.forget(self.config, self.reconciler):
            logger.info("stopped; threads have their masks from before, and nothing is left")

    async def _supervised(self, name: str, source: Callable[[], Coroutine[Any, Any, None]]) -> None:
        pause = 0.5
        while True:
            started = time.monotonic()
            try:
                await source()
            except Exception as err:  # whatever it is, the other sources go on
                self.restarts[name] += 1
                self._failing[name] = repr(err)
                if time.monotonic() - started > 60:
                    pause = 0.5  # it had recovered from what was before
                logger.error("source=%s failed and is started again in %.1f s: %r", name, pause, err)
                logger.debug("source=%s", name, exc_info=True)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 30.0)
            self._failing.pop(name, None)

    def source_health(self) -> Iterable[SourceHealth]:
        """The sources as they are now, for metrics and probes."""
        return source_health(self.config, self.view, self._nri, self._proc_events, self._sources, self._failing)

    def guest(self, sandbox: SandboxId) -> GuestReport | None:
        """What a sandbox's guest says; None where it is told nothing."""
        return self.guests.report(sandbox)

    def _reload(self) -> None:
        sd_notify.notify("RELOADING=1")
        try:
            loaded = self.reload()
            reload.refuse_empty(self.config, loaded)
            config = reload.keep_fixed(self.config, loaded)
            if config.watch.status_group != self.config.watch.status_group:
                open_to(self.config.paths.control_socket, config.watch.status_group)
                if self.config.metrics.address is not None and self.config.metrics.address.path is not None:
                    open_to(self.config.metrics.address.path, config.watch.status_group)
        except (ConfigError, OSError) as err:
            logger.error("the configuration stays as it was: %s", err)
        else:
            if later := reload.changes(config, loaded):
                logger.warning("changed paths, %s are used after a restart only: %s", " and ".join(reload.FIXED),
                               "; ".join(later))
            changed = "; ".join(reload.changes(self.config, config)) or "nothing changed"
            self.config = config
            if quiet := not logger.isEnabledFor(logging.INFO):
                log.set_level(config.log.level)
            logger.info("configuration loaded again: %s", changed)
            if not quiet:
                log.set_level(config.log.level)
            self.reconciler.reconfigure(config)
            self._resync.set()
        sd_notify.notify("READY=1")

    # Hooks

    async def _on_hook(self, raw: bytes, uid: int) -> bytes:
        """Parse a hook's message, spool it, answer it, then apply it."""
        if uid not in (0, os.geteuid()):
            logger.warning("hook message refused: from uid=%d", uid)
            return b"refused: not root\n"
        try:
            hook = parse_hook(raw)
        except SourceError as err:
            logger.warning("hook message refused: %s", err)
            self._tally.hooks["refused"] += 1
            return f"refused: {err}\n".encode("utf-8", "replace")
        since = time.perf_counter()
        name = self.spool.keep(raw, began_at(hook))
        if name is None and not self._take(hook, None, since):
            return b"not now: cannot spool or process the message\n"  # then the hook keeps it
        if name is None:
            return b"ok\n"
        asyncio.get_running_loop().call_soon(self._take, hook, name, since)
        return b"ok\n"

    @log.operation()
    def _take(self, hook: HookState, name: str | None, since: float) -> bool:
        """Apply a message. :returns: False when that has to be tried again: the next resync takes it from the spool.

        :param name: of its file in the spool, None when it could not be spooled.
        :param since: when it came, by time.perf_counter().
        """
        sandboxes = take_hook(self.reconciler, hook)
        if sandboxes is None:
            return False
        if name is not None:
            self._kept.append(name)
        self._told(self.reconciler.reconcile(sandboxes), "hook", since)
        self._rechecks.restart(sandboxes)
        self._save.set()
        return True

    def _take_spool(self) -> None:
        names = take_spool(self.reconciler, self.spool, set(self._kept))
        if names:
            self._kept += names
            self._save.set()

    # The container runtime

    @log.operation()
    def _on_nri(self, events: list[NriEvent]) -> None:
        self._repair.take(events)
        self._relist.take(events)
        for event in events:
            match event:
                case Synced():
                    self.reconciler.nri_connected(True)
                    self._resync.set()  # what nobody lists any more may have left something behind
                case Disconnected():
                    self.reconciler.nri_connected(False)
        touched, lost = self.reconciler.nri(events)
        if lost:
            self._list_again()
        if not touched:
            return
        # Only a beginning brings threads that are not there yet; an update is set at once, and that is all.
        begun = {event.pod.id if isinstance(event, PodEvent) else event.container.pod for event in events
                 if isinstance(event, PodEvent | ContainerEvent) and event.verb in (Verb.RUN_POD, Verb.POST_START)}
        # A VM gets vCPUs and another cgroup cpuset before a container of it is started.
        grows = {event.container.pod for event in events
                 if isinstance(event, ContainerEvent) and event.verb in (Verb.CREATE, Verb.POST_CREATE, Verb.UPDATE)}
        grows &= self.view.vms.keys()
        since = None if self._nri is None else self._nri.since
        self._told(self.reconciler.reconcile(touched, scan=bool(begun)), "nri", since)
        if grows:
            self.reconciler.moves(grows)
            self._files.watch(self._watched())
        self._rechecks.restart(begun | grows)
        self._save.set()

    def _list_again(self) -> None:
        if self._nri is not None and self._nri.plugin is not None and self._nri.plugin.can_reconnect:
            self._nri.plugin.reconnect()

    @log.operation()
    def _on_files(self, written: set[Path]) -> None:
        """The kubelet's checkpoint, or cpuset cgroups: they are read when their sandboxes are settled."""
        touched = self.reconciler.written(written)
        self._relist.written(self.reconciler.without_kata(touched))
        self._told(self.reconciler.reconcile(touched, scan=False), "files", self._files.since)
        self._save.set()

    # New programs and threads

    @log.operation()
    def _on_new_threads(self, follow_up: FollowUp, since: float) -> None:
        if follow_up.now:
            self._told(self.reconciler.reconcile(follow_up.now, scan=False), "birth", since)
            self._ask_qmp()
        self._rechecks.restart(follow_up.started)
        self._rechecks.unnamed_thread(follow_up.unnamed)
        if self.reconciler.unsaved:
            self._save.set()

    def _on_lost(self) -> None:
        self._full = True
        self._resync.set()

    # The clock

    async def _resyncing(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.watch.resync_seconds):
                    await self._resync.wait()
            self._resync.clear()
            if not self._in_place():
                return
            self._take_spool()
            self.reconciler.births_reported(self._proc_events is not None and self._proc_events.connected)
            self._told(self.reconciler.resync(full=self._full), "resync")
            self._full = False  # now: what was asked for is not lost with a pass that fails
            self.resynced = time.monotonic()
            if self.reconciler.unsaved:
                self._save.set()
            self._ask_qmp()
            self._files.watch(self._watched())
            self._repair.look()
            if self._relist.due():
                self._list_again()

    def _in_place(self) -> bool:
        """See that the run directory is still this watcher's. :returns: False when it is another's: this one ends."""
        if self._directory is None or self._ousted is not None:
            return self._ousted is None
        try:
            renewal = self._directory.look(self.config)
            if renewal.renewed:
                self.spool.prepare()
                self.reconciler.save_again()
            if renewal.failure is not None:
                raise renewal.failure
        except LockHeldError as err:
            logger.error("the run directory was removed, and is another watcher's now: %s", err)
            self._ousted = err
            self._stop.set()
            return False
        except (OSError, ConfigError, WatcherError) as err:  # what runs is kept in place meanwhile
            if self._unmade != str(err):
                logger.error("%s cannot be made again, which is tried at every resync: %s", self.config.paths.run,
                             err)
            self._unmade = str(err)
        else:
            self._unmade = ""
        return True

    def _watched(self) -> Iterable[Path]:
        """The kubelet's directory, and the cpusets of the containers and VMs that are followed."""
        if self.config.watch.kubelet:
            yield self.config.paths.kubelet
        yield from self.reconciler.cpuset_files()

    async def _settles(self) -> None:
        """Look again, ever more seldom, at sandboxes a hook spoke of."""
        while True:
            due = await self._rechecks.due()
            self._told(self.reconciler.reconcile(due), "settle")
            self._ask_qmp()
            if self.reconciler.unsaved:
                self._save.set()
            for sandbox in self._rechecks.checked(due):
                vm = self.view.vms.get(sandbox)
                if vm is not None and not vm.known:
                    logger.warning("sandbox=%s: after %.1f s its vCPU threads cannot be told (known: %d of %d "
                                   "threads)", sandbox, sum(TIMEOUTS.rechecks), len(vm.vcpus), len(vm.vmm.stats))

    async def _saving(self) -> None:
        while True:
            await self._save.wait()
            await asyncio.sleep(SAVE_AFTER)
            self._save.clear()
            self._saved()

    def _saved(self) -> None:
        """Bring the state file up to date; then what it holds need not be spooled any more."""
        if not self._lock.held():  # whose state file it is now is to be seen first
            self._resync.set()
            return
        kept, self._kept = self._kept, []
        if (self.reconciler.unsaved and not self.reconciler.save()):
            self._kept = kept + self._kept
        else:
            self.spool.remove(kept)

    async def _sampling(self) -> None:
        """Sample again and again where the threads run, in slices between which others have their turn."""
        while True:
            seconds = self.config.proof.interval
            if seconds is None:
                if self.sampler is not None:
                    self.reconciler.report_strays(None)
                    self.sampler.close()
                    self.sampler = None
                await asyncio.sleep(self.config.watch.resync_seconds)
                continue
            if self.sampler is None:
                self.sampler = Sampler(self.view, self.config.paths.proof_file)
                self.reconciler.report_strays(self.sampler.strayed)
            await asyncio.sleep(self.sampler.turn(seconds))

    async def _patting(self) -> None:
        while True:
            sd_notify.notify("WATCHDOG=1")
            await asyncio.sleep(sd_notify.watchdog_seconds() or 10.0)

    def _told(self, report: PassReport, why: str, since: float | None = None) -> None:
        """After a pass. :param since: when the event it was made for came in, by time.perf_counter()."""
        tally = self._tally
        tally.passes[why] += 1
        tally.pass_seconds.observe(report.seconds)
        if since is not None and report.count(Outcome.DONE):
            tally.pin_latency.observe(time.perf_counter() - since)
        if self._proc_events is not None:
            self._proc_events.after_pass(report, everything=why in ("resync", "request"))
        self.guests.update(self.view)
        self._rechecks.begin({result.operation.sandbox for result in report.results
                                   if result.outcome is Outcome.WAITING})
        failed = report.count(Outcome.REFUSED)
        logger.debug("pass why=%s vms=%d set=%d refused=%d ms=%.1f", why, report.vms,
                     report.count(Outcome.DONE), failed, report.seconds * 1000)

    # QMP

    def _ask_qmp(self) -> None:
        for vm in self.reconciler.wanting_qmp():
            task = asyncio.create_task(self._query(vm))
            self._queries.add(task)
            task.add_done_callback(self._queries.discard)

    async def _query(self, vm: Vm) -> None:
        if await qmp_identity.ask(vm) and self.view.vms.get(vm.sandbox) is vm:
            self._told(self.reconciler.reconcile([vm.sandbox]), "qmp")
            self._save.set()

    # Requests

    @property
    def stopping(self) -> bool:
        """Whether it is about to end."""
        return self._stop.is_set()

    def feeds(self) -> tuple[dict[str, object] | None, dict[str, object] | None]:
        """The NRI feed's and the proc-events feed's parts of the status; None for one that is switched off."""
        return (None if self._nri is None else self._nri.data(),
                None if self._proc_events is None else self._proc_events.data())

    @log.operation()
    def look_again(self) -> PassReport:
        """Read everything anew, what was found to be nothing to us as well, and make it true."""
        self._take_spool()
        report = self.reconciler.resync(full=True)
        self.guests.retry_now()
        self._told(report, "request")
        return report
