"""The two pods and the busy container of `vmpin demo --noise`, on two CPUs of the machine, and what places them.

    pod shop, a VM of 3 vCPUs: web with an exclusive CPU (vCPU 2), logs in the shared pool (vCPU 1)
    pod noise, a VM of 3 vCPUs, two of them busy: one container in the shared pool
    pod plain, of runc: one busy container, whose cpuset confines it to the shared pool

Leaving it removes everything.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from glob import glob
from pathlib import Path

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ThreadId, ThreadRole, VmThread
from vmpin.errors import ThreadGone, VmpinError
from vmpin.features.demo.guest_memory import BUSY, SLEEPING
from vmpin.features.demo.needs import Tools
from vmpin.features.demo.probe_vm import ProbeVm
from vmpin.features.demo.stage import Stage, as_wanted, wait_until
from vmpin.features.demo.vm import DemoMasks
from vmpin.features.demo.worth import Setup
from vmpin.host.affinity import pin_seen
from vmpin.host.cpu_times import CpuLines, process_ran
from vmpin.host.procfs import Procfs

#: The vCPU that backs the exclusive CPU: vmpin takes the highest one (docs/placement.md). And the sidecar's.
WEB, LOGS = 2, 1


class NoiseStage(Stage):
    STEPS = 2
    VM = ProbeVm
    vm: ProbeVm

    def __init__(self, tools: Tools, sidecar_busy: bool, lifetime: float) -> None:
        """Prepare two VMs and the containers without a VM; none of them is started yet.
        :param lifetime: seconds after which the containers end by themselves."""
        super().__init__(tools)
        self.pool, self.exclusive = CpuSet((tools.cpus.first,)), CpuSet((list(tools.cpus)[-1],))
        self._sidecar_busy = sidecar_busy
        self._lifetime = f"{lifetime:.0f}"
        self._proc = Procfs()
        self._own_mask = CpuSet(os.sched_getaffinity(0))
        try:
            self.noise = ProbeVm(tools.qemu, f"{self.sandbox}-noise", self._subdirectory("noise"))
            self._noise_containers = self._containers(self.noise.sandbox, self.noise.directory, "noise")
            self._plain = self._containers(f"{self.sandbox}-plain", self._subdirectory("plain"), "plain")
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def _subdirectory(self, name: str) -> Path:
        made = self.directory / name
        made.mkdir()
        return made

    def _end_pods(self) -> None:
        with contextlib.suppress(VmpinError):
            self._pin(os.getpid(), [os.getpid()], self._own_mask)
        for containers in (self._plain, self._noise_containers, self.containers):
            containers.close()
        self.noise.stop()
        self.vm.stop()

    @property
    def both(self) -> CpuSet:
        """The CPUs of the story's node."""
        return self.pool | self.exclusive

    def start_pods(self) -> None:
        """The VMs start first, as their threads inherit the mask of this process. Then it takes that of the pool, for
        itself, the watcher and crun: a node's DaemonSets have it."""
        for vm in (self.vm, self.noise):
            vm.start()
        self._pin(os.getpid(), [os.getpid()], self.pool)
        self.start_watcher(self.pool)
        idle = ("sleep", self._lifetime)
        self.containers.run("web", self.exclusive, idle)
        self.containers.run("logs", self.pool, idle)
        self._noise_containers.run("batch", self.pool, idle)
        self._plain.run("burn", self.pool, ("timeout", self._lifetime, "sh", "-c", "while :; do :; done"))

    def place(self, setup: Setup) -> None:
        """Have the threads placed, and wait until /proc shows it. :raises VmpinError: if it does not in time."""
        if setup is Setup.VMPIN:
            self.vmpin("reconcile", shown_output=False)
        else:
            self.vmpin("unpin", "--every", shown_output=False)
            self._pin(self.vm.pid, self.vm.tids(), self.both)
            self._pin(self.noise.pid, self.noise.tids(), self.both if setup is Setup.UNPLACED else self.pool)
        wait_until(lambda: self.placed(setup), lambda: f"a thread is elsewhere than wanted: {self._masks()}")

    def placed(self, setup: Setup) -> bool:
        """Whether /proc shows the masks of the set-up."""
        shop, noise = self.vm.masks(), self.noise.masks()
        if setup is Setup.VMPIN:
            return as_wanted(shop, self.exclusive, self.pool) and as_wanted(noise, EMPTY, self.pool)
        return (set(_all(shop)) == {self.both}
                and set(_all(noise)) == {self.both if setup is Setup.UNPLACED else self.pool})

    def web_on(self) -> CpuSet:
        return self.vm.masks().vcpus[WEB]

    def _masks(self) -> str:
        return f"shop: {self.vm.masks()}; noise: {self.noise.masks()}"

    @contextlib.contextmanager
    def noisy(self) -> Iterator[None]:
        """Both working vCPUs of the noisy VM are busy, and the sidecar. The container of runc always is."""
        busy = [(self.noise, WEB), (self.noise, LOGS), *([(self.vm, LOGS)] if self._sidecar_busy else [])]
        for vm, vcpu in busy:
            vm.memory.run(vcpu, BUSY)
        try:
            yield
        finally:
            for vm, vcpu in busy:
                vm.memory.run(vcpu, SLEEPING)

    def web_thread(self) -> int:
        return next(tid for tid, vcpu in self.vm.tids().items() if vcpu == WEB)

    def ran(self) -> int:
        """The ns that the story's processes ran so far."""
        burning = {int(pid) for cgroup in glob(f"/sys/fs/cgroup/**/{self._plain.id('burn')}", recursive=True)
                   for pid in (Path(cgroup) / "cgroup.procs").read_text().split()}
        pids = {self.vm.pid, self.noise.pid, os.getpid(), self.watcher_pid, *burning}
        return sum(process_ran(pid) or 0 for pid in pids)

    def idle(self) -> int:
        """The ns that the node's CPUs were idle so far."""
        return sum(idle for idle, _, _ in CpuLines(self._proc, self.exclusive.first).of(self.both).values())

    def _pin(self, pid: int, tids: Iterable[int], cpus: CpuSet) -> None:
        """Set masks in place of a cgroup's cpuset: to the scheduler they are the same."""
        for tid in tids:
            stat = self._proc.thread_stat(pid, tid)
            if stat is not None:
                thread = VmThread(ThreadId(tid, stat.starttime), ThreadRole.EMULATOR, "", pid)
                with contextlib.suppress(ThreadGone):
                    pin_seen(self._proc, thread, cpus)


def _all(masks: DemoMasks) -> list[CpuSet]:
    return [*masks.vcpus.values(), *masks.others.values()]
