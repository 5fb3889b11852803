"""Threads of this process, each on one CPU, as a VM's vCPUs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from need import lacking

from vmpin.domain.model import SandboxId, ThreadId
from vmpin.features.scheduling.class_plan import LoneVcpu
from vmpin.features.scheduling.sched_class import SchedClass, parse_class
from vmpin.features.scheduling.thread_class import class_of
from vmpin.host.procfs import Procfs

SHOP = SandboxId("shop")
CPU = min(os.sched_getaffinity(0))
OTHER = SchedClass(0)


def rt(text: str) -> SchedClass:
    """The class that vmpin sets for a value of the configuration."""
    wanted = parse_class(text)
    assert wanted is not None
    return wanted


def thread_id(pid: int, tid: int) -> ThreadId:
    stat = Procfs().thread_stat(pid, tid)
    assert stat is not None
    return ThreadId(tid, stat.starttime)


def need_real_time() -> None:
    """That this process may set a real-time class, and is not itself in one."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError as err:
        lacking(f"needs real-time classes: {err}")
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class OwnThread:
    """A thread that sleeps until the end, on one CPU. `task` is run in it by `run`."""

    def __init__(self) -> None:
        self._end, self._ready = threading.Event(), threading.Event()
        self.tid = 0
        self._thread = threading.Thread(target=self._sleep)
        self._thread.start()
        self._ready.wait()
        self.id, self.main = thread_id(os.getpid(), self.tid), thread_id(os.getpid(), os.getpid())

    def _sleep(self) -> None:
        self.tid = threading.get_native_id()
        os.sched_setaffinity(0, {CPU})
        self._ready.set()
        self._end.wait()

    def end(self) -> None:
        self._end.set()
        self._thread.join()

    @property
    def shown(self) -> SchedClass | None:
        return class_of(self.tid)

    def chrt(self, policy: int, priority: int = 0) -> None:
        """Set its class as another program does."""
        os.sched_setscheduler(self.tid, policy, os.sched_param(priority))

    def lone(self, text: str = "fifo:1", vcpu: int = 0) -> LoneVcpu:
        return LoneVcpu(SHOP, self.main, vcpu, CPU, rt(text))


@contextmanager
def own_threads(count: int) -> Iterator[list[OwnThread]]:
    threads = [OwnThread() for _ in range(count)]
    try:
        yield threads
    finally:
        for thread in threads:
            thread.end()
