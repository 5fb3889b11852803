"""A scrape of the metrics: how long it takes the loop, and for how long at most nothing else goes on there."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench_node import Node
from measure import CannotMeasure, Figure, in_turn, median, timed_ms
from passes import settled
from vms import Machine

from vmpin.domain.counters import Counters
from vmpin.domain.guest_report import GuestReport
from vmpin.domain.model import SandboxId
from vmpin.feature import WatcherPart
from vmpin.features.metrics.exporter import TIMES, Exporter, HttpTimes
from vmpin.reconcile.view import NodeView
from vmpin.status.health import SourceHealth


@dataclass
class _Watched:
    """As much of a watcher as an exporter asks: the reconciler and its VMs are real."""

    view: NodeView
    counters: Counters = field(default_factory=Counters)
    restarts: Counter[str] = field(default_factory=Counter)
    resynced: float = field(default_factory=time.monotonic)
    parts: Mapping[str, WatcherPart] = field(default_factory=dict)

    def source_health(self) -> Iterable[SourceHealth]:
        return ()

    def guest(self, sandbox: SandboxId) -> GuestReport | None:
        return None


def scrape(made: Node, machines: Sequence[Machine], rounds: int) -> Figure:
    """In turn with the system calls that read the mask of every thread."""
    made.forget()
    reconciler = settled(made, machines)
    pauses: list[float] = []

    answering = Exporter(_Watched(reconciler.view), HttpTimes(page_age=-1.0))  # none is served twice

    async def one() -> float:
        longest = 0.0
        before = began = time.perf_counter()
        task = asyncio.create_task(answering.metrics())
        while not task.done():
            await asyncio.sleep(0)
            longest, before = max(longest, time.perf_counter() - before), time.perf_counter()
        spent = before - began
        placed = f'vmpin_sandboxes{{verdict="floating"}} {float(len(machines))}\n'
        if placed.encode() not in task.result():
            raise CannotMeasure("a scrape did not show the sandboxes as they are")
        pauses.append(longest * 1000)
        return spent * 1000

    pids = [machine.pid for machine in machines]

    def bare() -> None:
        for pid in pids:
            for tid in os.listdir(f"/proc/{pid}/task"):
                os.sched_getaffinity(int(tid))

    values, floors = in_turn(rounds, lambda: asyncio.run(one()), lambda: timed_ms(bare))
    return Figure("scrape_200x16", median(values), "ms", median(floors), 5, "ratio",
                  {"sandboxes": len(machines), "rounds": rounds, "longest_turn_ms": round(median(pauses[1:]), 3),
                   "turn_ms": TIMES.turn * 1000})
