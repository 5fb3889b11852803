"""The system calls that a piece of vmpin makes, counted by the names of Python's functions for them. A count is the
same on a slow machine and on a busy one."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

#: Modules whose functions are system calls, or a few of them.
_MODULES = ("posix", "_io", "_socket")


def system_calls(do: Callable[[], object]) -> Counter[str]:
    """How often `do` calls each function of the modules, in this thread. Garbage, which may be another test's child
    or temporary directory, is not collected meanwhile."""
    calls: Counter[str] = Counter()

    def count(_: FrameType, event: str, function: object) -> None:
        if event == "c_call" and getattr(function, "__module__", None) in _MODULES:
            calls[getattr(function, "__name__", "")] += 1

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    calls.pop("fspath", None)  # no system call
    return calls
