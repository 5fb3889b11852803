"""Waiting for what comes true after milliseconds, or later on a loaded machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Seconds for anything to come true. It is there after milliseconds, or a resync; a loaded machine takes longer, and
#: the lab's emulated node much longer.
PATIENCE = 120.0


def wait(true: Callable[[], Any], what: Callable[[], object] | str, seconds: float = PATIENCE) -> Any:
    """Until `true()` is, and that; fails with `what`."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.02)
    return found
