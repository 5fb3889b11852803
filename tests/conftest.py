"""How all tests run: hypothesis without a deadline (the machines are shared), in CI always with the same examples."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
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


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that is run within this process sets up logging as it wants it (vmpin/log.py), for good."""
    root, ours = logging.root, logging.getLogger("vmpin")
    before = root.level, ours.level
    yield
    root.setLevel(before[0])
    ours.setLevel(before[1])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The nodes of the lab boot in the background of all that takes no more than one CPU, and are waited for after it
    (lab/boots.py). What boots guests of its own or measures comes then. One test at a time: watchers look at the whole
    machine, and a node is another one."""
    top = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        directory = item.path.relative_to(top).parts[0]
        if directory == "integration" and item.get_closest_marker("guest"):
            return 3
        return {"unit": 0, "integration": 1, "lab": 2}.get(directory, 4)

    items.sort(key=place)
