"""Threads at their birth: how soon they are in their place, and what a storm of other processes' births costs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from bench_node import Node, Watcher, cpu_seconds, cpus, write_kata
from measure import CannotMeasure, Figure, environment, median, process_ms, timed_ms
from vms import Machine, compiled, kata_argv, sandbox_id

from vmpin.cli.control_client import ask
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.recognition import VmmProcess, classify

#: Births between two starts of the watcher.
_BLOCK = 50
#: Before a birth (s): what is made of the one before is done then.
_REST = 0.005
#: Processes a second.
RATE = 5000
_PATIENCE = 120.0
#: The sandbox of `newborn`, beyond those of the stand-ins.
_NUMBER = 10_000


class Newborn:
    """A VMM that makes a thread on command. Its sandbox's CPU is the pool, where its vCPUs go, and by policy
    (`flags`) its other threads have the other one."""

    flags = ("--set=watch.resync_seconds=600", f"--set=policy.emulator={cpus()[1]}", "--set=guest.via=off")

    def __init__(self, made: Node, binary: Path) -> None:
        argv = kata_argv(sandbox_id(_NUMBER))
        argv[argv.index("-smp") + 1] = "1"
        self._process = subprocess.Popen(argv, executable=binary, env=environment(), stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE)
        self._vcpus = 0
        self.machine = Machine(sandbox_id(_NUMBER), self._process)
        self._kata = made.path / "vc" / "sbs" / self.machine.sandbox
        self._said()
        write_kata(made, [self.machine])

    def __enter__(self) -> Newborn:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._kata)

    def _said(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        if not line:
            raise CannotMeasure("the stand-in has ended")
        return line

    def birth(self, cpu: int, name: str = "") -> float:
        """Microseconds from before a thread was made until it could run on that CPU alone."""
        assert self._process.stdin is not None
        time.sleep(_REST)
        self._process.stdin.write(f"{cpu} {name}\n".encode() if name else f"{cpu}\n".encode())
        self._process.stdin.flush()
        waited = int(self._said())
        if waited < 0:
            raise CannotMeasure(f"a thread {name or 'without name'} was not placed on CPU {cpu} within 120 s")
        return waited / 1000

    def born_outside(self) -> float:
        """A thread whose creator's mask another hand has widened."""
        os.sched_setaffinity(self._process.pid, cpus())
        return self.birth(cpus()[1])

    def vcpu(self) -> float:
        """A thread that shows by its name what it is, and goes where its creator is not."""
        os.sched_setaffinity(self._process.pid, cpus()[1:])
        self._vcpus += 1
        return self.birth(cpus()[0], f"CPU {self._vcpus}/KVM")


def to_placed(made: Node, machines: Sequence[Machine], build: Path, blocks: int) -> list[Figure]:
    """From before pthread_create(3) until the new thread sees its mask: one that is born outside and is put where its
    role belongs, and a vCPU, which is known by its name and placed by a pass. The slower of the two counts.

    The floor does the first, and knows nothing. Beside them: `taskset -ap` on a VM's threads, and one look for threads
    with psutil, which is how long a birth waits at least for a program that polls so.
    """
    outside: list[float] = []
    vcpus: list[float] = []
    floors: list[float] = []
    pool, other = cpus()
    with Newborn(made, compiled("newborn", build, "-pthread")) as vm:
        for _ in range(blocks):
            with watching(made):
                vm.born_outside()
                vm.vcpu()
                for _ in range(_BLOCK):
                    outside.append(vm.born_outside())
                    vcpus.append(vm.vcpu())
            with listening(vm.machine.pid, other):
                vm.born_outside()
                floors += [vm.born_outside() for _ in range(_BLOCK)]
        taskset = shutil.which("taskset")
        peers = {"naive_pass_us": round(1000 * median([timed_ms(lambda: _naive(pool)) for _ in range(5)]), 1)}
        if taskset is not None:
            peers["taskset_us"] = round(1000 * median([process_ms(
                [taskset, "-apc", str(pool), str(machines[0].pid)], environment()) for _ in range(20)]), 1)
    more = {"sandboxes": len(machines) + 1, "new_threads": 2 * len(outside), "outside_us": round(median(outside), 1),
            "vcpu_us": round(median(vcpus), 1), **peers}
    slower = max(outside, vcpus, key=median)
    return [Figure("birth_to_placed", round(median(slower), 1), "µs", median(floors), 500, "value", more),
            Figure("birth_p99", _p99(slower), "µs", _p99(floors), 5000, "value",
                   {"new_threads": len(slower), "outside_p99_us": round(_p99(outside), 1),
                    "vcpu_p99_us": round(_p99(vcpus), 1)})]


def _naive(cpu: int) -> None:
    """What a simple tool does again and again."""
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error, OSError):
            if isinstance(found := classify(process.info["cmdline"] or ()), VmmProcess) and found.type is QEMU:
                for thread in process.threads():
                    os.sched_getaffinity(thread.id)


def storm(made: Node, machines: Sequence[Machine], build: Path, seconds: int) -> Figure:
    """What the watcher uses of a CPU while others make 5,000 processes a second, each of which executes a program; if
    the machine cannot make so many, for as many. Threads of a VM are born meanwhile, and every one is to be placed.

    The floor receives the same events as seldom, and does nothing with it. `forks`: of processes that execute nothing.
    """
    program = compiled("storm", build, "-static")
    births: list[float] = []
    with Newborn(made, compiled("newborn", build, "-pthread")) as vm:

        def meanwhile() -> None:
            births.append(vm.born_outside())
            time.sleep(0.02)

        with watching(made) as watcher:
            vm.born_outside()
            forks, executed = (storm_of([str(program), str(RATE // 2), str(seconds), kind], 2, watcher.pid, meanwhile)
                               for kind in ("fork", "exec"))
            status = ask(made.config(), {"op": "status"})
            if status is None:
                raise CannotMeasure("the watcher does not answer")
            counted = status["sources"]["new_threads"]
        with listening(0, 0) as listener:
            least = storm_of([str(program), str(RATE // 2), str(seconds), "exec"], 2, listener)
    return Figure("fork_storm", executed.at(RATE), "% of a CPU", least.at(RATE), 25, "value", {
        "processes_a_second": round(executed.rate), "forks": round(forks.at(RATE), 3), "forks_a_second":
        round(forks.rate), "seconds": seconds, "new_threads": len(births), "birth_us": round(median(births), 1),
        "birth_p99_us": round(_p99(births), 1), "overruns": counted["overruns"], "events": counted["events"]})


class Storm(NamedTuple):
    """Processes (or executions) a second, and what a listener used of a CPU meanwhile (%)."""

    rate: float
    percent: float

    def at(self, rate: int) -> float:
        """What it had used with so many a second (%)."""
        return self.percent * rate / self.rate


def storm_of(argv: Sequence[str], makers: int, listener: int, meanwhile: Callable[[], None] | None = None) -> Storm:
    """So many processes of `argv`, each of which says at its end how many it made and how many nanoseconds that took.

    :param meanwhile: done again and again until they end.
    """
    started = [subprocess.Popen(argv, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
               for _ in range(makers)]
    try:
        used = cpu_seconds(listener)
        while started[0].poll() is None:
            (meanwhile or _a_moment)()
        used = cpu_seconds(listener) - used
        said = [maker.communicate(timeout=_PATIENCE)[0].split() for maker in started]
    finally:
        for maker in started:
            maker.kill()
            maker.communicate()
    if not all(len(each) == 2 for each in said):
        raise CannotMeasure(f"{argv[0]} did not say what it made")
    count, spent = sum(int(each[0]) for each in said), max(int(each[1]) for each in said) / 1e9
    return Storm(count / spent, 100 * used / spent)


def _a_moment() -> None:
    time.sleep(0.02)


@contextlib.contextmanager
def watching(made: Node) -> Iterator[Watcher]:
    """A watcher that receives birth events, and has placed what was there before."""
    made.forget()
    with Watcher(made, *Newborn.flags) as watcher:
        deadline = time.monotonic() + _PATIENCE
        while not (state := _source_state(made)).startswith("reported"):
            if time.monotonic() > deadline:
                raise CannotMeasure(f"births are {state}")
            time.sleep(0.05)
        time.sleep(0.3)
        yield watcher


def _source_state(made: Node) -> str:
    status = ask(made.config(), {"op": "status"})
    return "" if status is None else str(status["sources"]["new_threads"]["state"])


@contextlib.contextmanager
def listening(pid: int, cpu: int) -> Iterator[int]:
    """The floor; its pid."""
    floor = subprocess.Popen([sys.executable, Path(__file__).with_name("birth_floor.py"), str(pid), str(cpu)],
                             env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        assert floor.stdout is not None
        if floor.stdout.readline() != b"ready\n":
            raise CannotMeasure("the kernel reports no births to the floor")
        yield floor.pid
    finally:
        floor.terminate()  # it has to deregister from the kernel's events
        floor.communicate(timeout=_PATIENCE)


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * 99 // 100)]
