"""Hears of births: the kernel's proc connector, in the watcher's loop.

What stays out: the connector itself (host/proc_connector), and what an event leads to (placer).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from vmpin import log
from vmpin.domain.model import SandboxId
from vmpin.errors import SourceError
from vmpin.host.proc_connector import ProcConnector
from vmpin.procevents.newborn_placer import FollowUp, NewbornPlacer
from vmpin.reconcile.reconciler import PassReport, Reconciler
from vmpin.status.health import SourceHealth
from vmpin.wire.proc_events import Ack, Comm, Event, Exec, Exit, Fork

logger = logging.getLogger(__name__)

#: Where what comes is nobody's, and comes more often than this (seconds), the loop wakes for it so often alone: a wake
#: costs ten times what an event does. So much later the birth of a thread of ours may be seen in a storm of others.
CALM = 0.002
#: A new kernel thread has its name after microseconds; nobody tells when.
_NAMED = 0.01
_KINDS: dict[type, str] = {Fork: "fork", Exec: "exec", Comm: "comm", Exit: "exit", Ack: "ack"}
#: So much later (seconds) a pass says what has been done ahead of it: a VM names its vCPUs one after the other, and
#: none of them is to wait for the pass over the one before.
_DONE = 0.002
#: Events read in one go.
_BATCH = 512
#: Seconds for which other work of the loop (a hook's message, a question of the command line) waits for events: those
#: that are left then are taken after it.
BUDGET = 0.002
#: Events lost again and again in a storm: everything is read again, but not without a pause (seconds).
_PAUSE = 1.0
#: Where the kernel does not tell it is asked again after so many seconds: it may have had no memory for it.
_AGAIN = 300.0


class ProcEventsFeed:
    """From the kernel to the reconciler.

    :param touched: called in the loop with what is left to do, and when it came in (time.perf_counter()).
    :param lost: called in the loop when events were lost, or may have been: everything is to be read again.
    :param clock: what the time for a batch of events is measured by.
    """

    def __init__(self, reconciler: Reconciler, touched: Callable[[FollowUp, float], None],
                 lost: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self._reconciler = reconciler
        self._tally = reconciler.tally
        self._touched = touched
        self._lost = lost
        self._clock = clock
        self._placer = NewbornPlacer(reconciler)
        #: Events that were read and not taken yet, and whether there may be more of them to be read.
        self._waiting: deque[Event] = deque()
        self._more = False
        self._connector: ProcConnector | None = None
        #: Ends `run` when nothing can be read any more.
        self._broken: asyncio.Future[None]
        self._state = "not asked yet"
        self._dull = 0.0
        self._resync: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._kernel: set[int] = set()
        self._done: set[SandboxId] = set()

    async def run(self) -> None:
        """Until cancelled, or nothing can be read any more."""
        connector = await self._told()
        loop = asyncio.get_running_loop()
        self._connector, self._broken = connector, loop.create_future()
        self._state = f"told by the kernel{'' if connector.filtered else ', of all kinds'}"
        logger.info("births are told by the kernel filtered=%s", connector.filtered)
        loop.add_reader(connector.fd, self._read)
        self._lost()  # what was born before
        try:
            await self._broken
        finally:
            self._connector = None
            self._waiting.clear()
            self._reconciler.births_reported(False)
            self._state = "no more told"
            loop.remove_reader(connector.fd)
            connector.close()
            if self._resync is not None:
                self._resync.cancel()
                self._resync = None

    async def _told(self) -> ProcConnector:
        """Ask until the kernel tells; why it does not is said once."""
        while True:
            try:
                return await self._connected()
            except SourceError as err:
                before, self._state = self._state, f"not told: {err.why}"
                if self._state != before:
                    logger.warning("births are not told, and new threads found at a resync: %s", err)
            await asyncio.sleep(_AGAIN)

    async def _connected(self) -> ProcConnector:
        """Away from the loop: it takes seconds where nothing is heard. Whoever is cancelled meanwhile does not leave a
        listener behind."""
        executor = ThreadPoolExecutor(1, "births")
        coming = executor.submit(ProcConnector, self._reconciler.view.proc)
        executor.shutdown(wait=False)
        try:
            return await asyncio.wrap_future(coming)
        except asyncio.CancelledError:
            coming.add_done_callback(_let_go)
            raise

    def passed(self, report: PassReport, everything: bool) -> None:
        """Wants to be told of every pass."""
        self._placer.passed(report, everything)

    @property
    def telling(self) -> bool:
        """Whether every birth is told of. Those that were lost are made good by `lost`."""
        return self._connector is not None

    def source_health(self) -> SourceHealth:
        return SourceHealth("births", self.telling, False, self._state)

    def data(self) -> dict[str, object]:
        """For the status."""
        tally = self._tally
        return {"state": self._state, "events": dict(tally.proc_events), "overruns": tally.overruns}

    def _read(self) -> None:
        """Something came."""
        since = time.perf_counter()
        count, ours = self._take(since)
        calm, self._dull = since - self._dull < CALM, 0.0 if ours else since
        if self._connector is not None and (self._waiting or (calm and count and not ours)):
            asyncio.get_running_loop().remove_reader(self._connector.fd)
            self._look_later(self._connector)

    def _look(self, connector: ProcConnector) -> None:
        """In a storm: of processes that are not followed, or of more events than there was time for."""
        if connector is not self._connector:
            return
        count, ours = self._take(time.perf_counter())
        if self._waiting or (count and not ours):
            self._look_later(connector)
        else:
            asyncio.get_running_loop().add_reader(connector.fd, self._read)

    def _look_later(self, connector: ProcConnector) -> None:
        loop = asyncio.get_running_loop()
        if self._waiting or self._more:
            loop.call_soon(self._look, connector)  # after all that is due now
        else:
            loop.call_later(CALM, self._look, connector)

    @log.operation()
    def _take(self, since: float) -> tuple[int, bool]:
        """:returns: how many events were taken, and whether any was of a process that is followed."""
        if self._connector is None:
            return 0, False
        tally, lost = self._tally, False
        if not self._waiting:
            try:
                events, lost = self._connector.read(_BATCH)
            except OSError as err:
                if not self._broken.done():
                    self._broken.set_exception(err)
                return 0, True
            self._waiting.extend(events)
            self._more = len(events) == _BATCH
            for event in events:
                tally.proc_events[_KINDS[type(event)]] += 1
        before, ours = len(self._waiting), False
        try:
            touched = self._placer.take(self._in_time())
            self._kernel_threads(touched.kernel, since)
            self._pass_later(touched.done - touched.reconcile, since)
            if touched.ours:
                self._touched(touched, since)
                ours = True
        except Exception as err:
            self._waiting.clear()  # they are made good by looking, too
            self._unusable(err)
        if lost:
            tally.overruns += 1
            self._resync_soon("events of the kernel were lost")
        return before - len(self._waiting), ours

    def _in_time(self) -> Iterator[Event]:
        """Events, as long as there is time for them: one at least."""
        end = self._clock() + BUDGET
        while self._waiting:
            yield self._waiting.popleft()
            if self._clock() >= end:
                return

    def _unusable(self, err: Exception) -> None:
        """Out of descriptors, as it may be: what was not done then is found by looking."""
        if self._connector is not None:
            self._resync_soon(f"events of the kernel could not be used: {err!r}")
        logger.debug("births", exc_info=True)

    def _kernel_threads(self, pids: set[int], since: float) -> None:
        if pids and not self._kernel:
            asyncio.get_running_loop().call_later(_NAMED, self._name, since)
        self._kernel |= pids

    def _pass_later(self, sandboxes: set[SandboxId], since: float) -> None:
        if sandboxes and not self._done:
            asyncio.get_running_loop().call_later(_DONE, self._pass, since)
        self._done |= sandboxes

    def _pass(self, since: float) -> None:
        done, self._done = self._done, set()
        self._settle(lambda: done, since)

    def _settle(self, found: Callable[[], set[SandboxId]], since: float) -> None:
        if self._connector is None:
            return  # it has stopped: what is left is a resync's, or nobody's
        try:
            if reconcile := found():
                self._touched(FollowUp(reconcile=reconcile, ours=True), since)
        except Exception as err:
            self._unusable(err)

    def _resync_soon(self, why: str) -> None:
        """At once, and in a storm with a pause."""
        if self._resync is None:
            now = time.monotonic()
            self._resync = asyncio.get_running_loop().call_later(max(0.0, self._last + _PAUSE - now), self._lost_some)
            logger.warning("%s: everything is read again", why)

    def _lost_some(self) -> None:
        self._resync, self._last = None, time.monotonic()
        self._lost()

    def _name(self, since: float) -> None:
        pids, self._kernel = self._kernel, set()
        self._settle(lambda: self._placer.name(pids), since)


def _let_go(coming: Future[ProcConnector]) -> None:
    """Close what nobody waits for any more."""
    if not coming.cancelled() and coming.exception() is None:
        coming.result().close()
