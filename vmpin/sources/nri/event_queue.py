"""The queue between the NRI plugin's thread and the event loop, bounded in number and bytes.

On overflow all events are dropped; the runtime lists all pods and containers again when the plugin reconnects.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from operator import itemgetter

from vmpin.domain.model import SandboxId
from vmpin.named_tuple import NamedTuple
from vmpin.sources.nri.nri_events import ContainerEvent, Disconnected, NriEvent, PodEvent, Synced, UndecodedCall

logger = logging.getLogger(__name__)

#: The most events, and about the most bytes of the runtime's data. A thousand updates a second are a lot.
MAX_WAITING, MAX_WAITING_BYTES = 16384, 64 << 20
#: For so long (s) an event that can wait does so: a runtime reports a pod's start, and its end, in bursts of some
#: 200 ms.
PATIENCE = 0.25


class NriBatch(NamedTuple):
    """Events in order, and the time at which each was put (time.perf_counter). `waited`: each of them could wait.
    `lost`: whether a call could not be decoded, for a fault of vmpin's."""

    events: list[NriEvent]
    times: list[float]
    waited: bool
    lost: bool = False


class _Waiting(NamedTuple):
    at: float  #: time.perf_counter
    size: int
    can_wait: bool
    event: NriEvent | UndecodedCall


class NriQueue:
    """First in, first out; one thread puts, and then announces, another takes.
    :param arrived: called by `announce`, in its thread; it must not block."""

    def __init__(self, arrived: Callable[[], object] = lambda: None, max_waiting: int = MAX_WAITING,
                 max_bytes: int = MAX_WAITING_BYTES) -> None:
        self._arrived = arrived
        self._due: float | None = None  #: When `arrived` is to be called (time.perf_counter); None: nothing waits.
        self._max_waiting, self._max_bytes = max_waiting, max_bytes
        self._lock = threading.Lock()
        self._events: deque[_Waiting] = deque()
        self._size = 0
        self._closed = False

    def put(self, event: NriEvent | UndecodedCall, size: int = 0, waits: bool = False) -> bool:
        """Append an event. :param size: of the runtime's data that it is made of (bytes).
        :param waits: whether it needs no call for `PATIENCE`.
        :returns: False on overflow: all events are then dropped except `Disconnected`, which the runtime's list does
        not repeat."""
        now = time.perf_counter()
        with self._lock:
            if self._closed:
                return True
            due = now + PATIENCE if waits and 8 * (self._size + size) < self._max_bytes else now
            self._due = due if self._due is None else min(due, self._due)
            fits = isinstance(event, Disconnected) or (
                len(self._events) < self._max_waiting and self._size + size <= self._max_bytes)
            if fits:
                self._events.append(_Waiting(now, size, waits, event))
                self._size += size
            else:
                self._events = deque(item for item in self._events if isinstance(item.event, Disconnected))
                self._size = 0
        return fits

    def announce(self) -> float | None:
        """Call `arrived` if that is due: once for all events that were put. :returns: the seconds until it is due;
        None while nothing waits for that."""
        with self._lock:
            if self._due is None or (pause := self._due - time.perf_counter()) <= 0:
                due, self._due = self._due, None
            else:
                return pause
        if due is not None:
            self._arrived()
        return None

    def take(self, until: float = math.inf) -> NriBatch:
        """Remove and return the events that were put at `until` or before, those of calls decoded."""
        taken = []
        with self._lock:
            while self._events and self._events[0].at <= until:
                taken.append(self._events.popleft())
                self._size -= taken[-1].size
            if not self._events:
                self._due = None
        events, times, waited, lost = [], [], True, False
        for put, _, waits, event in taken:
            try:
                decoded = event.event() if isinstance(event, UndecodedCall) else event
            except Exception:  # a bug must not lose the others
                logger.exception("nri: unexpected error; everything is listed again")
                decoded, lost = None, True
            if decoded is not None:
                events.append(decoded)
                times.append(put)
                waited = waited and waits
        return NriBatch(events, times, waited, lost)

    def sandboxes(self) -> set[SandboxId]:
        """The sandboxes of the events that have not been taken, without those that can wait: these move no CPUs. Of a
        list, all its sandboxes."""
        with self._lock:
            return {sandbox for item in self._events if not item.can_wait for sandbox in _sandboxes(item.event)}

    def close(self) -> None:
        """Drop all events, and every later one."""
        with self._lock:
            self._closed = True
            self._events.clear()


def merged(queues: Iterable[NriQueue]) -> NriBatch:
    """Remove and return the events of several queues in order of time, so that the list of one plugin is not applied
    after a newer event of another."""
    until = time.perf_counter()
    batches = [queue.take(until) for queue in queues]
    if len(batches) == 1:
        return batches[0]
    timed = sorted(chain.from_iterable(zip(batch.events, batch.times, strict=True) for batch in batches),
                   key=itemgetter(1))
    return NriBatch([event for event, _ in timed], [put for _, put in timed], all(batch.waited for batch in batches),
                    any(batch.lost for batch in batches))


def _sandboxes(event: NriEvent | UndecodedCall) -> Iterable[SandboxId]:
    match event:
        case Synced():
            return [pod.id for pod in event.pods]
        case PodEvent():
            return [event.pod.id]
        case ContainerEvent():
            return [event.container.pod]
        case UndecodedCall():
            return [event.sandbox]
    return ()
