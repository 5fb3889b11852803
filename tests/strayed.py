"""A node whose VMMs are shells that never sleep, on a real reconciler: one thread each, that a test can move."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from need import lacking

from vmpin.config import loading as settings
from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VmThread
from vmpin.domain.sandbox_placement import Placement, Verdict
from vmpin.features.common.cpu_times import Schedstat
from vmpin.host.procfs import Procfs
from vmpin.reconcile.node_state import NodeState
from vmpin.reconcile.reconciler import Reconciler
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.virtual_machine import Process, Vm

SPIN = "while :; do :; done"


def two_places() -> tuple[CpuSet, CpuSet]:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        lacking("needs two CPUs")
    return CpuSet(cpus[:1]), CpuSet(cpus[1:2])


def thread_of(pid: int, tid: int | None = None) -> VmThread:
    stat = Procfs().thread_stat(pid, tid or pid)
    assert stat is not None
    return VmThread(ThreadId(tid or pid, stat.starttime), ThreadRole.EMULATOR, stat.comm, pid)


class Spinners:
    """`here` is where everything is to run unless said otherwise, `there` the other CPU."""

    def __init__(self, root: Path, **flags: str) -> None:
        self.root = root
        self.here, self.there = two_places()
        self.prefix = f"t{secrets.token_hex(5)}"
        self.flags = {key.replace("_", ".", 1): value for key, value in flags.items()}
        self.reconciler = self.again()
        self.children: dict[SandboxId, subprocess.Popen[bytes]] = {}

    @property
    def node_state(self) -> NodeState:
        return self.reconciler.node_state

    def again(self) -> Reconciler:
        """A new reconciler, as after a restart of the watcher."""
        paths = {f"paths.{name}": str(self.root / name) for name in ("run", "kata_go", "kata_rs", "kubelet", "nri")}
        (self.root / "run").mkdir(exist_ok=True)
        self.reconciler = Reconciler(settings.load(None, {}, {**paths, "watch.only": f"{self.prefix}*", **self.flags}))
        return self.reconciler

    def vm(self, name: str = "a", code: str = SPIN) -> Vm:
        """A VMM that runs `code`, and is on its place."""
        sandbox = SandboxId(f"{self.prefix}{name}")
        child = self.children[sandbox] = subprocess.Popen(["sh", "-c", code])
        os.sched_setaffinity(child.pid, self.here.frozen())
        self.place(sandbox, self.here)
        return self.meet(sandbox)

    def meet(self, sandbox: SandboxId) -> Vm:
        pid = self.children[sandbox].pid
        main = thread_of(pid)
        vm = Vm(sandbox, QEMU, Process(pid, main.id, ThreadRole.EMULATOR, ["qemu"]))
        vm.vmm.threads = {pid: main}
        self.node_state.inventory.vms[sandbox] = vm
        return vm

    def place(self, sandbox: SandboxId, cpus: CpuSet | None) -> None:
        """Decide that its threads are to be there; sets no mask."""
        self.node_state.placement_cache.placements[sandbox] = Placement(
            sandbox, cpus or self.here | self.there, Verdict.FLOATING, (), (),
            {role: cpus for role in ThreadRole if role is not ThreadRole.VCPU}, {})
        self.node_state.pinner.recheck(sandbox)

    def repair(self, vm: Vm) -> int:
        """One pass over a VM's masks; how many were set."""
        pinner = self.node_state.pinner
        operations = pinner.operations(vm, self.node_state.placements[vm.sandbox])
        return len(pinner.set_masks(operations, self.node_state.placements))

    def move(self, vm: Vm, cpus: CpuSet) -> None:
        """As another hand does."""
        os.sched_setaffinity(vm.vmm.pid, cpus.frozen())

    def end(self, vm: Vm) -> None:
        self.children[vm.sandbox].kill()
        self.children[vm.sandbox].wait()
        self.node_state.inventory.vms.pop(vm.sandbox, None)

    def close(self) -> None:
        for child in self.children.values():
            child.kill()
            child.wait()


@contextmanager
def spinners(root: Path, **flags: str) -> Iterator[Spinners]:
    """:param flags: keys of the configuration, with an underscore for the dot."""
    made = Spinners(root, **flags)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def burner_on(cpus: CpuSet, directory: Path) -> Iterator[tuple[int, str]]:
    """A process that never sleeps, on these CPUs: its pid, and its name, which no process of another test has."""
    name = f"b{secrets.token_hex(6)}"
    shutil.copy("/bin/sh", directory / name)
    with subprocess.Popen([directory / name, "-c", SPIN]) as child:
        os.sched_setaffinity(child.pid, cpus.frozen())
        try:
            yield child.pid, name
        finally:
            child.kill()


def booked(pid: int) -> int:
    """Nanoseconds that the kernel has booked to a process's main thread. A sample reads that, and no clock: while the
    thread runs, it is up to a tick behind."""
    ran = Schedstat().ran(pid, pid)
    assert ran is not None
    return ran.ran


def run_for(seconds: float, pid: int) -> None:
    """Until the kernel has booked so much more to a process's main thread, whatever else the machine does."""
    end = booked(pid) + int(seconds * 1e9)
    while booked(pid) < end:
        time.sleep(0.01)
