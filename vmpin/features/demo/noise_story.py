"""The measurement of `vmpin demo --noise`: one container's vCPU beside noise, under each placement in turn.

On two CPUs of the machine:

    pod shop, a VM of 3 vCPUs: web with an exclusive CPU (vCPU 2), logs in the shared pool (vCPU 1)
    pod noise, a VM of 3 vCPUs, two of them busy: one container in the shared pool
    pod plain, of runc: one busy container, whose cpuset confines it to the shared pool

In each round every set-up is measured, so that a change of the machine meanwhile meets all of them.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from glob import glob
from pathlib import Path

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ThreadId, ThreadRole, VmThread
from vmpin.domain.terminal import number_of
from vmpin.errors import AffinityError, ThreadGone, VmpinError
from vmpin.features.common.cpu_times import CpuLines, Schedstat, process_ran
from vmpin.features.demo import children, other_programs
from vmpin.features.demo.needs import Tools
from vmpin.features.demo.probe_vm import BUSY, SLEEPING, ProbeVm, Tick, ticks_per_second
from vmpin.features.demo.story import PATIENCE, Stage, as_wanted, wait_until
from vmpin.features.demo.vm import DemoMasks
from vmpin.features.demo.worth import (
    DISTURBED,
    LEAST_GAP,
    SLEEP,
    Circumstances,
    NoiseReading,
    Setup,
    WakeUps,
    Worth,
    wake_ups,
)
from vmpin.host.affinity import pin_threads
from vmpin.host.procfs import Procfs
from vmpin.named_tuple import NamedTuple

#: The vCPU that backs the exclusive CPU: vmpin takes the highest one (docs/placement.md). And the sidecar's.
WEB, LOGS = 2, 1


class NoiseStage(Stage):
    """The pods, and what places them. Leaving it removes everything."""

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
        directory = self.directory / name
        directory.mkdir()
        return directory

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
            self.vmpin("repin", shown_output=False)
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

    def _pids(self) -> set[int]:
        """The story's processes."""
        burning = {int(pid) for cgroup in glob(f"/sys/fs/cgroup/**/{self._plain.id('burn')}", recursive=True)
                   for pid in (Path(cgroup) / "cgroup.procs").read_text().split()}
        return {self.vm.pid, self.noise.pid, os.getpid(), self.watcher_pid, *burning}

    def ran(self) -> int:
        """The ns that the story's processes ran so far."""
        return sum(process_ran(pid) or 0 for pid in self._pids())

    def idle_and_stolen(self) -> tuple[int, int]:
        """The ns that the node's CPUs were idle so far, and that the hypervisor took from them."""
        times = CpuLines(self._proc, self.exclusive.first).of(self.both).values()
        return sum(idle for idle, _, _ in times), sum(steal for _, _, steal in times)

    def others_ran(self) -> other_programs.Runs:
        return other_programs.runs(self._proc, self._pids())

    def others_by(self, before: other_programs.Runs) -> dict[str, float]:
        """Percent of the node's CPUs by other program, since then."""
        return other_programs.shares(before, self.others_ran(), self.both, self._name)

    def _name(self, pid: str) -> str:
        stat = self._proc.stat(pid)
        return "" if stat is None else stat.comm

    def _pin(self, pid: int, tids: Iterable[int], cpus: CpuSet) -> None:
        """Set masks in place of a cgroup's cpuset: to the scheduler they are the same."""
        for tid in tids:
            stat = self._proc.thread_stat(pid, tid)
            if stat is not None:
                thread = VmThread(ThreadId(tid, stat.starttime), ThreadRole.EMULATOR, "", pid)
                [outcome] = pin_threads(self._proc, [(thread, cpus)])
                if isinstance(outcome, AffinityError) and not isinstance(outcome, ThreadGone):
                    raise outcome


def _all(masks: DemoMasks) -> list[CpuSet]:
    return [*masks.vcpus.values(), *masks.others.values()]


#: Seconds between a change of placement or load and the measurement: the kernel balances loads by then.
_SETTLE = 0.5
#: The part of a measurement in which the container is busy; in the rest, with KVM, it sleeps and wakes up.
_BUSY_PART = 2 / 3
#: Nanoseconds between which a thread's run time and the clock have to be read.
_AT_ONCE = 200_000


def play(stage: NoiseStage, seconds: float, rounds: int, sidecar_busy: bool) -> Worth:
    """Measure the container under each placement, in rounds, and return all readings.
    :param seconds: of each measurement. :raises VmpinError: if a placement does not take effect or is disturbed."""
    load = os.getloadavg()[0]
    stage.step("two VMs, the watcher and the containers start")
    stage.start_pods()
    vm = stage.vm
    accelerator = "KVM" if vm.kvm and stage.noise.kvm else "TCG"
    stage.print(f"by {accelerator}" if vm.kvm else f"by TCG: {vm.why}; wake-ups in the guest are not measured")
    stage.print(f"CPU {stage.exclusive} belongs to container web of pod shop, CPU {stage.pool} is the shared pool")
    sidecar = "logs in the same VM, " if sidecar_busy else ""
    stage.print(f"busy beside web: {sidecar}2 vCPUs of pod noise, a container of runc")

    stage.step(f"web is measured for {seconds:g} s under each placement, {number_of(rounds, 'time')}")
    probe = _Probe(stage)
    readings = []
    for number in range(1, rounds + 1):
        for setup in Setup:
            stage.place(setup)
            with stage.noisy():
                reading = probe.measure(setup, seconds, asleep=accelerator == "KVM")
            if not stage.placed(setup):
                raise VmpinError(f"a thread was moved during the measurement ({setup.heading})",
                                 "another program on this machine sets masks; `vmpin doctor` looks for it")
            stage.print(f"round {number}, {setup.heading}, on CPU {stage.web_on()}: {_line(reading)}")
            readings.append(reading)
    return Worth(
        Circumstances(
            kernel=_kernel(), qemu=_qemu_version(stage.tools.qemu, stage.directory / "version.txt"),
            accelerator=accelerator, processor=_processor(), shared_cpu=stage.pool.first,
            exclusive_cpu=stage.exclusive.first, rounds=rounds, seconds=seconds, sidecar_busy=sidecar_busy,
            load=round(load, 2), date=datetime.now(UTC).date().isoformat()),
        tuple(readings))


def longest(seconds: float, rounds: int) -> float:
    """A bound for the seconds that all of it takes, on a loaded machine, too."""
    return 5 * PATIENCE + rounds * len(Setup) * (seconds + 2 * PATIENCE)


class _Used(NamedTuple):
    """Times so far, in ns: the clock; of both CPUs what others used, the hypervisor too, up to a constant; of that the
    hypervisor."""

    moment: int
    by_others: int
    stolen: int


class _Probe:
    """Measures the thread of one vCPU. The guest's counter is compared with the clock from the first tick on, so that
    the frequency is the more exact the longer it lasts."""

    def __init__(self, stage: NoiseStage) -> None:
        self._stage = stage
        self._memory = memory = stage.vm.memory
        self._pid, self._tid = stage.vm.pid, stage.web_thread()
        self._schedstat = Schedstat()
        memory.run(WEB, BUSY)
        self._begin = self._tick()
        time.sleep(_SETTLE)
        self._least = round(LEAST_GAP / 1e3 * ticks_per_second(self._begin, self._tick()))
        memory.run(WEB, SLEEPING)

    def measure(self, setup: Setup, seconds: float, asleep: bool) -> NoiseReading:
        busy = seconds * (_BUSY_PART if asleep else 1)
        self._memory.run(WEB, BUSY, least=self._least)
        time.sleep(_SETTLE)
        ran, used = self._stage.others_ran(), self._used()
        first, begin, moved = self._memory.recorded(WEB), self._ran(), self._migrations()
        time.sleep(busy)
        end, moved_then = self._ran(), self._migrations()
        used_then = self._used()
        gaps = self._since(first)
        wall = end[0] - begin[0]
        others, others_by = self._others(used, used_then, ran)
        woken = self._wake_ups(seconds - busy) if asleep else None
        self._memory.run(WEB, SLEEPING)
        return NoiseReading(
            setup, min(100.0, 100 * (end[1] - begin[1]) / wall), min(100.0, 100 * (end[2] - begin[2]) / wall),
            max(gaps, default=0.0),
            None if moved is None or moved_then is None else (moved_then - moved) * 60e9 / wall,
            woken, others, others_by)

    def _wake_ups(self, seconds: float) -> WakeUps | None:
        self._memory.run(WEB, SLEEPING, sleep_ns=round(SLEEP * 1e6))
        time.sleep(_SETTLE)
        first = self._memory.recorded(WEB)
        time.sleep(seconds)
        return wake_ups(self._since(first))

    def _since(self, first: int) -> list[float]:
        """The gaps or sleeps since then, in ms, with the one that lasts just now."""
        frequency = ticks_per_second(self._begin, self._tick())
        return [ticks * 1e3 / frequency
                for ticks in self._memory.ticks(WEB, first, self._memory.recorded(WEB))]

    def _tick(self) -> Tick:
        return self._memory.next_tick(WEB, PATIENCE)

    def _ran(self) -> tuple[int, int, int]:
        """A moment of the monotonic clock, and the ns that the thread had run and waited by then. They are read again
        if this process lost the CPU in between."""
        for left in reversed(range(100)):
            before = time.monotonic_ns()
            ran = self._schedstat.ran(self._pid, self._tid)
            if ran is None:
                raise VmpinError("the VM has ended")
            if time.monotonic_ns() - before < _AT_ONCE or not left:
                return before, ran.ran, ran.waited
        raise AssertionError("unreachable")

    def _used(self) -> _Used:
        moment = time.monotonic_ns()
        idle, stolen = self._stage.idle_and_stolen()
        return _Used(moment, 2 * moment - idle - self._stage.ran(), stolen)

    def _others(self, begin: _Used, end: _Used, ran: other_programs.Runs) -> tuple[float, dict[str, float]]:
        """Percent of the two CPUs that others used, and by program where that is too much."""
        ns = end.moment - begin.moment
        percent = min(100.0, max(0.0, 100 * (end.by_others - begin.by_others) / (2 * ns)))
        if percent <= DISTURBED:
            return percent, {}
        stolen = round(100 * (end.stolen - begin.stolen) / (2 * ns), 1)
        by = self._stage.others_by(ran) | ({"the hypervisor": stolen} if stolen else {})
        return percent, dict(sorted(by.items(), key=lambda item: -item[1]))

    def _migrations(self) -> int | None:
        return self._schedstat.migrations(self._pid, self._tid)


def _line(reading: NoiseReading) -> str:
    woken = reading.wake_ups
    return (f"{reading.share:.1f} % of a CPU, longest gap {reading.longest_gap:.1f} ms"
            + ("" if woken is None else f", wake-ups late by {woken.median:.2f} ms, at most {woken.longest:.1f} ms")
            + (f"; others took {reading.others:.0f} % of the CPUs" if reading.disturbed else "")
            + "".join(f", {name} {share:.0f} %" for name, share in list(reading.others_by.items())[:3]))


def _kernel() -> str:
    """The version without the builder's name."""
    version = re.match(r"[0-9]+(\.[0-9]+)*", platform.release())
    return version[0] if version else platform.release()


def _qemu_version(program: str, output: Path) -> str:
    with output.open("wb") as file:
        children.run([program, "--version"], PATIENCE, stdout=file)
    version = re.search(r"version ([0-9.]+)", output.read_text("utf-8", "replace"))
    return version[1] if version else "unknown"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
