"""Pauses of the reporter's loops: tenacity's backoff, in a thread that can be ended and woken."""

from __future__ import annotations

import threading

from vmpin.errors import ClusterError, VmpinError
from vmpin.host.retry import Backoff

#: The first and the longest pause after an error (seconds), varied at random: many nodes lose one server at once.
FIRST, LONGEST = 0.5, 30.0
#: A connection that lasted so long (seconds) makes the next pause the first one again.
LASTED = 30.0


class Pauses:
    """Of one loop. :param stopping: ends each pause."""

    def __init__(self, stopping: threading.Event, first: float = FIRST, longest: float = LONGEST) -> None:
        self._stopping = stopping
        self._backoff = Backoff(first, longest)

    def after(self, err: VmpinError) -> float:
        """Wait. :returns: how long, in seconds: longer where the API server asks for it."""
        seconds = max(self._backoff.pause(), err.after if isinstance(err, ClusterError) else 0.0)
        self._stopping.wait(min(seconds, 300.0))
        return seconds

    def lasted(self, seconds: float) -> None:
        """A connection was well for so long."""
        if seconds >= LASTED:
            self._backoff.reset()

    def reset(self) -> None:
        self._backoff.reset()
