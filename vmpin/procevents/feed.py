"""The proc-events feed: passes the kernel's proc connector events to the newborn placer, in the watcher's event loop.

It limits the loop time that bursts of events take, and requests passes for what the placer cannot do by itself.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from vmpin import log
from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.domain.model import SandboxId
from vmpin.errors import SourceError
from vmpin.host.proc_connector import ProcConnector
from vmpin.host.procfs import Procfs
from vmpin.procevents.newborn_placer import FollowUp, NewbornPlacer
from vmpin.reconcile.reconciler import PassReport, Reconciler
from vmpin.status.health import SourceHealth
from vmpin.wire.proc_events import Comm, Event, Exec, Exit, Fork

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Events read at once.
_BATCH = 512
#: Seconds between two warnings of lost events: any user can execute programs faster than their events are read.
_WARN_EVERY = 60.0
_KINDS: dict[type, str] = {Fork: "fork", Exec: "exec", Comm: "comm", Exit: "exit"}


class ProcEventsFeed:
    """Owns the connector and the events that were read but not handled yet.
    :param follow_up: called in the loop with the work for passes, and the time of its event (time.perf_counter()).
    :param lost: called in the loop when events were, or may have been, lost: a full pass is needed.
    :param placer: handles the events.
    :param connect: opens the connector; called in a thread.
    :param clock: measures the time that a batch of events takes."""

    def __init__(self, reconciler: Reconciler, follow_up: Callable[[FollowUp, float], None],
                 lost: Callable[[], None], *, placer: NewbornPlacer | None = None,
                 connect: Callable[[Procfs], ProcConnector] = ProcConnector, timeouts: Timeouts = TIMEOUTS,
                 clock: Callable[[], float] = time.perf_counter) -> None:
        self._node_state, self._view = reconciler.node_state, reconciler.view
        self._counters = self._node_state.counters
        self._follow_up, self._lost = follow_up, lost
        self._placer = placer or NewbornPlacer(reconciler)
        self._connect, self._timeouts, self._clock = connect, timeouts, clock
        self._connector: ProcConnector | None = None
        self._state = "not opened yet"
        #: Ends `run` when the connector can no longer be read.
        self._broken: asyncio.Future[None]
        #: Events that were read but not handled yet, and whether the connector may have more.
        self._waiting: deque[Event] = deque()
        self._more = False
        #: The processes whose new threads and thread names the kernel reports; None while it reports those of all.
        self._followed: AbstractSet[int] | None = None
        #: When the last batch came if none of its events was of a followed process; otherwise 0.0.
        self._irrelevant_at = 0.0
        #: The scheduled full pass after lost events, and when the last one was requested (time.monotonic()).
        self._resync: asyncio.TimerHandle | None = None
        self._last_resync = 0.0
        self._warnings = log.LineLimit(1, _WARN_EVERY)
        #: Kernel threads without names yet; sandboxes whose new threads are in place and await confirmation.
        self._kernel_threads: set[int] = set()
        self._unconfirmed: set[SandboxId] = set()

    async def run(self) -> None:
        """Open the connector and handle its events until cancelled. :raises OSError: the connector can no longer be
        read."""
        connector = await self._open()
        loop = asyncio.get_running_loop()
        self._connector, self._broken = connector, loop.create_future()
        self._state = f"reported by the kernel{'' if connector.filtered else ', of all kinds'}"
        logger.info("proc connector open: new programs and threads are placed at once filtered=%s", connector.filtered)
        try:
            loop.add_reader(connector.fd, self._readable)
            self._lost()  # threads created before need a pass
            await self._broken
        finally:
            self._connector, self._followed = None, None
            self._waiting.clear()
            self._node_state.forks_reported(False)
            self._state = "no longer reported"
            loop.remove_reader(connector.fd)
            connector.close()
            if self._resync is not None:
                self._resync.cancel()
                self._resync = None

    async def _open(self) -> ProcConnector:
        """Open the connector; on failure retry at a fixed interval. Each reason is logged once. host.retry is not
        used: the kernel's reasons (capabilities, namespaces) rarely change, and a backoff relieves no peer."""
        while True:
            try:
                return await self._open_once()
            except SourceError as err:
                before, self._state = self._state, f"not reported: {err.why}"
                if self._state != before:
                    logger.warning("proc connector unavailable (%s): new threads are placed at the next resync",
                                   err.why)
            await asyncio.sleep(self._timeouts.connector_retry)

    async def _open_once(self) -> ProcConnector:
        """Open the connector in a thread, because this takes seconds if no event arrives. If cancelled, the connector
        is closed as soon as it is open. :raises SourceError: no events can be received."""
        executor = ThreadPoolExecutor(1, "proc-connector")
        opening = executor.submit(self._connect, self._view.proc)
        executor.shutdown(wait=False)
        try:
            return await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close)
            raise

    def after_pass(self, report: PassReport, everything: bool) -> None:
        """Update the feed after a pass. :param everything: whether the pass was over the whole node."""
        self._placer.after_pass(report, everything)
        if unread := self._follow_processes():
            self._follow_up(FollowUp(now=unread, relevant=True), time.perf_counter())

    def _follow_processes(self) -> set[SandboxId]:
        """Limit the kernel's reports of new threads and thread names to followed processes: each report wakes the
        loop, and any process can rename a thread 100,000 times a second. Shims are included from their exec on,
        because a library VMM may start in one.
        :returns: the sandboxes of newly followed processes. A pass must read the threads that they created before,
            and the names that these got."""
        followed = self._view.followed
        pids = followed.keys() | self._view.helper_pids | self._placer.early
        if self._connector is None or pids == self._followed:
            return set()
        new, self._followed = pids - (self._followed or set()), pids
        self._connector.follow(pids)
        sandboxes = set()
        for pid in new & followed.keys():
            vm, process = followed[pid]
            process.mark_outdated()
            sandboxes.add(vm.sandbox)
        return sandboxes

    @property
    def connected(self) -> bool:
        """Whether new threads are reported. After a loss of events `lost` requests a full pass."""
        return self._connector is not None

    def source_health(self) -> SourceHealth:
        return SourceHealth("new_threads", self.connected, False, self._state)

    def data(self) -> dict[str, object]:
        """Return the feed's counters for the status."""
        counters = self._counters
        return {"state": self._state, "events": dict(counters.proc_events), "overruns": counters.overruns}

    def _readable(self) -> None:
        """Handle a readable socket. During a storm of events the socket is polled instead."""
        now, began = time.perf_counter(), self._clock()
        count, relevant = self._handle(now)
        storm = now - self._irrelevant_at < self._calm() and count > 0 and not relevant
        self._irrelevant_at = 0.0 if relevant else now
        if self._connector is not None and (self._waiting or storm):
            asyncio.get_running_loop().remove_reader(self._connector.fd)
            self._poll_later(self._connector, relevant, self._clock() - began)

    def _calm(self) -> float:
        """Seconds between two batches of a storm."""
        times = self._timeouts
        return times.events_calm if self._followed or self._followed is None else times.events_lull

    def _poll_later(self, connector: ProcConnector, relevant: bool, took: float) -> None:
        """Schedule the next batch: at once if events of followed processes may be waiting, otherwise after a pause in
        proportion to the time that the last batch took. This limits the loop time that a storm of other events
        takes."""
        loop, rest = asyncio.get_running_loop(), 0.0 if relevant else self._timeouts.events_rest * took
        if not self._waiting and not self._more:
            rest = max(rest, self._calm())
        if rest:
            loop.call_later(rest, self._poll, connector)
        else:
            loop.call_soon(self._poll, connector)  # after the callbacks that are due now

    def _poll(self, connector: ProcConnector) -> None:
        """Handle a batch during a storm, or one that was left over because the time budget was used up."""
        if connector is not self._connector:
            return
        began = self._clock()
        count, relevant = self._handle(time.perf_counter())
        if self._waiting or (count and not relevant):
            self._poll_later(connector, relevant, self._clock() - began)
            return
        try:
            asyncio.get_running_loop().add_reader(connector.fd, self._readable)
        except OSError as err:  # ENOSPC: programs of the same user, as in a container, have all epoll watches
            if not self._broken.done():
                self._broken.set_exception(err)

    @log.operation()
    def _handle(self, since: float) -> tuple[int, bool]:
        """Handle events until the time budget of a turn is used up.
        :returns: the number of handled events, and whether any was of a followed process."""
        if self._connector is None:
            return 0, False
        lost = False
        if not self._waiting:
            try:
                lost = self._read(self._connector)
            except OSError as err:
                if not self._broken.done():
                    self._broken.set_exception(err)
                return 0, True
        before, relevant = len(self._waiting), False
        try:
            relevant = self._place(since)
        except Exception as err:
            self._waiting.clear()  # the full pass covers these, too
            self._failed(err)
        if lost:
            self._counters.overruns += 1
            self._resync_soon("proc connector lost events")
        return before - len(self._waiting), relevant

    def _read(self, connector: ProcConnector) -> bool:
        """Read a batch. :returns: whether events were lost. :raises OSError: the socket failed."""
        events, lost = connector.read(_BATCH)
        self._waiting.extend(events)
        self._more = len(events) == _BATCH
        counts = self._counters.proc_events
        for event in events:
            counts[_KINDS[type(event)]] += 1
        return lost

    def _place(self, since: float) -> bool:
        """Pass waiting events to the placer. :returns: whether any was of a followed process."""
        follow_up = self._placer.handle(self._within_budget())
        times = self._timeouts
        if follow_up.kernel_threads:
            self._pass_later(follow_up.kernel_threads, self._kernel_threads, times.kernel_named,
                             self._placer.place_kernel_threads, since)
        if unconfirmed := follow_up.soon - follow_up.now:
            self._pass_later(unconfirmed, self._unconfirmed, times.confirm_placed, set, since)
        if follow_up.processes_changed and (unread := self._follow_processes()):
            follow_up.now |= unread
            follow_up.relevant = True
        if follow_up.relevant:
            self._follow_up(follow_up, since)
        return follow_up.relevant

    def _within_budget(self) -> Iterator[Event]:
        """Yield waiting events within the time budget, at least one."""
        end = self._clock() + self._timeouts.events_turn
        while self._waiting:
            yield self._waiting.popleft()
            if self._clock() >= end:
                return

    def _failed(self, err: Exception) -> None:
        """Request a full pass after events could not be handled, for instance for lack of descriptors."""
        if self._connector is not None:
            self._resync_soon(f"proc connector's events cannot be handled: {err!r}")
        logger.debug("proc connector", exc_info=True)

    def _pass_later(self, new: set[T], waiting: set[T], delay: float, find: Callable[[set[T]], set[SandboxId]],
                    since: float) -> None:
        """Add `new` to `waiting`. `delay` seconds after the first addition, a pass over the sandboxes that `find`
        returns for the whole set is requested."""
        if not waiting:
            asyncio.get_running_loop().call_later(delay, self._pass, waiting, find, since)
        waiting |= new

    def _pass(self, waiting: set[T], find: Callable[[set[T]], set[SandboxId]], since: float) -> None:
        items = set(waiting)
        waiting.clear()
        if self._connector is None:
            return  # closed meanwhile: the next full pass covers it
        try:
            if sandboxes := find(items):
                self._follow_up(FollowUp(now=sandboxes, relevant=True), since)
        except Exception as err:
            self._failed(err)

    def _resync_soon(self, why: str) -> None:
        """Request a full pass, at most one per `events_lost` seconds."""
        self._node_state.forks_reported(False)  # until then the processes are listed, as without the connector
        if self._resync is None:
            wait = max(0.0, self._last_resync + self._timeouts.events_lost - time.monotonic())
            self._resync = asyncio.get_running_loop().call_later(wait, self._resync_now)
            logger.log(self._warnings.spend(logging.WARNING), "%s: a full pass follows", why)

    def _resync_now(self) -> None:
        self._resync, self._last_resync = None, time.monotonic()
        self._lost()


def _close(opening: Future[ProcConnector]) -> None:
    """Close a connector that is no longer wanted."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
