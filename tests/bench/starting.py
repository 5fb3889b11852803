"""What waits for a Python program to start: the node for a watcher, and an operator for `vmpin repin`."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import nri_node
from bench_node import Node, Watcher, cpus, resident_mib
from measure import CannotMeasure, Figure, environment, in_turn, median, process_ms
from vms import THREADS, Machine, idle_processes, sandbox_id

sys.path.append(str(Path(__file__).parents[1]))

from nri_peer import NriRuntime

PODS = 50
CONTAINERS = 2 * PODS
#: The libraries of others that a watcher has loaded by then, and the event loop.
_LIBRARIES = "import asyncio, google.protobuf.descriptor_pb2, google.protobuf.message_factory"
_SETTER = """\
import os, sys
for name in os.listdir(f"/proc/{sys.argv[1]}/task"):
    os.sched_setaffinity(int(name), {int(sys.argv[2])})
"""


def to_watching(made: Node, rounds: int) -> Figure:
    """`vmpin watch` on a node with 100 containers and no VM: from its spawn until it is ready and the runtime has the
    answer to its list, from which on a container's creation is answered. The floor is a Python that loads the same
    libraries of others; `python` is one that loads nothing."""
    pool = str(cpus()[0])
    ready: list[float] = []
    resident: list[float] = []
    pythons: list[float] = []
    with idle_processes(PODS) as pids:
        parts = nri_node.parts([(sandbox_id(2000 + number), pid) for number, pid in enumerate(pids)], pool, pool)

        def start() -> float:
            made.forget()
            path = made.path / "nri.sock"
            with contextlib.ExitStack() as stack:
                listener = stack.enter_context(nri_node.listening(path))
                watcher = stack.enter_context(Watcher(made, "--nri"))
                runtime = NriRuntime(listener.accept()[0])
                stack.callback(runtime.close)
                runtime.grant(runtime.request("RegisterPlugin"))
                runtime.configure()
                for part in parts:
                    runtime.call("Synchronize", part)
                spent = (time.perf_counter() - watcher.began) * 1000
                ready.append(watcher.ready_ms)
                resident.append(resident_mib(watcher.pid))
                return spent

        def libraries() -> float:
            pythons.append(process_ms([sys.executable, "-c", "pass"], environment()))
            return process_ms([sys.executable, "-c", _LIBRARIES], environment())

        values, floors = in_turn(rounds, start, libraries)
    return Figure("start_to_watching", median(values), "ms", median(floors), 200, "value",
                  {"containers": CONTAINERS, "rounds": rounds, "least": round(min(values), 3),
                   "ready_ms": round(median(ready), 3), "python": round(median(pythons), 3),
                   "resident_mib": round(median(resident), 2)})


def reconcile(made: Node, machine: Machine, rounds: int) -> Figure:
    """`vmpin repin`, when it sets all masks of a VM with 16 threads: by itself, and through a watcher that left
    the VM alone (`vmpin unpin`). The slower way counts. The floor is a Python that sets the same masks."""
    pool, other = cpus()
    home, both = frozenset((pool,)), frozenset((pool, other))
    command = made.command_line("repin")

    def setting(argv: list[str]) -> float:
        if machine.masks() != {both}:
            raise CannotMeasure(f"the threads have {machine.masks()}, and not {both}, before")
        spent = process_ms(argv, environment())
        if machine.masks() != {home}:
            raise CannotMeasure(f"the threads have {machine.masks()}, and not {home}, after {' '.join(argv[:2])}")
        return spent

    def alone() -> float:
        made.forget()
        machine.set_mask(both)
        return setting(command)

    def bare() -> float:
        machine.set_mask(both)
        return setting([sys.executable, "-c", _SETTER, str(machine.pid), str(pool)])

    def through_the_watcher() -> float:
        process_ms(made.command_line("unpin", "--every"), environment())
        return setting(command)

    values, floors = in_turn(rounds, alone, bare)
    made.forget()
    machine.set_mask(both)
    with Watcher(made):
        asked, more_floors = in_turn(rounds, through_the_watcher, lambda: process_ms(
            [sys.executable, "-c", "pass"], environment()))
    return Figure("reconcile_command", max(median(values), median(asked)), "ms", median(floors), 150, "value",
                  {"threads": THREADS, "rounds": rounds, "alone": round(median(values), 3),
                   "through_the_watcher": round(median(asked), 3), "python": round(median(more_floors), 3)})
