"""What the events of one container cost: the watcher's CPU time for its creation, start, stop and removal over NRI,
with a hundred shared containers beside it; and how soon after a hook's exit the masks are set.

The runtime is the benchmark's own, as what is measured is the watcher. Beside it runs the least that could answer the
same calls (lifecycle_floor.py)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import nri_node
from bench_node import Bundle, Node, Watcher, cpu_seconds, cpus
from measure import CannotMeasure, Figure, environment, median, process_ms, progress, timed_ms
from passes import set_masks
from processes import hook_command, resting
from vms import THREADS, Machine, idle_processes, sandbox_id

from vmpin.config.timeouts import TIMEOUTS
from vmpin.wire.nri_enums import CREATED, RUNNING
from vmpin.wire.nri_messages import MESSAGES

sys.path.append(str(Path(__file__).parents[1]))

from nri_peer import NriRuntime

OTHERS = 100
#: Between two calls (s): a runtime works that long on each, and the watcher is done with the one before.
_PAUSE = 0.02
#: Seconds after a container's end: until the state file is written, and while a VM is still looked at again.
_CALM = TIMEOUTS.save[1] + 0.1
_RECHECKS = sum(TIMEOUTS.rechecks) + 1
_PATIENCE = 120.0


class _Container:
    """A container through its life, as its runtime reports it."""

    def __init__(self, runtime: NriRuntime, sandbox: str, pod_pid: int, name: str, asked: str) -> None:
        self._runtime = runtime
        self._pod = nri_node.pod(sandbox, pod_pid)
        self._made = nri_node.container(sandbox, name, 0, asked)

    def pod_call(self, method: str) -> None:
        self._runtime.call(method, MESSAGES["EventRequest"](pod=self._pod).SerializeToString())
        time.sleep(_PAUSE)

    def call(self, method: str) -> bytes:
        reply = self._runtime.call(method, MESSAGES["EventRequest"](
            pod=self._pod, container=self._made).SerializeToString())
        time.sleep(_PAUSE)
        return bytes(reply.payload)

    def start(self, pid: int) -> None:
        self._made.state, self._made.pid = CREATED, 0
        adjusted = MESSAGES.decode("CreateContainerResponse", self.call("CreateContainer"))
        if cpu_list := adjusted.adjust.linux.resources.cpu.cpus:
            self._made.linux.resources.cpu.cpus = cpu_list
        self.call("PostCreateContainer")
        self._made.pid = pid
        self.call("StartContainer")
        self._made.state = RUNNING
        self.call("PostStartContainer")

    def end(self) -> None:
        self.call("StopContainer")
        self.call("RemoveContainer")


@contextlib.contextmanager
def _runtime(made: Node, start: Callable[[], contextlib.AbstractContextManager[int]],
             pods: Sequence[tuple[str, int]], asked: str,
             empty: Sequence[tuple[str, int]] = ()) -> Iterator[tuple[NriRuntime, int]]:
    """A runtime, the pods (id, pid) listed with a container each, and the pid of the plugin that `start` started.
    :param empty: pods without a container."""
    path = made.path / "nri.sock"
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(nri_node.listening(path))
        pid = stack.enter_context(start())
        runtime = NriRuntime(listener.accept()[0])
        stack.callback(runtime.close)
        runtime.grant(runtime.request("RegisterPlugin"))
        runtime.configure()
        runtime.synchronize([nri_node.pod(*pod) for pod in (*pods, *empty)], [
            nri_node.container(sandbox, sandbox[::-1], pid, asked) for sandbox, pid in pods])
        yield runtime, pid


@contextlib.contextmanager
def _watcher(made: Node, flags: Sequence[str]) -> Iterator[int]:
    with Watcher(made, "--nri", "--set", "watch.resync_seconds=3600", *flags) as watcher:
        yield watcher.pid


@contextlib.contextmanager
def _floor(made: Node, pid: int) -> Iterator[int]:
    """:param pid: of the VM whose masks it sets; 0 for none."""
    process = subprocess.Popen([sys.executable, Path(__file__).with_name("lifecycle_floor.py"),
                                str(made.path / "nri.sock"), str(pid), *map(str, cpus())], env=environment())
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _cpuset_cgroups(cpu_list: str) -> Iterator[Callable[[str, int], None]]:
    """Puts a process into a new cpuset cgroup of this name; they are empty in the end."""
    root = Path("/sys/fs/cgroup")
    root = root / "cpuset" if (root / "cpuset" / "cpuset.cpus").exists() else root
    if not (root / "cpuset.cpus").exists() and "cpuset" not in (root / "cgroup.subtree_control").read_text().split():
        raise CannotMeasure("needs a hierarchy of cpuset cgroups")
    made: list[Path] = []

    def create(path: Path) -> Path:
        path.mkdir()
        made.append(path)
        (path / "cpuset.cpus").write_text(cpu_list)
        (path / "cpuset.mems").write_text("0")
        return path

    try:
        top = create(root / f"vmpin-bench-{os.getpid()}")
        if (top / "cgroup.subtree_control").exists():
            (top / "cgroup.subtree_control").write_text("+cpuset")

        def enter(name: str, pid: int) -> None:
            (create(top / name) / "cgroup.procs").write_text(str(pid))

        yield enter
    finally:
        for path in reversed(made):
            path.rmdir()


def at_rest(made: Node, seconds: float, resync: float) -> Figure:
    """A watcher on a node of runc containers alone, each in a cgroup of its own, that has nothing to do."""
    made.forget()
    made.forget_kata()
    asked = ",".join(map(str, cpus()))
    with _cpuset_cgroups(asked) as enter, idle_processes(OTHERS) as pids:
        pods = [(sandbox_id(2000 + number), pid) for number, pid in enumerate(pids)]
        for sandbox, pid in pods:
            enter(sandbox[::-1], pid)
        with _runtime(made, lambda: _watcher(made, [f"--set=watch.resync_seconds={resync}"]), pods, asked) as (_, pid):
            at = resting(pid, pids, seconds, resync)
    return Figure("idle_containers", at.cpu, "% of a CPU", at.cpu_floor, 0.08, "value",
                  {"containers": len(pids), "seconds": seconds, "resync_seconds": resync,
                   "created_meanwhile": at.created, "resident_mib": round(at.resident, 1)})


def _cost(pid: int, life: Callable[[int], None], rounds: int, tail: float = _CALM) -> float:
    """Milliseconds of a process's CPU for a container's life, the median of some, without what it uses at rest.
    :param tail: seconds after a container's end that count as its life."""
    for number in range(min(3, rounds)):
        life(number)
    time.sleep(tail)
    lives: list[float] = []
    rests: list[float] = []
    for number in range(rounds):
        began, used = time.monotonic(), cpu_seconds(pid)
        life(3 + number)
        time.sleep(tail)
        lives.append(cpu_seconds(pid) - used)
        lasted, used = time.monotonic() - began, cpu_seconds(pid)
        time.sleep(lasted)
        rests.append(cpu_seconds(pid) - used)
    return 1000 * (median(lives) - median(rests))


def runc(made: Node, allocating: bool, rounds: int) -> Figure:
    """A shared runc container, in a pod of its own; with the pod's calls there are nine."""
    made.forget()
    made.forget_kata()
    flags = ["--set=allocate.mode=on", f"--set=allocate.reserved={cpus()[0]}"] if allocating else []
    with idle_processes(OTHERS + 2) as pids:
        pods = [(sandbox_id(2000 + number), pid) for number, pid in enumerate(pids[2:])]
        progress(f"the lifecycles of {rounds} containers")

        def measured(start: Callable[[], contextlib.AbstractContextManager[int]]) -> float:
            with _runtime(made, start, pods, "") as (runtime, pid):
                def life(number: int) -> None:
                    sandbox = sandbox_id(3000 + number)
                    container = _Container(runtime, sandbox, pids[0], sandbox[::-1], "")
                    container.pod_call("RunPodSandbox")
                    container.start(pids[1])
                    container.end()
                    container.pod_call("StopPodSandbox")
                    container.pod_call("RemovePodSandbox")

                return _cost(pid, life, rounds)

        value, floor = measured(lambda: _watcher(made, flags)), measured(lambda: _floor(made, 0))
    name, limit = ("lifecycle_allocating", 6) if allocating else ("lifecycle_runc", 3)
    return Figure(name, value, "ms of CPU", floor, limit, "value", {"rounds": rounds, "others": OTHERS, "calls": 9})


def vm(made: Node, machine: Machine, rounds: int) -> Figure:
    """A container with a CPU of its own, in a VM of 16 threads that runs: its masks are set there and back. One round
    only shows that it works: the rechecks are not waited for then."""
    made.forget()
    made.forget_kata()
    pool, other = cpus()
    there, back = frozenset((other,)), frozenset((pool,))
    with idle_processes(OTHERS) as pids:
        pods = [(sandbox_id(2000 + number), pid) for number, pid in enumerate(pids)]
        progress(f"the lifecycles of {rounds} containers in a VM")

        def measured(start: Callable[[], contextlib.AbstractContextManager[int]], tail: float) -> float:
            with _runtime(made, start, pods, str(pool), [(machine.sandbox, machine.pid)]) as (runtime, pid):
                def life(number: int) -> None:
                    container = _Container(runtime, machine.sandbox, machine.pid, f"c{3000 + number}", str(other))
                    container.start(machine.pid)
                    _until_set(machine, there)
                    container.end()
                    _until_set(machine, back)

                return _cost(pid, life, rounds, tail)

        value = measured(lambda: _watcher(made, ()), _RECHECKS if rounds > 1 else _CALM)
        floor = measured(lambda: _floor(made, machine.pid), _CALM)
    return Figure("lifecycle_vm", value, "ms of CPU", floor, 8, "value",
                  {"rounds": rounds, "others": OTHERS, "calls": 6, "threads": THREADS})


def _until_set(machine: Machine, mask: frozenset[int]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while machine.masks() != {mask}:
        if time.monotonic() > deadline:
            raise CannotMeasure(f"the threads have {machine.masks()}, and not {mask}, after {_PATIENCE:g} s")
        time.sleep(0.0001)


def hook_to_masks(made: Node, machine: Machine, rounds: int) -> Figure:
    """A hook reports a container's CPUs: from its exit until all threads of its VM have their masks."""
    made.forget()
    made.forget_kata()
    pool, other = cpus()
    bundle = Bundle(made, machine)
    argv, state, env = hook_command(made), bundle.state(), environment()
    masks = {str(other): frozenset((other,)), f"{pool},{other}": frozenset((pool, other))}
    values: list[float] = []
    floors: list[float] = []
    tids = machine.tids()

    def bare(mask: frozenset[int]) -> float:
        back = next(other for other in masks.values() if other != mask)
        return (timed_ms(lambda: set_masks(tids, back)) + timed_ms(lambda: set_masks(tids, mask))) / 2

    with Watcher(made):
        for number in range(-2, rounds):
            for text, mask in masks.items():
                bundle.write(text)
                process_ms(argv, env, state)
                begin = time.perf_counter()
                _until_set(machine, mask)
                if number >= 0:
                    values.append((time.perf_counter() - begin) * 1000)
                    time.sleep(0.005)
                    floors.append(bare(mask))
    return Figure("hook_to_masks", median(values), "ms", median(floors), 10, "value",
                  {"rounds": 2 * rounds, "threads": len(tids), "longest": round(max(values), 4)})
