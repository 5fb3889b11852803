"""A proc-events feed in an event loop, and VMMs whose events it takes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from need import lacking

from vmpin.config import loading
from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.host.proc_connector import ProcConnector
from vmpin.host.procfs import Procfs
from vmpin.procevents.feed import ProcEventsFeed
from vmpin.procevents.newborn_placer import FollowUp, NewbornPlacer
from vmpin.reconcile.reconciler import Reconciler
from vmpin.wire.proc_events import Event

PREFIX = f"f{secrets.token_hex(5)}-"


class Received:
    """What the feed calls, and what it is made with."""

    def __init__(self, path: Path) -> None:
        (path / "run").mkdir()
        paths = {f"paths.{key}": str(path / key) for key in ("run", "kata_go", "kata_rs", "kubelet", "nri")}
        self.reconciler = Reconciler(loading.load(None, {}, {**paths, "watch.only": f"{PREFIX}*"}))
        self.follow_ups: list[FollowUp] = []
        self.since: list[float] = []
        self.lost = 0
        self.fails = False
        self._begun = time.perf_counter()
        #: Seconds that pass each time the clock is read.
        self.step = 0.0
        self._now = 0.0
        self.make()

    def make(self, timeouts: Timeouts = TIMEOUTS, placer: NewbornPlacer | None = None,
             connect: Callable[[Procfs], ProcConnector] = ProcConnector) -> None:
        self.feed = ProcEventsFeed(self.reconciler, self._take, self._lose, placer=placer, connect=connect,
                                   timeouts=timeouts, clock=self._clock)

    def _clock(self) -> float:
        self._now += self.step
        return self._now

    def _take(self, follow_up: FollowUp, since: float) -> None:
        assert self._begun <= since <= time.perf_counter()  # of that clock
        self.since.append(since)
        if self.fails:
            raise OSError(24, "Too many open files")
        self.follow_ups.append(follow_up)

    def _lose(self) -> None:
        self.lost += 1

    @property
    def overruns(self) -> int:
        """In a storm of others the kernel may drop events."""
        return self.reconciler.node_state.counters.overruns


class Scripted(ProcConnector):
    """A connector that gives some events of the test's own before the kernel's. `reads`: how often it was read."""

    reads = 0
    events: Sequence[Event] = ()

    def read(self, most: int = 512) -> tuple[list[Event], bool]:
        self.reads += 1
        found, lost = super().read(most)
        mine, self.events = self.events, ()
        return [*mine, *found], lost


class Scripter:
    """Opens such connectors, and keeps the last one."""

    def __init__(self, *events: Event) -> None:
        self.events = events
        self.made: Scripted | None = None

    def __call__(self, proc: Procfs) -> Scripted:
        self.made = Scripted(proc)
        self.made.events = self.events
        return self.made


@contextlib.asynccontextmanager
async def running(received: Received) -> AsyncIterator[None]:
    task = asyncio.create_task(received.feed.run())
    await until(lambda: received.feed.source_health().up or "not reported" in str(received.feed.data()["state"]))
    if not received.feed.source_health().up:
        lacking(f"needs the kernel's proc connector: {received.feed.data()['state']}")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def vmm(name: str) -> subprocess.Popen[bytes]:
    """A VMM that names its thread as a vCPU for the first line, and ends at the second."""
    script = "read line && echo 'CPU 0/KVM' >/proc/$$/comm && read line"
    return subprocess.Popen(["qemu-system-x86_64", "-c", script, "-name", f"sandbox-{PREFIX}{name}"],
                            executable="/bin/sh", stdin=subprocess.PIPE)
