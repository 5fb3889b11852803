"""Which vCPU is which of the guest's CPUs, as far as it can be shown from outside. Pure.

Linux on x86 numbers the CPUs that are there at boot in order of APIC id, the boot CPU first. The hotpluggable ones
have their numbers from the start, in order of APIC id, since 6.9 (arch/x86/kernel/cpu/topology.c:
topology_init_possible_cpus); before, each gets the next free number when it is first added (kernel/apic/apic.c:
allocate_logical_cpuid), and has it for good. That this is an order which can be seen later takes somebody who always
plugs into the first free slot, as Kata does: QEMU lists the last one first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vmpin.domain.model import VcpuId

#: The first Linux that numbers them at boot.
NUMBERED_AT_BOOT = (6, 9)


@dataclass(frozen=True)
class GuestVcpus:
    """`hw` are the hardware ids of all vCPUs that there are, in the order they came. The VM was started with the
    indices 0 to `boot` - 1, in order of APIC id, and has slots for `most`."""

    hw: Mapping[VcpuId, int] = field(default_factory=dict)
    boot: int = 0
    most: int = 0

    @property
    def plugged(self) -> list[VcpuId]:
        """Those that came later, in that order."""
        return [vcpu for vcpu in self.hw if vcpu >= self.boot]


def guest_cpu_numbers(vcpus: GuestVcpus, kernel: tuple[int, int] | None) -> dict[VcpuId, int]:
    """The guest CPU of every vCPU for which it can be shown.

    :param kernel: the guest's Linux, None when it is not known: then what every Linux would do alike.

    >>> guest_cpu_numbers(GuestVcpus({0: 0, 1: 1, 7: 7}, 2, 8), None)
    {0: 0, 1: 1}
    >>> guest_cpu_numbers(GuestVcpus({0: 0, 1: 1, 7: 7}, 2, 8), (6, 1))
    {0: 0, 1: 1, 7: 2}
    """
    if not vcpus.hw.keys() >= set(range(vcpus.boot)):
        return {}  # one that was there at boot is not known, or was unplugged: nothing is sure
    found = {VcpuId(number): number for number in range(vcpus.boot)}
    plugged = vcpus.plugged
    upwards = [*range(vcpus.boot, vcpus.boot + len(plugged))]
    downwards = [*range(vcpus.most - 1, vcpus.most - 1 - len(plugged), -1)]
    if plugged == upwards or (kernel is not None and kernel >= NUMBERED_AT_BOOT):
        return found | {vcpu: int(vcpu) for vcpu in plugged}
    if kernel is not None and plugged == downwards:
        return found | dict(zip(plugged, upwards, strict=True))
    return found
