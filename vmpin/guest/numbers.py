"""Which vCPU is which of the guest's CPUs, as far as it can be shown from outside. Pure.

Linux on x86 numbers the CPUs that are there at boot in order of APIC id, the boot CPU first. The hotpluggable ones
have their numbers from the start, in order of APIC id, since 6.9 (arch/x86/kernel/cpu/topology.c:
topology_init_possible_cpus); before, each gets the next free number when it is first added. Which kernel the guest has
nobody tells. So a number is shown where both ways give the same; elsewhere nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vmpin.model import VcpuId


def shown(boot: int, arrived: Sequence[VcpuId]) -> dict[VcpuId, int]:
    """The guest CPU of every vCPU for which it can be shown.

    :param boot: how many the VM was started with: indices 0 to boot - 1, in order of APIC id.
    :param arrived: the indices of all vCPUs there are, in the order they came.

    >>> shown(2, [0, 1, 7])
    {0: 0, 1: 1}
    >>> shown(2, [0, 1, 2, 5])
    {0: 0, 1: 1, 2: 2}
    """
    if not set(range(boot)) <= set(arrived):
        return {}  # one that was there at boot is not known, or was unplugged: nothing is sure
    found = {VcpuId(number): number for number in range(boot)}
    for number, vcpu in enumerate((vcpu for vcpu in arrived if vcpu >= boot), boot):
        if vcpu != number:  # its number is its index or its place in line, and these differ from here on
            break
        found[vcpu] = number
    return found


def metrics_cpus(text: str) -> dict[int, dict[str, float]]:
    """`kata_guest_cpu_time` of a Kata agent's metrics: ms by item (user, system, idle …), by place among the online
    CPUs. What is no such line is left out; of at most 1024 CPUs.

    >>> metrics_cpus('kata_guest_cpu_time{cpu="0",item="user"} 120\\nkata_guest_cpu_time{cpu="total",item="user"} 9')
    {0: {'user': 120.0}}
    """
    found: dict[int, dict[str, float]] = {}
    start = 'kata_guest_cpu_time{cpu="'
    for line in text.splitlines():
        if not line.startswith(start):
            continue
        cpu, _, rest = line[len(start):].partition('",item="')
        item, _, value = rest.partition('"} ')
        if not (cpu.isascii() and cpu.isdigit() and len(cpu) <= 4 and int(cpu) < 1024 and item.isascii()):
            continue
        try:
            number = float(value)
        except ValueError:
            continue
        if 0 <= number < 1e18:
            found.setdefault(int(cpu), {})[item[:16]] = number
    return found


def proves(before: Mapping[int, Mapping[str, float]], after: Mapping[int, Mapping[str, float]],
           cpus: Sequence[int]) -> bool | None:
    """Whether what the guest's processes did between two readings was done on these of its CPUs; None as long as it
    was less than a second's work. It says something of a container only if that is the only one.
    """
    spent = {cpu: sum(after[cpu].get(item, 0.0) - before[cpu].get(item, 0.0) for item in ("user", "nice"))
             for cpu in after.keys() & before.keys()}
    total, inside = sum(spent.values()), sum(spent.get(cpu, 0.0) for cpu in cpus)
    if min(spent.values(), default=-1.0) < 0 or total < 1000:
        return None
    return inside >= 0.99 * total
