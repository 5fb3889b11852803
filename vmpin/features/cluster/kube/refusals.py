"""When a request that was forbidden, or whose resource is not there, is tried again: at first soon, as an API server
that has just been started forbids everything until it has read its roles."""

from __future__ import annotations

#: The first pause, doubled each time, and the longest (seconds).
FIRST, LONGEST = 2.0, 300.0


class Refusals:
    """The refusals of one kind of request, one after the other, in `count`."""

    def __init__(self) -> None:
        self.count = 0

    def pause(self) -> float:
        """Count one. :returns: seconds until the next try."""
        self.count += 1
        return min(FIRST * 2.0 ** min(self.count - 1, 10), LONGEST)

    @property
    def lasting(self) -> bool:
        return FIRST * 2.0 ** min(self.count, 10) > LONGEST
