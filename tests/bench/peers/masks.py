"""Part: all masks of a VM of 16 vCPUs and two iothreads are set and read back, by vmpin and by others, in turn."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import psutil
from bench_node import Bundle, Node, Watcher, cpus, node, write_kata
from measure import CannotMeasure, environment, process_ms, timed_ms
from passes import set_masks, settled
from processes import check_root, hook_command
from vms import PREFIX, Machine, qemus, sandbox_id

from peers.figures import VMPIN, Measure
from peers.libvirt import Libvirt, session
from vmpin.reconcile.intake import take_hook
from vmpin.runtime.oci import parse_hook

_VCPUS, _IOTHREADS = 16, 2
_PATIENCE = 120.0
Mask = frozenset[int]
#: Sets the masks of the VM, and returns milliseconds; what is prepared before does not count.
Setter = Callable[[Mask], float]


class Vm:
    """A VM, and the report that vmpin needs of a container's CPUs in it. vmpin keeps VMs of its own, with a node that
    sees this one alone: where others change masks again and again, it takes that for drift, and backs off."""

    def __init__(self, machine: Machine, command: Path, stack: contextlib.ExitStack) -> None:
        self.machine = machine
        self.tids = machine.tids()
        self._command, self._stack = command, stack

    def setters(self, tools: Path) -> dict[str, Setter]:
        """Of all that keep nothing in mind."""
        setters: dict[str, Setter] = {
            "bare system calls": lambda mask: timed_ms(lambda: set_masks(self.tids, mask)),
            "vmpin repin": self._reconcile(), "psutil": self._psutil}
        if taskset := shutil.which("taskset"):
            setters["taskset, one for each thread"] = lambda mask: _run([
                [taskset, "-cp", _list(mask), str(tid)] for tid in self.tids])
            setters["taskset --all-tasks"] = lambda mask: _run([
                [taskset, "-acp", _list(mask), str(self.machine.pid)]])
        if (affinity := tools / "venv/bin/qemu-affinity").exists():
            setters["qemu-affinity"] = lambda mask: _run([[
                str(affinity), str(self.machine.pid), "-p", _list(mask), "-t", f"*:{_list(mask)}"]])
        return setters

    def _node(self) -> Node:
        made = self._stack.enter_context(node(self._command))
        made.file.write_text(made.file.read_text().replace(f"{PREFIX}*", self.machine.sandbox))
        return made

    def passes(self) -> Setter:
        """A pass of a watcher that is there, from the hook's message."""
        made = self._node()
        bundle = Bundle(made, self.machine)
        reconciler = settled(made, [self.machine])

        def setter(mask: Mask) -> float:
            bundle.write(_list(mask))
            raw = bundle.message()
            spent = timed_ms(lambda: reconciler.reconcile(take_hook(reconciler.node_state, parse_hook(raw)) or ()))
            if reconciler.node_state.unsaved:
                reconciler.node_state.save()  # the watcher does that later
            return spent

        return setter

    def hook(self) -> Setter:
        """The hook is started as a runtime starts it, and a watcher does the rest."""
        made = self._node()
        bundle = Bundle(made, self.machine)
        bundle.write(_list(self.machine.masks().pop()))
        self._stack.enter_context(Watcher(made, "--set", "watch.resync_seconds=600"))

        def setter(mask: Mask) -> float:
            bundle.write(_list(mask))
            begin = time.perf_counter()
            process_ms(hook_command(made), environment(), bundle.state())
            while self.machine.masks() != {mask}:
                if time.perf_counter() > begin + _PATIENCE:
                    raise CannotMeasure(f"the hook's message set {self.machine.masks()}, not {set(mask)}")
                time.sleep(0.0001)
            return (time.perf_counter() - begin) * 1000

        return setter

    def _reconcile(self) -> Setter:
        """The command, without a watcher: it finds the VM and its container by Kata's files."""
        made = self._node()
        write_kata(made, [self.machine])
        path = made.path / "vc/sbs" / self.machine.sandbox / "persist.json"

        def setter(mask: Mask) -> float:
            content = json.loads(path.read_text())
            content["Config"]["ContainerConfigs"][1]["Resources"]["cpu"]["cpus"] = _list(mask)
            path.write_text(json.dumps(content))
            return process_ms(made.command_line("repin"), environment())

        return setter

    def _psutil(self, mask: Mask) -> float:
        """What a script has to do: its threads' names show which is a vCPU."""
        def work() -> None:
            for listed in psutil.Process(self.machine.pid).threads():
                thread = psutil.Process(listed.id)
                thread.name()
                thread.cpu_affinity(list(mask))
                thread.cpu_affinity()

        return timed_ms(work)


def masks(command: Path, tools: Path, rounds: int) -> tuple[list[Measure], list[str]]:
    """:returns: the measure, and a sentence for each peer that is missing."""
    check_root()
    pool, other = cpus()
    both = frozenset((pool, other)), frozenset((other,))
    with contextlib.ExitStack() as stack:
        machines = stack.enter_context(qemus(3, _VCPUS, _IOTHREADS))
        for machine in machines:
            machine.set_mask(both[0])
        vm, of_passes, of_hook = (Vm(machine, command, stack) for machine in machines)
        pinned = {VMPIN: (of_passes.tids, of_passes.passes()),
                  "vmpin, from the hook's start": (of_hook.tids, of_hook.hook()),
                  **{name: (vm.tids, setter) for name, setter in vm.setters(tools).items()}}
        skipped = [f"{name}, which is not installed: {how}" for name, how in (
            ("qemu-affinity", "make bench-peers does that"), ("taskset --all-tasks", "it is in util-linux"))
            if name not in pinned]
        unpacked = tools / "debian"
        if (unpacked / "usr/sbin/libvirtd").exists():
            libvirt = stack.enter_context(session(unpacked, f"sandbox-{sandbox_id(3)}", _VCPUS, _IOTHREADS))
            pinned["virsh, one for all masks"] = libvirt.tids(), partial(_virsh, libvirt, libvirt.batch)
            pinned["virsh, one for each thread"] = libvirt.tids(), partial(_virsh, libvirt, libvirt.single)
        else:
            skipped.append("libvirt, which is not unpacked: make bench-peers does that")
        times = in_rounds(rounds, pinned, both)
    return [Measure(f"all masks of a VM of {_VCPUS} vCPUs", "ms", times)], skipped


def in_rounds(rounds: int, pinned: Mapping[str, tuple[Sequence[int], Setter]],
              both: tuple[Mask, Mask]) -> dict[str, list[float]]:
    """Every subject once a round, first once for nothing. Before each the threads have the other mask, which the
    subject set the last time; after it all have the one that it was to set."""
    times: dict[str, list[float]] = {name: [] for name in pinned}
    for number in range(-1, rounds):
        mask, opposite = both[number % 2], both[1 - number % 2]
        for name, (tids, setter) in pinned.items():
            set_masks(tids, opposite)
            spent = setter(mask)
            wrong = sum(os.sched_getaffinity(tid) != mask for tid in tids)
            if wrong:
                raise CannotMeasure(f"{name} left {wrong} of {len(tids)} threads without their mask")
            if number >= 0:
                times[name].append(spent)
    return times


def _virsh(libvirt: Libvirt, commands: Callable[[str], list[list[str]]], mask: Mask) -> float:
    argvs = commands(_list(mask))
    return timed_ms(lambda: libvirt.run(argvs))


def _run(argvs: Sequence[list[str]]) -> float:
    return sum(process_ms(argv, environment()) for argv in argvs)


def _list(mask: Mask) -> str:
    return ",".join(map(str, sorted(mask)))
