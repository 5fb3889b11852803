"""How all tests run: hypothesis without a deadline (the machines are shared), in CI always with the same examples."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("desk", deadline=None, max_examples=40)
settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

# A job in the background of a script is started with SIGINT ignored, and so would be each process that a test starts
# to see it end by Ctrl-C. What is caught here is the default in them again.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # likewise under nohup, which is to go on meaning that here
    signal.signal(signal.SIGHUP, lambda number, frame: None)

#: The unit tests leave half of a machine with two CPUs idle: the nodes of the lab boot beside them, and are waited for
#: after them (lab/boots.py). Whatever has a watcher comes then, with the machine to itself: it looks at all there is.
_ORDER = ("unit", "lab")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    top = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        directory = item.path.relative_to(top).parts[0]
        return _ORDER.index(directory) if directory in _ORDER else len(_ORDER)

    items.sort(key=place)
