"""Limits on what one guest may send, on the time that its messages take, and on what is logged of it."""

import logging
import time
from collections.abc import Callable, Collection, Mapping

from vmpin.protocol.frames import MAX_FRAME, ProtocolError
from vmpin.protocol.parsing import MAX_NUMBER

logger = logging.getLogger(__name__)

#: The longest message that is read (bytes), and the addition for each container asked about. 256 KiB delay the watcher
#: by 20 ms at worst. An `applied` of 50 containers is 20 kB; with an error a container takes less than 1 kB.
MAX_ANSWER, MAX_PER_CONTAINER = 256 << 10, 768
#: What a guest may send within WINDOW seconds, and the addition for each request.
WINDOW, MAX_BYTES, MAX_MESSAGES = 60.0, 4 << 20, 600
REQUEST_BYTES, REQUEST_MESSAGES = 64 << 10, 4
#: How often within WINDOW a guest may ask for the map again. Such a request does not raise its limits.
MAX_RESENDS = 8


def longest_answer(containers: int) -> int:
    """The longest message (bytes) of a guest that was asked about this many containers."""
    return min(MAX_ANSWER + MAX_PER_CONTAINER * containers, MAX_FRAME)


class RateLimit:
    """What one connection has sent in the current window. Times are of any one clock, in seconds."""

    def __init__(self, now: float) -> None:
        self._began = now
        #: Requests sent, and bytes added for their containers.
        self.requests = self._added = 0
        self._bytes = self._messages = self._resends = 0

    def add_request(self, containers: int = 0) -> None:
        """Raise the limits by one request of the host's own, about this many containers."""
        self.requests += 1
        self._added += MAX_PER_CONTAINER * containers

    def add_resend(self, generation: int = 0) -> None:
        """Count a request for a newer map. :raises ProtocolError: too many, or no clock gives such a generation."""
        if generation > MAX_NUMBER // 2:
            raise ProtocolError(f"it claims to have map {generation}")
        self._resends += 1
        if self._resends > MAX_RESENDS:
            raise ProtocolError(f"it requested the map more than {MAX_RESENDS} times within {WINDOW:g} s")

    def add_received(self, size: int, messages: int, now: float) -> None:
        """Count this many bytes, and the messages that end in them. :raises ProtocolError: there were too many."""
        if now - self._began > WINDOW:
            self._began = now
            self.requests = self._added = self._bytes = self._messages = self._resends = 0
        self._bytes += size
        self._messages += messages
        if self._bytes > MAX_BYTES + REQUEST_BYTES * self.requests + self._added or \
                self._messages > MAX_MESSAGES + REQUEST_MESSAGES * self.requests:
            raise ProtocolError(f"it sent more than {MAX_MESSAGES} messages, or {MAX_BYTES} bytes, within "
                                f"{WINDOW:g} s")


#: The part of a CPU that parsing one guest's messages takes at most, whatever it sends: with its connections, a guest
#: that floods costs two hundredths. An answer about 50 containers takes 2 ms.
SHARE = 0.01
#: What a guest may use at once before it waits (seconds of CPU), and within one turn of the loop.
BURST, TURN = 0.1, 0.002


class TimeBudget:
    """What parsing one guest's messages may cost: SHARE of a CPU on the average. It outlasts a connection.
    :param now: a steady clock. :param used: this thread's CPU time. Both in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic,
                 used: Callable[[], float] = time.thread_time) -> None:
        self._now, self._used = now, used
        self._begun = 0.0
        #: When all that was used is paid off.
        self._due = 0.0

    def begin(self) -> None:
        """Begin a turn."""
        self._begun = self._used()

    def is_over(self) -> bool:
        """Whether the turn is to end, for the loop's other work."""
        return self._used() - self._begun >= TURN

    def end(self) -> float:
        """End a turn. :returns: for how long nothing more may be read of this guest (seconds, 0.0 as a rule)."""
        now = self._now()
        self._due = max(self._due, now) + (self._used() - self._begun) / SHARE
        return max(0.0, self._due - now - BURST / SHARE)


class LogOnce:
    """Logs each text of one guest once, and at most MOST different ones: a guest must not fill the log."""

    MOST = 16

    def __init__(self, sandbox: str) -> None:
        self._sandbox = sandbox
        self.texts: set[str] = set()

    def log(self, level: int, subject: str, text: str) -> None:
        """Log at this level the first time, and at DEBUG from then on."""
        if text in self.texts or len(self.texts) >= self.MOST:
            level = logging.DEBUG
        elif level > logging.DEBUG:
            self.texts.add(text)
        logger.log(level, "%s sandbox=%s: %s", subject, self._sandbox, text)


def only_used(wanted: Collection[str], message: Mapping[str, object]) -> Mapping[str, object]:
    """An `applied` message cut to the containers that were asked about: parsing all that a guest may name is slow."""
    containers = message.get("containers")
    if message.get("type") != "applied" or not isinstance(containers, dict):
        return message
    return {**message, "containers": {cid: report for cid, report in containers.items() if cid in wanted}}
