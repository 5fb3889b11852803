"""A node for the tests of threads that are born: its watcher receives proc events, and no clock wakes it."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from need import lacking, need_root, need_tool
from process_masks import two_cpus
from real_node import Node
from waiting import wait

from vmpin.cpuset import CpuSet
from vmpin.errors import SourceError
from vmpin.host.proc_connector import ProcConnector
from vmpin.wire.proc_events import Fork


@pytest.fixture
def node() -> Iterator[Node]:
    need_root()
    need_tool("qemu-system-x86_64")
    with Node() as made:
        made.configure(node={"shared_pool": two_cpus()[0]}, watch={"resync_seconds": 600})
        yield made


def start(node: Node) -> None:
    """A watcher that receives proc events, and has read what was there."""
    node.start()
    wait(lambda: "proc connector " in node.last_log(), "it logs nothing of the proc connector")
    if "proc connector open" not in node.last_log():
        lacking(f"needs the kernel's proc connector: {node.last_log()}")


def overruns(node: Node) -> int:
    """How often the kernel dropped events for the watcher, as in a storm of another test."""
    return int(node.status()["sources"]["new_threads"]["overruns"])


def new_threads(node: Node, sandbox: str) -> Any:
    found = node.sandbox(sandbox)
    return None if found is None else found["new_threads"]


class ForkMasks:
    """Receives proc events beside the watcher, and reads each new thread's mask at once."""

    def __init__(self) -> None:
        try:
            self._connector = ProcConnector()
        except SourceError as err:
            lacking(f"needs the kernel's proc connector: {err}")
        self._masks: dict[int, list[CpuSet]] = {}
        #: It did not keep up, so it cannot say how all were born.
        self._lost = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> ForkMasks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._connector.close()

    def _look(self) -> None:
        while not self._ending.is_set():
            events, lost = self._connector.read()
            self._lost = self._lost or lost
            for event in events:
                if isinstance(event, Fork) and event.child != event.process:
                    with contextlib.suppress(ProcessLookupError):
                        mask = CpuSet(os.sched_getaffinity(event.child))
                        self._masks.setdefault(event.process, []).append(mask)
            if not events:
                time.sleep(0.0002)

    def masks(self, pid: int) -> list[CpuSet]:
        """Of the threads that were born in a process; none when events were lost."""
        return [] if self._lost else self._masks.get(pid, [])


def in_time(true: Callable[[str], bool]) -> bool:
    """A machine that is busy may let the watcher wait until QEMU has made its first thread: once is enough, as
    without it there is none that is."""
    deadline = time.monotonic() + 300
    tries = itertools.takewhile(lambda number: number < 20 or time.monotonic() < deadline, itertools.count())
    return any(true(f"a{number}") for number in tries)
