"""Pauses of the reporter's loops: a backoff, in a thread that can be ended and woken."""

from __future__ import annotations

import logging
import threading

from vmpin.errors import VmpinError
from vmpin.features.cluster.cluster_errors import ClusterError
from vmpin.host.retry import Backoff

logger = logging.getLogger(__name__)

#: The first and the longest pause after an error (seconds), varied at random: many nodes lose one server at once.
FIRST, LONGEST = 0.5, 30.0
#: A connection that lasted so long (seconds) makes the next pause the first one again.
LASTED = 5.0
#: The longest pause that an answer can ask for (Retry-After, seconds).
MAX_DELAY = 300.0


class Pauses:
    """The pauses of one loop. :param stopping: ends each pause."""

    def __init__(self, stopping: threading.Event, first: float = FIRST, longest: float = LONGEST) -> None:
        self._stopping = stopping
        self._backoff = Backoff(first, longest)

    def after(self, err: VmpinError, level: int = logging.WARNING) -> None:
        """Log the error, and wait: longer where the API server asks for it."""
        seconds = max(self._backoff.pause(), min(err.after if isinstance(err, ClusterError) else 0.0, MAX_DELAY))
        logger.log(level, "%s; tried again after %.1f s", err, seconds)
        self._stopping.wait(seconds)

    def lasted(self, seconds: float) -> None:
        """Begin with the first pause again if a connection lasted long enough."""
        if seconds >= LASTED:
            self.reset()

    def reset(self) -> None:
        self._backoff.reset()
