"""What a piece of Python costs, in a unit that is the same on a slow machine and on a busy one.

CPU time of this thread alone, so that what other programs take does not count, as a multiple of what a fixed piece of
work takes just before and after. How long something takes in seconds is the bench's to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def _work() -> int:
    found: dict[str, int] = {}
    for number in range(40_000):
        key = str(number & 1023)
        found[key] = found.get(key, 0) + number
    return len(found)


def unit() -> float:
    """Seconds of CPU time that the fixed piece of work takes now: about 5 ms on a machine of 2024."""
    return min(_cpu_time(_work) for _ in range(5))


def effort(do: Callable[[], object], times: int = 3) -> float:
    """CPU time of `do` in units, the least of several times."""
    before = unit()
    took = min(_cpu_time(do) for _ in range(times))
    return took / max(before, unit())


def _cpu_time(do: Callable[[], object]) -> float:
    began = time.thread_time()
    do()
    return time.thread_time() - began
