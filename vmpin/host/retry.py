"""Pauses between connections to a peer over a socket or a network. Not for waiting for files or the next resync."""

from __future__ import annotations

import random

#: The fraction by which each pause varies at random, so that many peers are not tried at the same moment.
JITTER = 0.25


class Backoff:
    """Pauses between attempts at one peer: each is twice as long as the one before, varied by the fraction JITTER.
    :param first: the first pause in seconds. :param last: the longest pause in seconds."""

    def __init__(self, first: float, last: float) -> None:
        self._first, self._last = first, last
        self._attempt = 0  #: The number of failed ones.

    def pause(self) -> float:
        """Count one failed attempt. :returns: how long to wait before the next one, in seconds."""
        seconds = min(self._first * 2.0 ** min(self._attempt, 64), self._last)
        self._attempt += 1
        return mirrored(seconds * random.uniform(1 - JITTER, 1 + JITTER), self._last)

    def reset(self) -> None:
        """Start again with the first pause, after a connection that lasted."""
        self._attempt = 0


def mirrored(seconds: float, last: float) -> float:
    """A varied pause; one that exceeds the longest pause is as much shorter than that."""
    return seconds if seconds <= last else 2 * last - seconds
