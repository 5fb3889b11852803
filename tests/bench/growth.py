"""How what the watcher costs grows with the node: 100, 300 and 1,000 sandboxes of 16 threads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_node import Node, Watcher, cpu_seconds, cpus, resident_mib, write_kata
from measure import CannotMeasure, Figure, environment, in_turn, median, process_ms, progress, timed_ms
from passes import settled
from vms import THREADS, Machine, stand_ins

#: Sandboxes. What grows linearly costs as much for each of the last as for each of the first.
SIZES = (100, 300, 1000)
#: Times that the cost of a further sandbox may be what the first ones cost each, and still count as linear: caches are
#: as large as they are.
_LINEAR = 1.5


@dataclass
class _Size:
    """What was measured with so many sandboxes: medians, in ms, MiB and % of a CPU; floors beside them."""

    count: int
    start: float = 0.0
    rss: float = 0.0
    idle: float = 0.0
    idle_floor: float = 0.0
    rss_floor: float = 0.0
    one_pass: float = 0.0
    pass_floor: float = 0.0
    status: float = 0.0
    status_floor: float = 0.0


def growth(made: Node, build: Path, sizes: Sequence[int], rounds: int, seconds: float, resync: float) -> list[Figure]:
    """Start (until every thread is placed), memory, CPU at rest, a pass, and the status as JSON.

    The limits are on the largest; `linear` says what a further sandbox costs between the last two sizes, as a multiple
    of what one costs between the first two (0 where that is too little to be measured).
    """
    found = [_measured(made, build, size, rounds, seconds, resync) for size in sizes]
    last = found[-1]
    more = {"sandboxes": last.count, "threads": last.count * THREADS}

    def grown(name: str, value: str, unit: str, floor: float, limit: float) -> Figure:
        """A figure of the largest, with the other sizes beside it."""
        by_size = {str(each.count): round(getattr(each, value), 3) for each in found}
        return Figure(name, getattr(last, value), unit, floor, limit, "value",
                      {**more, "by_size": by_size, "linear": _linear(found, value)})

    made.forget()
    return [
        grown("growth_rss", "rss", "MiB", last.rss_floor, 90),
        grown("growth_idle", "idle", "% of a CPU", last.idle_floor, 1),
        grown("growth_status", "status", "ms", last.status_floor, 500),
        Figure("growth_start", _linear(found, "start"), "× a sandbox", 1.0, _LINEAR, "value",
               {**more, "ms": {str(each.count): round(each.start, 1) for each in found}}),
        # Beside the same system calls alone: 16,000 threads are more than the caches hold, for the kernel as well.
        Figure("growth_pass", _linear(found, "one_pass"), "× a sandbox", _linear(found, "pass_floor"), _LINEAR,
               "ratio", {**more, "ms": {str(each.count): round(each.one_pass, 2) for each in found},
                         "floor_ms": {str(each.count): round(each.pass_floor, 2) for each in found}})]


def _linear(found: Sequence[_Size], value: str) -> float:
    """What a further sandbox costs at the end, as a multiple of what one costs at the beginning."""
    first, middle, last = found[0], found[-2], found[-1]
    begin = (getattr(middle, value) - getattr(first, value)) / (middle.count - first.count)
    end = (getattr(last, value) - getattr(middle, value)) / (last.count - middle.count)
    return round(float(end / begin), 3) if begin > 0 else 0.0


def _measured(made: Node, build: Path, count: int, rounds: int, seconds: float, resync: float) -> _Size:
    found = _Size(count)
    with stand_ins(count, build) as machines:
        write_kata(made, machines)
        try:
            found.start = median([_start(made, machines) for _ in range(rounds)])
            _watched(made, machines, found, rounds, seconds, resync)
            _passes(made, machines, found, 5 * rounds)
        finally:
            made.forget_kata()
    return found


def _start(made: Node, machines: Sequence[Machine]) -> float:
    """From the spawn until every thread is in its place, which none was before (ms)."""
    made.forget()
    for machine in machines:
        machine.set_mask(frozenset(cpus()))
    with Watcher(made) as watcher:
        if any(machine.masks() != {frozenset(cpus()[:1])} for machine in machines):
            raise CannotMeasure("not every thread was in its place when the watcher was ready")
        return watcher.placed_ms


def _watched(made: Node, machines: Sequence[Machine], found: _Size, rounds: int, seconds: float,
             resync: float) -> None:
    """CPU, status and memory of a watcher that has nothing to do."""
    made.forget()
    out = made.path / "status.json"
    with Watcher(made, "--set", f"watch.resync_seconds={resync}") as watcher:
        for _ in range(4):  # a resync each: in its first passes every process is new to it
            os.kill(watcher.pid, signal.SIGHUP)
            time.sleep(1)
        floor = subprocess.Popen([sys.executable, Path(__file__).with_name("idle_floor.py"), str(resync)],
                                 env=environment(), stdin=subprocess.PIPE)
        try:
            assert floor.stdin is not None
            floor.stdin.write(" ".join(str(machine.pid) for machine in machines).encode())
            floor.stdin.close()
            time.sleep(20 if seconds >= 10 else 0)  # by then guests have been looked for, as in processes.at_rest
            progress(f"{len(machines)} sandboxes at rest for {seconds:g} s")
            begin, pids = time.monotonic(), (watcher.pid, floor.pid)
            before = [cpu_seconds(pid) for pid in pids]
            time.sleep(seconds)
            spent = time.monotonic() - begin
            found.idle, found.idle_floor = (
                100 * (cpu_seconds(pid) - was) / spent for pid, was in zip(pids, before, strict=True))
            argv = made.command_line("status", "-o", "json")
            values, floors = in_turn(rounds, lambda: process_ms(argv, environment(), out=str(out)), lambda: process_ms(
                [sys.executable, "-c", "pass"], environment()))
            if (shown := len(json.loads(out.read_bytes())["sandboxes"])) != len(machines):
                raise CannotMeasure(f"the status shows {shown} of {len(machines)} sandboxes")
            found.status, found.status_floor = median(values), median(floors)
            found.rss, found.rss_floor = (resident_mib(pid) for pid in pids)  # with what a status takes
        finally:
            floor.kill()
            floor.wait()


def _passes(made: Node, machines: Sequence[Machine], found: _Size, rounds: int) -> None:
    """A pass in which nothing changed, and the system calls that it cannot do without (ms)."""
    made.forget()
    reconciler = settled(made, machines)
    pids = [machine.pid for machine in machines]

    def bare() -> None:
        for pid in pids:
            for tid in os.listdir(f"/proc/{pid}/task"):
                os.sched_getaffinity(int(tid))

    values, floors = in_turn(rounds, lambda: reconciler.resync(act=True).seconds * 1000, lambda: timed_ms(bare))
    found.one_pass, found.pass_floor = median(values), median(floors)
