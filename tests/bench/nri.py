"""What the container runtime reports over NRI: what it costs an update of the runtime's, how soon the threads are
where an update wants them, and how long a full list takes.

The last two come from a runtime of the benchmark's own, as what is measured is the watcher; the first by a real
containerd, which is what waits.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import nri_node
from bench_node import Node, Watcher, container_of, cpus
from measure import CannotMeasure, Figure, median, progress, timed_ms
from newborns import Newborn, listening
from passes import set_masks
from vms import THREADS, Machine, compiled, idle_processes, sandbox_id

from vmpin.cli.control_client import ask
from vmpin.wire.nri_messages import MESSAGES

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "integration")]

from _pytest.outcomes import OutcomeException
from nri_peer import NriRuntime

PODS = 250
CONTAINERS = 2 * PODS
#: Seconds after which whatever is waited for counts as not coming.
_PATIENCE = 120.0
#: Between two looks at masks (s): what is measured is this much too long at most, and a CPU is left to the watcher.
_LOOK = 0.0001
#: Updates of one block, an even number: so many with the plugin, so many without.
_BLOCK = 10
#: Before an update (s): what the watcher makes of the one before is done then, the cgroup's own word too.
_REST = 0.03


# What an update of the runtime's costs


def update_cost(made: Node, blocks: int) -> Figure:
    """What a connected plugin adds to an UpdateContainerResources of containerd's: a runc container gets a CPU for
    itself, which drives the 16 vCPUs of a VM off it, and loses it.

    A watcher runs in every block of updates, in every second one without NRI. The floor is an update without it, the
    value the median of what each update took longer than the one beside it. `in_a_row`: the same of updates with no
    rest between them, when the watcher pins for the last one on the CPUs that the next one needs.
    """
    try:
        return _update_cost(made, blocks)
    except (OutcomeException, AssertionError) as err:  # of pytest's: the harness skips and fails
        raise CannotMeasure(str(err)) from err


def _update_cost(made: Node, blocks: int) -> Figure:
    # Here, as gRPC starts threads.
    from real_containerd import VM, Containerd

    pool, other = cpus()
    times: dict[tuple[str, float], list[float]] = {(nri, rest): [] for nri in ("on", "off") for rest in (_REST, 0.0)}
    progress("starting containerd, a VM of 16 vCPUs and a runc pod")
    with contextlib.redirect_stdout(sys.stderr), Containerd() as containerd:
        vm = containerd.pod("vm", VM, vcpus=16)
        vm.container("main", cpus=f"{pool},{other}")
        web = containerd.pod("web").container("main", cpus=str(pool))
        for number in range(2 * blocks):
            nri = "on" if number % 4 in (0, 3) else "off"
            made.forget()
            flags = {"watch.only": "*", "watch.nri": nri, "paths.nri": containerd.nri_socket}
            with _watching(made, containerd.enclosure, flags):
                if nri == "on":
                    _wait_for_sync(made)
                time.sleep(0.3)
                for each in range(-2, 2 * _BLOCK):
                    rest = _REST if each < _BLOCK else 0.0
                    time.sleep(rest)
                    spent = timed_ms(partial(web.update, cpus=str(pool if each % 2 else other)))
                    if each >= 0:
                        times[nri, rest].append(spent)
                # The last one was back in the pool. Without NRI the watcher knows of no container of the VM's.
                _until_set([int(tid) for tid in os.listdir(f"/proc/{vm.pid}/task")],
                           frozenset((pool, other) if nri == "on" else (pool,)))
                source = _status(made)["sources"]["nri"]
                if nri == "on" and source["events"] < 2 * _BLOCK + 2:
                    raise CannotMeasure(f"not every update was received: {source}")
    alone, in_a_row = (median([on - off for on, off in zip(times["on", rest], times["off", rest], strict=True)])
                       for rest in (_REST, 0.0))
    return Figure("nri_update_cost", alone, "ms", median(times["off", _REST]), 1, "value",
                  {"pairs": _BLOCK * blocks, "with_plugin": round(median(times["on", _REST]), 4),
                   "in_a_row": round(in_a_row, 4), "in_a_row_floor": round(median(times["off", 0.0]), 4)})


@contextlib.contextmanager
def _watching(made: Node, enclosure: Any, flags: Mapping[str, object]) -> Iterator[None]:
    watcher = Watcher(made, *[f"--set={key}={value}" for key, value in flags.items()], wrap=enclosure.enter)
    with contextlib.ExitStack() as stack:
        with enclosure.inside():
            stack.enter_context(watcher)
        yield


def _wait_for_sync(made: Node) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not (source := _status(made)["sources"]["nri"]).get("syncs"):
        if time.monotonic() > deadline:
            raise CannotMeasure(f"the watcher is not connected: {source}")
        time.sleep(0.02)


# A runtime of our own


@contextlib.contextmanager
def _connected(made: Node) -> Iterator[NriRuntime]:
    """A new watcher's connection, as far as Configure: it received no container yet, and has loaded what it needs."""
    path = made.path / "nri.sock"
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(nri_node.listening(path))
        stack.enter_context(Watcher(made, "--nri"))
        runtime = NriRuntime(listener.accept()[0])
        stack.callback(runtime.close)
        try:
            runtime.grant(runtime.request("RegisterPlugin"))
            runtime.configure()
            yield runtime
        except AssertionError as err:
            raise CannotMeasure(f"{err}: {(made.path / 'watch.log').read_text()[-500:]}") from err


def _status(made: Node) -> dict[str, Any]:
    found = ask(made.config(), {"op": "status"})
    if found is None:
        raise CannotMeasure(f"the watcher does not answer: {(made.path / 'watch.log').read_text()[-500:]}")
    return found


def _until_set(tids: Sequence[int], mask: frozenset[int]) -> None:
    """Until every thread has this mask."""
    deadline = time.monotonic() + _PATIENCE
    while any(os.sched_getaffinity(tid) != mask for tid in tids):
        if time.monotonic() > deadline:
            found = {frozenset(os.sched_getaffinity(tid)) for tid in tids}
            raise CannotMeasure(f"the threads have {found}, and not {mask}, after {_PATIENCE:g} s")
        time.sleep(_LOOK)


# From an update to the threads


def to_pinned(made: Node, machines: Sequence[Machine], rounds: int) -> Figure:
    """A container gets a CPU for itself, and loses it: from before the runtime reports the update that was done (the
    plugin has it a tenth of a millisecond later) until all threads of its VM are seen where it wants them.

    The slower direction counts. The runtime lists a container for each VM, and updates the first one's.
    `answered_ms`: what the runtime waits for.
    """
    made.forget()
    pool, other = cpus()
    machine = machines[0]
    tids = machine.tids()
    masks = {str(other): frozenset((other,)), f"{pool},{other}": frozenset((pool, other))}
    updates = {text: nri_node.update(machine.sandbox, machine.pid, text) for text in masks}
    values: dict[str, list[float]] = {text: [] for text in masks}
    answers: list[float] = []
    floors: list[float] = []

    def bare() -> float:
        """There and back, so that each call changes a mask and nothing is left changed."""
        first, second = masks.values()
        now = machine.masks()
        back = second if now == {first} else first
        return (timed_ms(lambda: set_masks(tids, back)) + timed_ms(lambda: set_masks(tids, *now))) / 2

    with _connected(made) as runtime:
        runtime.synchronize([nri_node.pod(each.sandbox, each.pid) for each in machines], [
            nri_node.container(each.sandbox, container_of(each.sandbox), each.pid, str(pool)) for each in machines])
        for number in range(-3, rounds):
            for text, raw in updates.items():
                time.sleep(0.02)
                begin = time.perf_counter()  # CLOCK_MONOTONIC
                stream = runtime.send("StateChange", raw)
                _until_set(tids, masks[text])
                spent = time.perf_counter() - begin
                runtime.answer(stream)
                if number < 0:
                    continue  # the first time the original masks are kept on disk
                values[text].append(spent * 1000)
                time.sleep(0.005)
                floors.append(bare())
                answers.append(timed_ms(partial(runtime.call, "StateChange", raw)))
        source = _status(made)["sources"]["nri"]
    if len(tids) != THREADS or source["events"] < 4 * rounds or source["dropped"]:
        raise CannotMeasure(f"{len(tids)} threads; NRI: {source}")
    exclusive, shared = (median(times) for times in values.values())
    return Figure("nri_to_pinned", max(exclusive, shared), "ms", median(floors), 5, "value",
                  {"sandboxes": len(machines), "threads": len(tids), "rounds": rounds,
                   "to_exclusive": round(exclusive, 4), "to_shared": round(shared, 4),
                   "longest": round(max(map(max, values.values())), 4), "answered_ms": round(median(answers), 4)})


def create_to_pinned(made: Node, machines: Sequence[Machine], rounds: int) -> Figure:
    """A container with a CPU of its own is created: from before the runtime asks for it (CreateContainer, and then
    PostCreateContainer) until all threads of its VM, which has its vCPUs, are seen where that wants them. Kata creates
    the task after that. `vcpu_to_pinned` has the VM that gets its vCPU later.

    `calls_ms`: what the runtime waits for, of that.
    """
    made.forget()
    pool, other = cpus()
    machine = machines[0]
    tids = machine.tids()
    there, back = frozenset((other,)), frozenset((pool,))
    values: list[float] = []
    calls: list[float] = []
    floors: list[float] = []
    with _connected(made) as runtime:
        runtime.synchronize([nri_node.pod(each.sandbox, each.pid) for each in machines], [])
        _until_set(tids, back)
        for number in range(-3, rounds):
            requests = nri_node.creation(machine.sandbox, f"c{number + 1000}", machine.pid, str(other))
            time.sleep(0.02)
            begin = time.perf_counter()
            for method, raw in requests.items():
                runtime.call(method, raw)
            called = time.perf_counter() - begin
            _until_set(tids, there)
            spent = time.perf_counter() - begin
            runtime.call("RemoveContainer", requests["CreateContainer"])
            _until_set(tids, back)
            if number >= 0:
                values.append(spent * 1000)
                calls.append(called * 1000)
                time.sleep(0.005)
                floors.append((timed_ms(lambda: set_masks(tids, there)) + timed_ms(lambda: set_masks(tids, back))) / 2)
        source = _status(made)["sources"]["nri"]
    if len(tids) != THREADS or source["events"] < 3 * rounds or source["dropped"]:
        raise CannotMeasure(f"{len(tids)} threads; NRI: {source}")
    return Figure("nri_create_to_pinned", median(values), "ms", median(floors), 100, "value",
                  {"sandboxes": len(machines), "threads": len(tids), "rounds": rounds,
                   "longest": round(max(values), 4), "calls_ms": round(median(calls), 4)})


def vcpu_to_pinned(made: Node, machines: Sequence[Machine], build: Path, rounds: int) -> Figure:
    """The vCPU comes after the container, as Kata plugs it in: a container with a CPU of its own is created in a VM
    with one vCPU, and after its PostCreateContainer the second vCPU's thread is born. From before pthread_create(3)
    until that thread sees its mask, on the container's CPU alone; its creator and the first vCPU stay on the pool.

    A VM for each round, which the watcher finds by its birth. The floor knows nothing, and sets the same mask. The VM
    has a vCPU before, as Kata's have: of one whose only vCPU is there before its container is known, that counts as
    the boot vCPU, and gets no CPU of its own until the container has started.
    """
    made.forget()
    pool, other = cpus()
    binary = compiled("newborn", build, "-pthread")
    values: list[float] = []
    with _connected(made) as runtime:
        runtime.synchronize([nri_node.pod(each.sandbox, each.pid) for each in machines], [])
        for number in range(-3, rounds):
            with Newborn(made, binary) as vm:
                _until_its_vcpu_is_known(made, vm.machine.sandbox)
                _until_set(vm.machine.tids(), frozenset((pool,)))
                requests = nri_node.creation(vm.machine.sandbox, f"v{number + 1000}", vm.machine.pid, str(other))
                for method, raw in requests.items():
                    runtime.call(method, raw)
                spent = vm.birth(other, "CPU 1/KVM")
                if number >= 0:
                    values.append(spent / 1000)
                runtime.call("RemoveContainer", requests["CreateContainer"])
        source = _status(made)["sources"]["nri"]
    if source["events"] < 3 * rounds or source["dropped"]:
        raise CannotMeasure(f"NRI: {source}")
    with Newborn(made, binary) as vm, listening(vm.machine.pid, other):
        vm.born_outside()
        floors = [vm.born_outside() / 1000 for _ in range(rounds)]
    return Figure("nri_vcpu_to_pinned", median(values), "ms", median(floors), 100, "value",
                  {"sandboxes": len(machines) + 1, "rounds": rounds, "longest": round(max(values), 4)})


def _until_its_vcpu_is_known(made: Node, sandbox: str) -> None:
    """Its mask does not show that: the thread inherits the mask of its process, which may be placed already. A first
    vCPU that the watcher comes to know after the container would count as the container's."""
    deadline = time.monotonic() + _PATIENCE
    while not any(thread["role"] == "vcpu" for each in _status(made)["sandboxes"] if each["id"] == sandbox
                  for thread in each["threads"]):
        if time.monotonic() > deadline:
            raise CannotMeasure(f"the vCPU of {sandbox} is not known")
        time.sleep(0.02)


# A full list


def sync(made: Node, machines: Sequence[Machine], rounds: int) -> Figure:
    """A list of 500 containers to a watcher that knows none: from the moment before the first part is sent until
    what the very last container wants is done, with which all is taken in. Some pods are VMs, the others runc's.
    """
    pool, other = cpus()
    with idle_processes(PODS - len(machines)) as pids:
        pods = [(sandbox_id(1000 + number), pid) for number, pid in enumerate(pids)]
        pods += [(machine.sandbox, machine.pid) for machine in machines]
        last = machines[-1]
        parts = nri_node.parts(pods, str(pool), str(other))
        values: list[float] = []
        floors: list[float] = []
        for number in range(-1, rounds):
            made.forget()
            with _connected(made) as runtime:
                if last.masks() == {frozenset((other,))}:
                    raise CannotMeasure("the last VM is where it should be before anything was reported")
                tids = last.tids()
                begin = time.perf_counter()
                for part in parts:
                    runtime.call("Synchronize", part)
                _until_set(tids, frozenset((other,)))
                spent = time.perf_counter() - begin
                _check(_status(made), last.sandbox, len(machines))
            if number >= 0:
                values.append(spent * 1000)
                floors.append(timed_ms(lambda: [MESSAGES.decode("SynchronizeRequest", part) for part in parts]))
    return Figure("nri_sync_500", median(values), "ms", median(floors), 200, "value",
                  {"pods": PODS, "containers": CONTAINERS, "vms": len(machines), "parts": len(parts),
                   "bytes": sum(map(len, parts)), "rounds": rounds, "longest": round(max(values), 4)})


def _check(status: dict[str, Any], sandbox: str, vms: int) -> None:
    """That it is all known."""
    source = status["sources"]["nri"]
    owners = {owner["sandbox"] for owner in status["node"]["owners"]}
    containers = [len(each["containers"]) for each in status["sandboxes"]]
    if source["syncs"] != 1 or source["dropped"] or owners != {sandbox} or sum(containers) < 2 * vms:
        raise CannotMeasure(f"NRI: {source}, owners: {owners}, {sum(containers)} containers of {len(containers)} VMs")
