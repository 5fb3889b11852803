"""How often Events are written: as client-go limits a source (tools/record/events_cache.go), and the whole process.

An Event like one that exists raises its count. From the tenth text of a pod and reason on they become one, "combined
from similar events", until ten minutes pass without one. A pod has 25 at once and then one in 300 s, the process 100
at once and then one in 2 s. Pure: the clock is a parameter.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple, TypeVar

from vmpin.features.cluster.kube.transitions import PodNotice

K = TypeVar("K")
V = TypeVar("V")

SIMILAR, SIMILAR_SECONDS = 10, 600.0
POD_BURST, POD_SECONDS = 25, 300.0
PROCESS_BURST, PROCESS_SECONDS = 100, 2.0
#: Pods, reasons and texts that are remembered; the oldest is forgotten.
MEMORY = 4096
COMBINED = "(combined from similar events): "


class TokenBucket:
    """`burst` at once, then one each `seconds`. Times are of one steady clock."""

    __slots__ = ("_burst", "_left", "_seconds", "_since")

    def __init__(self, burst: int, seconds: float, now: float) -> None:
        self._burst, self._seconds = burst, seconds
        self._left, self._since = float(burst), now

    def take(self, now: float) -> bool:
        """Take a token. :returns: whether there was one."""
        self._left = min(float(self._burst), self._left + max(0.0, now - self._since) / self._seconds)
        self._since = max(self._since, now)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def wait(self, now: float) -> float:
        """Seconds until there is one."""
        return max(0.0, (1.0 - self._left) * self._seconds - max(0.0, now - self._since))


class Recorded(NamedTuple):
    """An Event to be written. `name` is the object's: one that is there already gets the new number."""

    event: PodNotice
    name: str
    times: int
    first: float  #: CLOCK_REALTIME of the first of these, seconds.


class _Similar(NamedTuple):
    messages: frozenset[str]
    since: float


class EventLimits:
    """Of one process. The names of its objects are unique by `prefix`, which differs between two processes."""

    def __init__(self, prefix: str, now: float) -> None:
        self._prefix = prefix
        self._made = 0
        self._process = TokenBucket(PROCESS_BURST, PROCESS_SECONDS, now)
        self._pods: OrderedDict[str, TokenBucket] = OrderedDict()
        self._similar: OrderedDict[tuple[str, str], _Similar] = OrderedDict()
        self._recorded: OrderedDict[tuple[str, str, str], Recorded] = OrderedDict()
        self.dropped = 0

    def admit(self, uid: str, pod: str, event: PodNotice, now: float, clock: float) -> Recorded | None:
        """Return what is to be written for an Event of a pod; None where it is over a limit.
        :param now: of a steady clock, :param clock: CLOCK_REALTIME; both in seconds."""
        text = self._merged(uid, event, now)
        bucket = self._pods.get(uid) or TokenBucket(POD_BURST, POD_SECONDS, now)
        _remember(self._pods, uid, bucket)
        if not bucket.take(now) or not self._process.take(now):
            self.dropped += 1
            return None
        key = uid, event.reason.value, text
        earlier = self._recorded.get(key)
        if earlier is None:
            self._made += 1
            # As client-go names them: the object, and what makes it another.
            earlier = Recorded(event, f"{pod[:200].rstrip('.-')}.{self._prefix}{self._made:x}", 0, clock)
        # Of combined ones the object shows the last.
        message = COMBINED + event.message if text == COMBINED else event.message
        found = earlier._replace(event=event._replace(message=message), times=earlier.times + 1)
        _remember(self._recorded, key, found)
        return found

    def refused(self, uid: str, recorded: Recorded) -> None:
        """The object is gone (Events expire): the next one like it is a new one."""
        for key in [key for key, earlier in self._recorded.items() if key[0] == uid and earlier.name == recorded.name]:
            del self._recorded[key]

    def _merged(self, uid: str, event: PodNotice, now: float) -> str:
        """The text by which Events are the same: that of an Event, or one for all similar ones."""
        key = uid, event.reason.value
        earlier = self._similar.get(key)
        if earlier is None or now - earlier.since > SIMILAR_SECONDS:
            earlier = _Similar(frozenset(), now)
        messages = earlier.messages | {event.message} if len(earlier.messages) < SIMILAR else earlier.messages
        _remember(self._similar, key, _Similar(messages, now))
        return COMBINED if len(messages) >= SIMILAR else event.message


def _remember(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > MEMORY:
        table.popitem(last=False)
