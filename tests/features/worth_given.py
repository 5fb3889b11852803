"""A result of `vmpin demo --noise` with made-up figures."""

from __future__ import annotations

from dataclasses import replace

from vmpin.features.demo.worth import Circumstances, NoiseReading, Setup, WakeUps, Worth

CIRCUMSTANCES = Circumstances(
    kernel="6.1.0", qemu="7.2.22", accelerator="KVM", processor="A <fast> CPU", shared_cpu=0, exclusive_cpu=1,
    rounds=2, seconds=5.0, sidecar_busy=True, load=0.3, date="2026-11-24")


def reading(setup: Setup, share: float, gap: float, migrations: float, late: float,
            others: float = 0.5) -> NoiseReading:
    return NoiseReading(setup, share, 100 - share, gap, migrations, WakeUps(1600, 0.07, late, 2 * late), others)


WORTH = Worth(CIRCUMSTANCES, (
    reading(Setup.UNPLACED, 41.2, 88.0, 2210.0, 12.0), reading(Setup.KATA, 51.0, 38.0, 1210.0, 9.0),
    reading(Setup.VMPIN, 99.82, 0.9, 0.0, 0.2),
    reading(Setup.UNPLACED, 44.2, 108.0, 1910.0, 18.0), reading(Setup.KATA, 51.0, 28.0, 1210.0, 9.0),
    reading(Setup.VMPIN, 99.92, 0.0, 0.0, 0.2)))

#: The same where the guest was emulated, and the kernel counts no migrations.
EMULATED = Worth(replace(CIRCUMSTANCES, accelerator="TCG", rounds=1, sidecar_busy=False), tuple(
    replace(each, wake_ups=None, migrations_per_minute=None) for each in WORTH.readings[:3]))
