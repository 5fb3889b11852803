"""Whole processes: the hook, `vmpin status`, a watcher that starts, a watcher at rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench_node import Bundle, Node, Watcher, cpu_seconds, cpus, resident_mib
from measure import CannotMeasure, Figure, environment, in_turn, median, process_ms, progress
from vms import Machine

from vmpin.install import data_files

#: Where the hook's first line finds Python; its options are the hook's own.
SYSTEM_PYTHON = "/usr/bin/python3"


def hook(made: Node, machines: Sequence[Machine], rounds: int) -> Figure:
    """The hook as a runtime runs it, with a watcher that answers, in turn with an interpreter that does nothing."""
    made.forget()
    bundle = Bundle(made, machines[0])
    bundle.write(str(cpus()[0]))
    state = bundle.state()
    env = environment()
    argv = hook_command(made)
    floor = [SYSTEM_PYTHON, "-I", "-S", "-c", "pass"]
    with Watcher(made):
        values, floors = in_turn(rounds, lambda: process_ms(argv, env, state), lambda: process_ms(floor, env, state))
    return Figure("hook", median(values), "ms", median(floors), 1.5, "ratio",
                  {"rounds": rounds, "state_bytes": len(state)})


def hook_command(made: Node) -> list[str]:
    """One whose message arrives: its time does not depend on its deadline, which a busy machine may exceed."""
    return [str(data_files.path("hooks/vmpin-hook")), "--fail-closed", "--deadline", "60000",
            "--socket", str(made.run / "hook.sock"), "--spool", str(made.run / "spool"), "createRuntime"]


def status(made: Node, machines: Sequence[Machine], rounds: int) -> Figure:
    made.forget()
    argv = made.command_line("status", "-o", "json")
    out = made.path / "status.json"
    with Watcher(made):
        values, floors = in_turn(rounds, lambda: process_ms(argv, environment(), out=str(out)), _interpreter)
    shown = len(json.loads(out.read_bytes())["sandboxes"])
    if shown != len(machines):
        raise CannotMeasure(f"the status shows {shown} of {len(machines)} sandboxes")
    return Figure("status_json", median(values), "ms", median(floors), 90, "value",
                  {"sandboxes": shown, "rounds": rounds, "bytes": out.stat().st_size})


def tab(made: Node, machines: Sequence[Machine], rounds: int) -> Figure:
    """The words that complete a pod, as a shell waits for them at a TAB."""
    made.forget()
    out = made.path / "words"
    command, *words = made.command_line("status", "")
    line = " ".join(["vmpin", *words])
    env = {**environment(), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
           "_ARGCOMPLETE_STDOUT_FILENAME": str(out), "COMP_LINE": line, "COMP_POINT": str(len(line)),
           "VMPIN_COMPLETION_DEADLINE": "60"}
    with Watcher(made):
        values, floors = in_turn(rounds, lambda: process_ms([command], env), _interpreter)
    offered = len(out.read_text().split("\v"))
    if offered < len(machines):
        raise CannotMeasure(f"{offered} of {len(machines)} sandboxes are offered")
    return Figure("tab_pods", median(values), "ms", median(floors), 150, "value", {"words": offered, "rounds": rounds})


def _interpreter() -> float:
    return process_ms([sys.executable, "-c", "pass"], environment())


def cold_start(made: Node, machines: Sequence[Machine], rounds: int) -> Figure:
    """`vmpin watch`, from its spawn until it says that all is placed, when every mask has to be set."""
    pool, other = cpus()
    wanted = {frozenset((pool,))}

    def start() -> float:
        made.forget()
        for machine in machines:
            machine.set_mask(frozenset((pool, other)))
        with Watcher(made) as watcher:
            wrong = sum(machine.masks() != wanted for machine in machines)
            if wrong:
                raise CannotMeasure(f"{wrong} of {len(machines)} VMs were not (all) pinned when the watcher was ready")
            return watcher.placed_ms

    imports: list[float] = []

    def bare() -> float:
        code = "import vmpin.cli.main, vmpin.cli.watch, vmpin.reconcile.one_pass, vmpin.log, yaml"
        imports.append(process_ms([sys.executable, "-c", code], environment()))
        return _interpreter()

    values, floors = in_turn(rounds, start, bare)
    threads = sum(len(machine.tids()) for machine in machines)
    return Figure("discover_300", median(values), "ms", median(floors), 150, "difference",
                  {"vms": len(machines), "threads": threads, "rounds": rounds,
                   "imports_alone": round(median(imports), 4)})


def at_rest(made: Node, machines: Sequence[Machine], seconds: float, resync: float) -> list[Figure]:
    """A watcher that has nothing to do, beside the least that could look at as many threads as often."""
    made.forget()
    with Watcher(made, "--set", f"watch.resync_seconds={resync}") as watcher:
        at = resting(watcher.pid, [machine.pid for machine in machines], seconds, resync)
    more = {"sandboxes": len(machines), "seconds": seconds, "resync_seconds": resync, "created_meanwhile": at.created}
    return [Figure("idle_rss", at.resident, "MiB", at.resident_floor, 60, "value", more),
            Figure("idle_cpu", at.cpu, "% of a CPU", at.cpu_floor, 0.2, "value", more)]


class Rest(NamedTuple):
    """What a watcher uses at rest, in % of a CPU and MiB, and what the floor does."""

    cpu: float
    cpu_floor: float
    resident: float
    resident_floor: float
    #: Processes and threads that other programs created meanwhile: the watcher receives events of some.
    created: int


def resting(watcher: int, pids: Sequence[int], seconds: float, resync: float) -> Rest:
    """:param watcher: its pid; it runs, and makes a resync every `resync` seconds. :param pids: the floor looks at the
    masks of their threads as often."""
    for _ in range(4):  # a resync each: in its first passes every process is new to it
        os.kill(watcher, signal.SIGHUP)
        time.sleep(0.5)
    floor = subprocess.Popen([sys.executable, Path(__file__).with_name("idle_floor.py"), str(resync)],
                             env=environment(), stdin=subprocess.PIPE)
    try:
        assert floor.stdin is not None
        floor.stdin.write(" ".join(map(str, pids)).encode())
        floor.stdin.close()
        # By then every guest has been searched for an agent, which is done every five minutes from then on, and the
        # files of Kata's containers are old.
        time.sleep(60 if seconds >= 10 else 0)
        # Both look again at whole multiples of `resync` from now on; the window is as many periods long, and
        # begins and ends in the middle between two.
        time.sleep(resync / 2)
        progress(f"at rest for {seconds:g} s")
        begin = time.monotonic()
        both = watcher, floor.pid
        before, created = [cpu_seconds(pid) for pid in both], _created()
        time.sleep(seconds)
        spent = time.monotonic() - begin
        used, least = (100 * (cpu_seconds(pid) - was) / spent for pid, was in zip(both, before, strict=True))
        return Rest(used, least, resident_mib(watcher), resident_mib(floor.pid), _created() - created)
    finally:
        floor.kill()
        floor.wait()


def _created() -> int:
    """Processes and threads since boot (proc_stat(5))."""
    return next(int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines()
                if line.startswith("processes "))


def check_root() -> None:
    if os.geteuid() != 0:
        raise CannotMeasure("needs root: it pins other processes' threads")
