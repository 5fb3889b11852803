"""The measurement of `vmpin demo --noise`: one container's vCPU beside noise, under each placement in turn.

In each round every set-up is measured, so that a change of the machine meanwhile meets all of them.
"""

import os
import platform
import re
import time
from datetime import UTC, datetime
from pathlib import Path

from vmpin.domain.terminal import number_of
from vmpin.errors import VmpinError
from vmpin.features.demo import children
from vmpin.features.demo.guest_memory import BUSY, SLEEPING, Tick, ticks_per_second
from vmpin.features.demo.kata_pinning import kata_pinning
from vmpin.features.demo.noise_stage import WEB, NoiseStage
from vmpin.features.demo.stage import PATIENCE
from vmpin.features.demo.vm import VCPUS
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
from vmpin.host.cpu_times import Schedstat

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
                                 "another program on this machine sets masks; vmpin doctor looks for it")
            stage.print(f"round {number}, {setup.heading}, on CPU {stage.web_on()}: {_line(reading)}")
            readings.append(reading)
    return Worth(
        Circumstances(
            kernel=_kernel(), qemu=_qemu_version(stage.tools.qemu, stage.directory / "version.txt"),
            accelerator=accelerator, processor=_processor(), shared_cpu=stage.pool.first,
            exclusive_cpu=stage.exclusive.first, rounds=rounds, seconds=seconds, sidecar_busy=sidecar_busy,
            load=round(load, 2), date=datetime.now(UTC).date().isoformat()),
        tuple(readings), kata_pinning(range(VCPUS), stage.both))


def longest(seconds: float, rounds: int) -> float:
    """A bound for the seconds that all of it takes, on a loaded machine, too."""
    return 5 * PATIENCE + rounds * len(Setup) * (seconds + 2 * PATIENCE)


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
        used = self._used()
        first, begin, moved = self._memory.recorded(WEB), self._ran(), self._migrations()
        time.sleep(busy)
        end, moved_then = self._ran(), self._migrations()
        others = _others(used, self._used())
        gaps = self._since(first)
        wall = end[0] - begin[0]
        woken = self._wake_ups(seconds - busy) if asleep else None
        self._memory.run(WEB, SLEEPING)
        return NoiseReading(
            setup, min(100.0, 100 * (end[1] - begin[1]) / wall), min(100.0, 100 * (end[2] - begin[2]) / wall),
            max(gaps, default=0.0),
            None if moved is None or moved_then is None else (moved_then - moved) * 60e9 / wall, woken, others)

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

    def _used(self) -> tuple[int, int]:
        """CPU time of the two CPUs that something else used or might have used so far, and the clock, in ns."""
        moment = time.monotonic_ns()
        return 2 * moment - self._stage.idle() - self._stage.ran(), moment

    def _migrations(self) -> int | None:
        return self._schedstat.migrations(self._pid, self._tid)


def _others(begin: tuple[int, int], end: tuple[int, int]) -> float:
    """Percent of two CPUs."""
    return max(0.0, 100 * (end[0] - begin[0]) / (2 * (end[1] - begin[1])))


def _line(reading: NoiseReading) -> str:
    woken = reading.wake_ups
    return (f"{reading.share:.1f} % of a CPU, longest gap {reading.longest_gap:.1f} ms"
            + ("" if woken is None else f", wake-ups late by {woken.median:.2f} ms, at most {woken.longest:.1f} ms")
            + (f"; others took {reading.others:.0f} % of the CPUs" if reading.others > DISTURBED else ""))


def _kernel() -> str:
    """The version without the builder's name."""
    found = re.match(r"[0-9]+(\.[0-9]+)*", platform.release())
    return found[0] if found else platform.release()


def _qemu_version(program: str, shown: Path) -> str:
    with shown.open("wb") as file:
        children.run([program, "--version"], PATIENCE, stdout=file)
    found = re.search(r"version ([0-9.]+)", shown.read_text("utf-8", "replace"))
    return found[1] if found else "unknown"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
