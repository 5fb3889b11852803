"""Storms in containers: processes that execute themselves again and again with very long command lines, as VMMs have
them, and threads that name themselves without end."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench_node import Bundle, Node, cpus
from measure import CannotMeasure, Figure, environment, median, process_ms, timed_ms
from newborns import RATE, Storm, storm_of, watching
from processes import SYSTEM_PYTHON
from vms import Machine, compiled

from vmpin.cli.control_client import ask
from vmpin.install import data_files

#: Executions a second in all: what two makers can do with the longest command line on a machine that is not idle.
_RATE = 60
#: What execve(2) takes at most with the default stack limit of 8 MiB; and what a short one has.
_LONG, _SHORT = 2_000_000, 64
#: One that is all short options: the costliest to take apart for its length.
_DENSE = 128 << 10
#: Of every 100 ms, for how long a thread names itself: as in a container with 0.2 CPUs.
_NAMING = 20
#: The program whose name a process gives itself: one of those that the watcher looks for.
_NAME = "qemu-system-x86_64"


def exec_storm(made: Node, machines: Sequence[Machine], build: Path, seconds: int, rounds: int) -> Figure:
    """What the watcher uses of a CPU while processes in a pid namespace of their own execute a program of QEMU's name
    with 2 MB of command line, beside what as many ordinary programs a second cost it in the same run (the floor).

    `short_line`: the same with short command lines, in turn with the long ones; `long_to_short` is their ratio. Then
    three such processes without any limit: how long hooks and `status` take meanwhile, beside an interpreter that does
    nothing, and how many hooks got no answer within their deadline.
    """
    storm, reexec = compiled("storm", build, "-static"), compiled("reexec", build, "-static")
    long, short, plain = [], [], []
    with watching(made) as watcher:
        for _ in range(rounds):
            long.append(_executing(reexec, _RATE, seconds, _LONG, watcher.pid))
            short.append(_executing(reexec, _RATE, seconds, _SHORT, watcher.pid))
            plain.append(storm_of([str(storm), str(_RATE // 2), str(seconds), "exec"], 2, watcher.pid))
        answers = _answers(made, machines[0], reexec, 4 * seconds)
        status = ask(made.config(), {"op": "status"})
        if status is None:
            raise CannotMeasure("the watcher does not answer")
    costs = {name: median([each.percent for each in found])
             for name, found in (("long", long), ("short", short), ("plain", plain))}
    return Figure("exec_storm_hostile", costs["long"], "% of a CPU", costs["plain"], 5, "difference", {
        "executions_a_second": round(median([each.rate for each in long]), 1),
        "ordinary_a_second": round(median([each.rate for each in plain]), 1), "bytes": _LONG, "seconds": seconds,
        "rounds": rounds, "short_line": round(costs["short"], 3),
        "long_to_short": round(costs["long"] / max(costs["short"], 1e-3), 2), **answers,
        "overruns": status["sources"]["new_threads"]["overruns"]})


def name_storm(made: Node, machines: Sequence[Machine], build: Path, seconds: int, rounds: int) -> Figure:
    """What the watcher uses of a CPU while a thread that it does not follow names itself without end for a fifth of
    the time, beside what 5,000 executions a second cost it in the same run (the floor).

    `hook_ms`: how long a hook takes meanwhile, and `hook_quiet_ms` when nothing happens: at most twice as long.
    """
    storm = compiled("storm", build, "-static")
    bundle = Bundle(made, machines[0])
    bundle.write(str(cpus()[0]))
    state = bundle.state()
    hook = [str(data_files.path("hooks/vmpin-hook")), "--fail-closed", "--socket", str(made.run / "hook.sock"),
            "--spool", str(made.run / "spool"), "createRuntime"]
    names, plain, hooks, quiet, late = [], [], list[float](), list[float](), 0

    def asked(times: list[float]) -> None:
        nonlocal late
        try:
            times.append(process_ms(hook, environment(), state))
        except CannotMeasure:
            late += 1  # no answer within its deadline: then it exits with 1
        time.sleep(0.05)

    with watching(made) as watcher:
        for _ in range(rounds):
            names.append(storm_of([str(storm), str(_NAMING), str(seconds), "name"], 1, watcher.pid))
            plain.append(storm_of([str(storm), str(RATE // 2), str(seconds), "exec"], 2, watcher.pid))
            storm_of([str(storm), str(_NAMING), str(seconds), "name"], 1, watcher.pid, lambda: asked(hooks))
            for _ in range(len(hooks)):
                asked(quiet)
        status = ask(made.config(), {"op": "status"})
        if status is None or not hooks or not quiet:
            raise CannotMeasure("the watcher does not answer")
    return Figure("name_storm_hostile", median([each.percent for each in names]), "% of a CPU",
                  median([each.at(RATE) for each in plain]), 3, "difference", {
        "names_a_second": round(median([each.rate for each in names])), "seconds": seconds, "rounds": rounds,
        "hook_ms": round(median(hooks), 1), "hook_quiet_ms": round(median(quiet), 1),
        "hook_ratio": round(median(hooks) / median(quiet), 2), "hooks_late": late,
        "overruns": status["sources"]["new_threads"]["overruns"],
        "events": status["sources"]["new_threads"]["events"]})


def _argv(reexec: Path, rate: int, seconds: int, length: int) -> list[str]:
    unshare = shutil.which("unshare")
    if unshare is None:
        raise CannotMeasure("needs unshare")
    return [unshare, "--pid", "--fork", "--kill-child", str(reexec), str(rate), str(seconds), str(length), _NAME]


def _executing(reexec: Path, rate: int, seconds: int, length: int, listener: int) -> Storm:
    return storm_of(_argv(reexec, rate // 2, seconds, length), 2, listener)


def _answers(made: Node, machine: Machine, reexec: Path, seconds: int) -> dict[str, object]:
    """How long hooks and the status take (ms, the worst) under three storms without a limit."""
    bundle = Bundle(made, machine)
    bundle.write(str(cpus()[0]))
    state = bundle.state()
    hook = [str(data_files.path("hooks/vmpin-hook")), "--fail-closed", "--socket", str(made.run / "hook.sock"),
            "--spool", str(made.run / "spool"), "createRuntime"]
    hooks, statuses, floors, late = [], [], [], 0
    with _unlimited(reexec, seconds) as going:
        while going():
            try:
                hooks.append(process_ms(hook, environment(), state))
            except CannotMeasure:
                late += 1  # no answer within its deadline: then it exits with 1
            statuses.append(timed_ms(lambda: ask(made.config(), {"op": "status"})))
            floors.append(process_ms([SYSTEM_PYTHON, "-I", "-S", "-c", "pass"], environment()))
    if not hooks:
        raise CannotMeasure("no hook got an answer")
    return {"hooks": len(hooks) + late, "hooks_late": late, "hook_ms": round(median(hooks), 1),
            "hook_worst_ms": round(max(hooks), 1), "status_ms": round(median(statuses), 1),
            "status_worst_ms": round(max(statuses), 1), "interpreter_ms": round(median(floors), 1),
            "interpreter_worst_ms": round(max(floors), 1)}


@contextlib.contextmanager
def _unlimited(reexec: Path, seconds: int) -> Iterator[Callable[[], bool]]:
    """Three of them: with the longest command line, with the one that costs most to take apart, and with a short one.
    Gives what says whether they go on."""
    started = [subprocess.Popen(_argv(reexec, 0, seconds, length), env=environment(), stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL) for length in (_LONG, _DENSE, _SHORT)]
    try:
        yield lambda: any(each.poll() is None for each in started)
    finally:
        for each in started:
            each.kill()
            each.wait()
