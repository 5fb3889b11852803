"""How much of what a guest says is listened to, and told on."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from vmpin.protocol.frames import MAX_FRAME, ProtocolError
from vmpin.protocol.parsing import MAX_NUMBER

logger = logging.getLogger(__name__)

#: The longest message that is read (bytes), and how much longer it may be for each container that was asked about: at
#: its worst 256 KiB hold the watcher up for 70 ms. An `applied` of 50 containers is 20 kB; with an error a container
#: takes less than 1 kB.
MAX_ANSWER, MAX_EACH = 256 << 10, 768
#: What a guest may say within WINDOW seconds, and what each question allows beside that. As much as that all the time
#: costs two hundredths of a CPU.
WINDOW, MAX_BYTES, MAX_MESSAGES = 60.0, 4 << 20, 600
ASKED_BYTES, ASKED_MESSAGES = 64 << 10, 4
#: How often within WINDOW a guest may have the map sent again. What it has sent allows it nothing.
MAX_RESENDS = 8


def longest_answer(containers: int) -> int:
    """The longest message (bytes) of a guest that was asked about so many containers."""
    return min(MAX_ANSWER + MAX_EACH * containers, MAX_FRAME)


class RateLimit:
    """Of one connection. `now` is any clock, in seconds."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._questions = self._more = self._bytes = self._messages = self._again = 0

    def asked(self, containers: int = 0) -> None:
        """A question was sent which the host has of itself, about so many containers."""
        self._questions += 1
        self._more += MAX_EACH * containers

    def again(self, generation: int = 0) -> None:
        """The guest would have the map once more, newer than this one. :raises ProtocolError: when it always would, or
        when no clock gives that."""
        if generation > MAX_NUMBER // 2:
            raise ProtocolError(f"it claims to have map {generation}")
        self._again += 1
        if self._again > MAX_RESENDS:
            raise ProtocolError(f"it wants the map again more than {MAX_RESENDS} times within {WINDOW:g} s")

    def heard(self, size: int, messages: int, now: float) -> None:
        """So many bytes came, in which so many messages ended. :raises ProtocolError: when it is too much."""
        if now - self._began > WINDOW:
            self._began = now
            self._questions = self._more = self._bytes = self._messages = self._again = 0
        self._bytes += size
        self._messages += messages
        if self._bytes > MAX_BYTES + ASKED_BYTES * self._questions + self._more or \
                self._messages > MAX_MESSAGES + ASKED_MESSAGES * self._questions:
            raise ProtocolError(f"it said more than {MAX_MESSAGES} messages, or {MAX_BYTES} bytes, within "
                                f"{WINDOW:g} s")


class LogOnce:
    """What was logged of a guest: each thing once, and not everything that it comes up with."""

    MOST = 16

    def __init__(self, sandbox: str) -> None:
        self._sandbox = sandbox
        self.texts: set[str] = set()

    def log(self, level: int, what: str, text: str) -> None:
        """At this level for the first time, and then at DEBUG."""
        if text in self.texts or len(self.texts) >= self.MOST:
            level = logging.DEBUG
        elif level > logging.DEBUG:
            self.texts.add(text)
        logger.log(level, "sandbox=%s %s: %s", self._sandbox, what, text)


def only_requested(wanted: Collection[str], message: Mapping[str, object]) -> Mapping[str, object]:
    """An `applied` without the containers nobody asked about: to parse all that a guest may name takes long."""
    containers = message.get("containers")
    if message.get("type") != "applied" or not isinstance(containers, dict):
        return message
    return {**message, "containers": {cid: each for cid, each in containers.items() if cid in wanted}}
