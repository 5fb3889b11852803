"""The result of `vmpin demo --noise`: readings of one container's vCPU under each placement, their summary, and what
Kata's own pinning would have done. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

#: Milliseconds: shorter gaps are not recorded. Without hardware virtualization a turn of the guest's loop takes 0.03.
LEAST_GAP = 0.1
#: Milliseconds that the sleeping container asks for, as cyclictest by default.
SLEEP = 1.0
#: Percent of the two CPUs: a reading during which other programs of the machine took more does not count.
DISTURBED = 4.0
#: A sleep that was shorter than so much of what was asked for: the guest's timer has another frequency than 1 GHz.
_TOO_SHORT = 0.9


class Setup(StrEnum):
    """What places the VMs' threads. The value is for JSON."""

    #: Nothing: their threads may run on every CPU of the node.
    UNPLACED = "unplaced"
    #: The cpuset of each pod's cgroup, to which Kata confines the VM: the CPUs of all the pod's containers together.
    KATA = "kata-cpusets"
    VMPIN = "vmpin"

    @property
    def heading(self) -> str:
        return "Kata's cpusets" if self is Setup.KATA else self.value


@dataclass(frozen=True)
class WakeUps:
    """How late a sleeping vCPU ran again, in milliseconds."""

    count: int
    median: float
    percentile_99: float
    longest: float


@dataclass(frozen=True)
class NoiseReading:
    """One measurement of the container's vCPU. Times are in milliseconds."""

    setup: Setup
    #: Percent of the wall time that its thread ran while it was busy, and that it waited for a CPU.
    share: float
    waited: float
    #: 0 where every gap was shorter than LEAST_GAP.
    longest_gap: float
    #: None where the kernel does not count them.
    migrations_per_minute: float | None
    #: None where they are not measured.
    wake_ups: WakeUps | None
    #: Percent of the two CPUs that other programs or the hypervisor took while the vCPU was busy. What they
    #: take while it sleeps may be idle time.
    others: float
    #: Their names with the percent that each took, the largest first, where `others` is above DISTURBED. What is
    #: missing to `others` are interrupts, and programs that ended meanwhile.
    others_by: Mapping[str, float] = field(default_factory=dict)

    @property
    def disturbed(self) -> bool:
        return self.others > DISTURBED


def wake_ups(slept: Iterable[float]) -> WakeUps | None:
    """Sum up how late the sleeps ended; None if the timer is not as assumed.
    :param slept: the lengths of sleeps of SLEEP, in milliseconds."""
    late = sorted(length - SLEEP for length in slept)
    if not late or late[0] < (_TOO_SHORT - 1) * SLEEP:
        return None
    return WakeUps(len(late), statistics.median(late), late[int(len(late) * 0.99)], late[-1])


@dataclass(frozen=True)
class Spread:
    """One figure over all rounds."""

    median: float
    least: float
    most: float


@dataclass(frozen=True)
class Metric:
    """One line of the result. `spreads` has a figure for each set-up, None where it was not measured."""

    key: str
    title: str
    unit: str
    spreads: dict[Setup, Spread | None]
    #: Whether the larger figure is the better one.
    rises: bool = False

    def factor(self) -> float | None:
        """How many times better the figure is with vmpin than unplaced; None where there is no such number."""
        without, with_ = self.spreads[Setup.UNPLACED], self.spreads[Setup.VMPIN]
        if without is None or with_ is None or without.median <= 0 or with_.median <= 0:
            return None
        return with_.median / without.median if self.rises else without.median / with_.median


@dataclass(frozen=True)
class Circumstances:
    """What the figures depend on."""

    kernel: str
    qemu: str
    #: "KVM" or "TCG"
    accelerator: str
    processor: str
    shared_cpu: int
    exclusive_cpu: int
    rounds: int
    seconds: float
    sidecar_busy: bool
    #: The machine's load average over a minute before the first measurement.
    load: float
    date: str


def _woken(figure: Callable[[WakeUps], float]) -> Callable[[NoiseReading], float | None]:
    return lambda reading: None if reading.wake_ups is None else figure(reading.wake_ups)


#: Key, title, unit and value of each metric.
_FIGURES: tuple[tuple[str, str, str, Callable[[NoiseReading], float | None]], ...] = (
    ("share_percent", "share of its CPU", "%", lambda reading: reading.share),
    ("longest_gap_ms", "longest gap", "ms", lambda reading: reading.longest_gap),
    ("migrations_per_minute", "migrations", "/min", lambda reading: reading.migrations_per_minute),
    ("wake_up_median_ms", "late, median", "ms", _woken(lambda woken: woken.median)),
    ("wake_up_percentile_99_ms", "late, 99 %", "ms", _woken(lambda woken: woken.percentile_99)),
    ("wake_up_longest_ms", "late, longest", "ms", _woken(lambda woken: woken.longest)),
)


#: Why Kata's own `enable_vcpus_pinning` would have placed nothing, and where that is from. Go:
#: src/runtime/virtcontainers/sandbox.go (where `enable_numa` is off, the default); runtime-rs:
#: src/runtime-rs/crates/resource/src/cgroups/resource_inner.rs. Both pin one to one where the VM has as many vCPU
#: threads as all containers together have CPUs, and else nothing.
KATA_REASON = "the VM has 3 vCPUs and the pod 2 CPUs; it pins only where these numbers are equal"
_KATA_SOURCE = "Kata 4.1.0, checkVCPUsPinning (virtcontainers/sandbox.go) and check_vcpus_pinning (runtime-rs)"


@dataclass(frozen=True)
class Worth:
    circumstances: Circumstances
    readings: tuple[NoiseReading, ...]

    def counted(self) -> tuple[NoiseReading, ...]:
        """The readings that nothing else disturbed."""
        return tuple(reading for reading in self.readings if not reading.disturbed)

    @property
    def disturbed(self) -> bool:
        """Whether no reading of some placement counts: there is no verdict then, and no figure."""
        return {reading.setup for reading in self.counted()} != set(Setup)

    def metrics(self) -> list[Metric]:
        """Empty where there is no verdict."""
        counted = self.counted()
        return [] if self.disturbed else [Metric(key, title, unit, {
            setup: _spread([figure(reading) for reading in counted if reading.setup is setup]) for setup in Setup
        }, rises=key == "share_percent") for key, title, unit, figure in _FIGURES]

    def document(self) -> dict[str, object]:
        """Return the result as the JSON document of `vmpin demo --noise`."""
        return {
            "version": 1, "circumstances": asdict(self.circumstances), "disturbed": self.disturbed,
            "metrics": [{"key": metric.key, "unit": metric.unit,
                         **{setup.value: None if spread is None else asdict(spread)
                            for setup, spread in metric.spreads.items()}} for metric in self.metrics()],
            "kata_pinning": {"masks": {}, "reason": KATA_REASON, "source": _KATA_SOURCE},
            "readings": [asdict(reading) for reading in self.readings]}


def _spread(figures: Sequence[float | None]) -> Spread | None:
    measured = [figure for figure in figures if figure is not None]
    return Spread(statistics.median(measured), min(measured), max(measured)) if measured else None
