"""Events of pods: which change of a pod's state is one, how often they are written, and their objects in the core API.

A pod's first good state is an Event, each change between states that last, a new reason while it is degraded, and
threads that were put back. They are limited as client-go limits a source (tools/record/events_cache.go), and for the
whole process: an Event like one that exists raises its count; from the tenth text of a pod and reason on they become
one, "combined from similar events", until ten minutes pass without one; a pod has 25 at once and then one in 300 s,
the process 100 at once and then one in 2 s."""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import TypeVar

from vmpin.domain.terminal import number_of
from vmpin.features.cluster.kube.api_request import MERGE_PATCH, ApiRequest, checked
from vmpin.features.cluster.kube.identifiers import MANAGER
from vmpin.features.cluster.kube.pod_pinning import PinState, PodPinning, timestamp
from vmpin.features.cluster.kube.pod_record import PodRecord
from vmpin.features.cluster.kube.reported_node import Repairs
from vmpin.named_tuple import NamedTuple

K = TypeVar("K")
V = TypeVar("V")

SIMILAR, SIMILAR_SECONDS = 10, 600.0
POD_BURST, POD_SECONDS = 25, 300.0
PROCESS_BURST, PROCESS_SECONDS = 100, 2.0
#: Pods, reasons and texts that are remembered; the oldest is forgotten.
MEMORY = 4096
#: As the API server limits it (api core validation): 1,024 bytes.
MAX_MESSAGE = 1024
COMBINED = "(combined from similar events): "
#: Seconds between two Events of a pod about threads that were put back; their numbers are added up.
DRIFT_PAUSE = 600.0


class EventReason(enum.StrEnum):
    PINNED = "Pinned"
    DEGRADED = "PinningDegraded"
    RESTORED = "PinRestored"
    COLLISION = "CPUCollision"
    SUSPENDED = "PinningSuspended"
    UNPINNED = "Unpinned"
    REFUSED = "CPUsRefused"  #: A changed annotation; at a creation the kubelet has an Event of its own.

    @property
    def type(self) -> str:
        return "Normal" if self in (self.PINNED, self.RESTORED, self.SUSPENDED) else "Warning"


class PodNotice(NamedTuple):
    reason: EventReason
    message: str


_WORSE = {PinState.DEGRADED: EventReason.DEGRADED, PinState.COLLISION: EventReason.COLLISION,
          PinState.SUSPENDED: EventReason.SUSPENDED, PinState.UNMANAGED: EventReason.UNPINNED,
          PinState.OFF: EventReason.UNPINNED}


def transition(before: PodPinning | None, now: PodPinning) -> PodNotice | None:
    """Return the Event for a change of a pod's state; None where it is worth none.
    :param before: the last state that may last; None for a pod that had none yet."""
    state = now.state
    if not state.lasting:
        return None
    if before is not None and before.state is state:
        # A collision's text has numbers of threads, which change all the time.
        changed = state is PinState.DEGRADED and before.message != now.message
        return PodNotice(EventReason.DEGRADED, now.message) if changed else None
    if state.good:
        if before is None or before.state.good:
            return PodNotice(EventReason.PINNED, now.message)
        return PodNotice(EventReason.RESTORED, f"{now.message} (before: {before.state.value})")
    reason = _WORSE[state]
    if before is None and reason is EventReason.UNPINNED:
        return None  # it never was
    return PodNotice(reason, now.message)


class DriftReports:
    """Threads that were put back, of all pods: an Event for each pod in ten minutes, with their number. Times are a
    steady clock's, in seconds."""

    def __init__(self) -> None:
        #: By pod uid: the counts that were reported, or the first ones, and when they were reported.
        self._reported: dict[str, tuple[Repairs, float]] = {}

    def event(self, uid: str, repairs: Repairs, now: float) -> PodNotice | None:
        """The Event that is due for a pod, which then counts as reported."""
        counted, last = self._reported.get(uid, (None, float("-inf")))
        if counted is None or repairs.total < counted.total:  # a new pod, or its watcher was started again
            self._reported[uid] = repairs, last
            return None
        new = repairs.total - counted.total
        if not new or now - last < DRIFT_PAUSE:
            return None
        self._reported[uid] = repairs, now
        causes = [cause for cause, count in repairs.counts.items() if count > counted.counts.get(cause, 0)]
        return PodNotice(EventReason.RESTORED, f"{number_of(new, 'time')} a thread was found on other CPUs and put "
                        f"back ({', '.join(causes)}; the last time: {repairs.why})")

    def due(self, now: float) -> float | None:
        """Return when the first of the pods in their DRIFT_PAUSE may be reported again; None without such a pod."""
        ends = [last + DRIFT_PAUSE for _, last in self._reported.values() if last + DRIFT_PAUSE > now]
        return min(ends, default=None)

    def keep_only(self, uids: set[str]) -> None:
        self._reported = {uid: counts for uid, counts in self._reported.items() if uid in uids}


class TokenBucket:
    """`burst` tokens at once, then one every `seconds`. Times are a steady clock's."""

    __slots__ = ("_burst", "_left", "_seconds", "_since")

    def __init__(self, burst: int, seconds: float, now: float) -> None:
        self._burst, self._seconds = burst, seconds
        self._left, self._since = float(burst), now

    def take(self, now: float) -> bool:
        """Take a token. :returns: False without one."""
        self._left = min(float(self._burst), self._left + max(0.0, now - self._since) / self._seconds)
        self._since = max(self._since, now)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def wait(self, now: float) -> float:
        """Seconds until the next token."""
        return max(0.0, (1.0 - self._left) * self._seconds - max(0.0, now - self._since))


class RecordedEvent(NamedTuple):
    """An Event to be written. `name` is the object's, which gets `times` as its count."""

    notice: PodNotice
    name: str
    times: int
    first: float  #: CLOCK_REALTIME of the first of these, seconds.


class _Similar(NamedTuple):
    messages: frozenset[str]
    since: float


class EventLimits:
    """The limits of one process. :param prefix: makes names of its objects unique: it differs between processes."""

    def __init__(self, prefix: str, now: float) -> None:
        self._prefix = prefix
        self._names = 0  #: How many objects were named.
        self._process = TokenBucket(PROCESS_BURST, PROCESS_SECONDS, now)
        self._pods: OrderedDict[str, TokenBucket] = OrderedDict()
        self._similar: OrderedDict[tuple[str, str], _Similar] = OrderedDict()
        self._recorded: OrderedDict[tuple[str, str, str], RecordedEvent] = OrderedDict()

    def admit(self, uid: str, pod: str, notice: PodNotice, now: float, clock: float) -> RecordedEvent | None:
        """Return the object for an Event of a pod; None where it is over a limit.
        :param now: a steady clock's time, :param clock: CLOCK_REALTIME; both in seconds."""
        text = self._merged(uid, notice, now)
        bucket = self._pods.get(uid) or TokenBucket(POD_BURST, POD_SECONDS, now)
        _remember(self._pods, uid, bucket)
        if not bucket.take(now) or not self._process.take(now):
            return None
        key = uid, notice.reason.value, text
        earlier = self._recorded.get(key)
        if earlier is None:
            self._names += 1
            # As client-go names them: the object's name, and a unique suffix.
            earlier = RecordedEvent(notice, f"{pod[:200].rstrip('.-')}.{self._prefix}{self._names:x}", 0, clock)
        # The object of combined Events shows the last one's text.
        message = COMBINED + notice.message if text == COMBINED else notice.message
        recorded = earlier._replace(notice=notice._replace(message=message), times=earlier.times + 1)
        _remember(self._recorded, key, recorded)
        return recorded

    def refused(self, uid: str, recorded: RecordedEvent) -> None:
        """Forget an object that is gone (Events expire): the next Event like it is created."""
        for key in [key for key, earlier in self._recorded.items() if key[0] == uid and earlier.name == recorded.name]:
            del self._recorded[key]

    def _merged(self, uid: str, notice: PodNotice, now: float) -> str:
        """The text that equal Events share: the Event's own, or COMBINED for all similar ones."""
        key = uid, notice.reason.value
        earlier = self._similar.get(key)
        if earlier is None or now - earlier.since > SIMILAR_SECONDS:
            earlier = _Similar(frozenset(), now)
        messages = earlier.messages | {notice.message} if len(earlier.messages) < SIMILAR else earlier.messages
        _remember(self._similar, key, _Similar(messages, now))
        return COMBINED if len(messages) >= SIMILAR else notice.message


def _remember(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > MEMORY:
        table.popitem(last=False)


def event_request(pod: PodRecord, recorded: RecordedEvent, node: str, clock: float, create: bool) -> ApiRequest:
    """Create the object, or without `create` raise the count of the existing one. :param clock: CLOCK_REALTIME (s)."""
    path = f"/api/v1/namespaces/{checked(pod.namespace)}/events"
    message, last = _cut(recorded.notice.message), timestamp(clock)
    if not create:
        return ApiRequest("PATCH", f"{path}/{checked(recorded.name)}",
                          {"count": recorded.times, "lastTimestamp": last, "message": message}, MERGE_PATCH)
    return ApiRequest("POST", path, {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": checked(recorded.name), "namespace": pod.namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name,
                           "uid": pod.uid},
        "reason": recorded.notice.reason.value, "message": message, "type": recorded.notice.reason.type,
        "source": {"component": MANAGER, "host": checked(node)}, "reportingComponent": f"vmpin.io/{MANAGER}",
        "reportingInstance": node, "firstTimestamp": timestamp(recorded.first), "lastTimestamp": last,
        "count": recorded.times})


def _cut(text: str) -> str:
    raw = text.encode()
    return text if len(raw) <= MAX_MESSAGE else raw[:MAX_MESSAGE - 3].decode("utf-8", "ignore") + "…"
