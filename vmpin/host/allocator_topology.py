"""/sys, as the allocator needs it: besides what host.sysfs reads, the sockets, dies and kinds of cores, the nodes with
memory, and the nodes of devices.

A node that gives out no CPUs reads none of it. Everything degrades to what is known without it, and CPUs may come and
go meanwhile. What stays out: which CPUs a container gets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.topology import Topology
from vmpin.host.sysfs import Sysfs, cpu_list, merged, text_of

#: Domain, bus, device and function; behind some host bridges (Intel's VMD) the domain has more than four digits.
_PCI = re.compile(r"([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: The kernel takes names of at most 15 characters for network devices (IFNAMSIZ); longer and odder ones are no path.
_NETWORK = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,14}")
#: The PMUs of the kinds of cores of a hybrid machine (Linux, arch/x86/events/intel/core.c); elsewhere there are none.
_PMUS = {"performance": ("cpu_core",), "efficient": ("cpu_atom", "cpu_lowpower")}


def allocator_topology(sysfs: Sysfs, devices: Iterable[str] = ()) -> Topology:
    """The topology with all that the allocator needs, and the nodes of `devices`, as far as they have one. Read at the
    start and when the online CPUs change. :raises SourceError: as `Sysfs.online`."""
    base = sysfs.topology()
    kinds = {kind: union(cpu_list(f"{sysfs.root}/devices/{pmu}/cpus") or EMPTY for pmu in pmus) & base.all_cpus
             for kind, pmus in _PMUS.items()}
    kinds["efficient"] -= kinds["performance"]
    # Older kernels and those without memory hotplug show it by another name or not at all.
    memory = next((nodes for name in ("has_memory", "has_normal_memory")
                   if (nodes := cpu_list(f"{sysfs.root}/devices/system/node/{name}"))), CpuSet(base.nodes))
    return Topology.build(
        base.online, base.cores, base.caches, base.nodes, base.isolated, base.nohz_full, base.present, base.distances,
        _groups(sysfs, base.online, "package_cpus_list", "core_siblings_list"),  # the second before 5.3
        _groups(sysfs, base.online, "die_cpus_list"), kinds if all(kinds.values()) else {}, memory,
        device_nodes(sysfs, devices))


def device_nodes(sysfs: Sysfs, names: Iterable[str]) -> dict[str, int]:
    """The NUMA node of each named device that has one: PCI addresses, with or without the domain, and network devices.
    A name may come from a pod's annotation: one that can be no device is left out, like one that is not there."""
    found = {}
    for name in names:
        if (match := _PCI.fullmatch(name)) is not None:
            path = f"{sysfs.root}/bus/pci/devices/{name if match[1] else f'0000:{name}'}"
        elif _NETWORK.fullmatch(name) is not None:
            path = f"{sysfs.root}/class/net/{name}/device"
        else:
            continue
        node = text_of(f"{path}/numa_node")  # -1: the firmware does not say
        if node.isascii() and node.isdigit() and len(node) < 6:
            found[name] = int(node)
    return found


def _groups(sysfs: Sysfs, cpus: CpuSet, *names: str) -> list[CpuSet]:
    """The sets of CPUs that the first file of these names shows, read once for each set and not for each CPU."""
    groups: list[CpuSet] = []
    seen = EMPTY
    for cpu in cpus:
        if cpu in seen:
            continue
        directory = f"{sysfs.root}/devices/system/cpu/cpu{cpu}/topology"
        group = next((group for name in names
                      if (group := cpu_list(f"{directory}/{name}")) is not None and cpu in group), EMPTY)
        groups.append(group)
        seen |= group
    return merged(groups)
