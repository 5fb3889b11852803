"""How much of what a guest says is listened to, and told on."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from vmpin.guestproto import ProtocolError

#: The longest message that is read (bytes): at its worst it holds the watcher up for 70 ms. An `applied` of 50
#: containers is 20 kB.
MAX_ANSWER = 256 << 10
#: What a guest may say within WINDOW seconds, and what each question allows beside that. As much as that all the time
#: costs two hundredths of a CPU.
WINDOW, MAX_BYTES, MAX_MESSAGES = 60.0, 4 << 20, 600
ASKED_BYTES, ASKED_MESSAGES = 64 << 10, 4


class Allowance:
    """Of one connection. `now` is any clock, in seconds."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._questions = self._bytes = self._messages = 0

    def asked(self) -> None:
        """A question was sent."""
        self._questions += 1

    def heard(self, size: int, messages: int, now: float) -> None:
        """So many bytes came, in which so many messages ended. :raises ProtocolError: when it is too much."""
        if now - self._began > WINDOW:
            self._began, self._questions, self._bytes, self._messages = now, 0, 0, 0
        self._bytes += size
        self._messages += messages
        if self._bytes > MAX_BYTES + ASKED_BYTES * self._questions or \
                self._messages > MAX_MESSAGES + ASKED_MESSAGES * self._questions:
            raise ProtocolError(f"it said more than {MAX_MESSAGES} messages, or {MAX_BYTES} bytes, within "
                                f"{WINDOW:g} s")


class Told:
    """What was logged of a guest: each thing once, and not everything that it comes up with."""

    MOST = 16

    def __init__(self) -> None:
        self.texts: set[str] = set()

    def level(self, level: int, text: str) -> int:
        """At which level it is to be logged now."""
        if text in self.texts or len(self.texts) >= self.MOST:
            return logging.DEBUG
        self.texts.add(text)
        return level


def only(wanted: Collection[str], message: Mapping[str, object]) -> Mapping[str, object]:
    """An `applied` without the containers nobody asked about: to parse all that a guest may name takes long."""
    containers = message.get("containers")
    if message.get("type") != "applied" or not isinstance(containers, dict):
        return message
    return {**message, "containers": {cid: each for cid, each in containers.items() if cid in wanted}}
