"""The machine's topology as the allocator needs it, from /sys: besides what host.sysfs reads, the sockets, dies and
kinds of cores, the nodes with memory, and the nodes of devices.

Only a node that gives out CPUs reads it. A file that is missing leaves its part unknown, and CPUs may come and go
meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from vmpin.bounded import parse_whole
from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.topology import Topology
from vmpin.host.procfs import names_in
from vmpin.host.sysfs import Sysfs, cpu_list, merged, text_of

#: Domain, bus, device and function; behind some host bridges (Intel's VMD) the domain has more than four digits.
_PCI = re.compile(r"([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: The kernel takes names of at most 15 characters for network devices (IFNAMSIZ); longer and odder ones are no path.
_NETWORK = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,14}")
#: A block or character device by its number.
_NUMBER = re.compile(r"([bc])([0-9]{1,10}:[0-9]{1,10})")
#: The device of a VFIO group, named after its IOMMU group (drivers/vfio/group.c). It has no parent.
_VFIO_GROUP = re.compile(r"virtual/vfio/(?:noiommu-)?([0-9]{1,10})")
#: The PMUs of the kinds of cores of a hybrid machine of Intel's (arch/x86/events/intel/core.c).
_PMUS = {"performance": ("cpu_core",), "efficient": ("cpu_atom", "cpu_lowpower")}


def allocator_topology(sysfs: Sysfs, devices: Iterable[str] = ()) -> Topology:
    """The allocator's topology, with the NUMA nodes of `devices`. Read at the start and when the online or isolated
    CPUs change. :raises SourceError: as `Sysfs.online`."""
    base = sysfs.topology()
    kinds = _kinds(sysfs, base.all_cpus)
    # Older kernels and those without memory hotplug show it by another name or not at all.
    memory = next((nodes for name in ("has_memory", "has_normal_memory")
                   if (nodes := cpu_list(f"{sysfs.root}/devices/system/node/{name}"))), CpuSet(base.nodes))
    return Topology.build(
        base.online, base.cores, base.caches, base.nodes, base.isolated, base.nohz_full, base.present, base.distances,
        _groups(sysfs, base.online, "package_cpus_list", "core_siblings_list"),  # the second before 5.3
        _groups(sysfs, base.online, "die_cpus_list"), kinds if all(kinds.values()) else {}, memory,
        device_nodes(sysfs, devices))


def _kinds(sysfs: Sysfs, cpus: CpuSet) -> dict[str, CpuSet]:
    """The CPUs of each kind: by PMUs, else by capacities (arm64, riscv), which are 1024 at most
    (drivers/base/arch_topology.c). The clusters of one kind may differ somewhat."""
    kinds = {kind: union(cpu_list(f"{sysfs.root}/devices/{pmu}/cpus") or EMPTY for pmu in pmus) & cpus
             for kind, pmus in _PMUS.items()}
    if kinds["performance"]:
        return kinds | {"efficient": kinds["efficient"] - kinds["performance"]}
    capacities = {cpu: capacity for cpu in cpus
                  if (capacity := parse_whole(text_of(f"{sysfs.cpu}/cpu{cpu}/cpu_capacity"), 1024)) is not None}
    most = max(capacities.values(), default=0)
    efficient = CpuSet(cpu for cpu, capacity in capacities.items() if 3 * capacity < 2 * most)
    return {"performance": CpuSet(capacities) - efficient, "efficient": efficient}


def device_nodes(sysfs: Sysfs, names: Iterable[str]) -> dict[str, int]:
    """The NUMA node of each named device that has one: PCI addresses, with or without the domain, network devices, and
    "b" or "c" with the number of a device ("b259:0"), which has the node of its nearest ancestor with one. A name may
    come from a pod's annotation: one that can be no device is left out, like one that is not there."""
    nodes: dict[str, int] = {}
    numbered = _NumberedDevices(sysfs)
    for name in names:
        if (match := _NUMBER.fullmatch(name)) is not None:
            node = numbered.node("block" if match[1] == "b" else "char", match[2])
        elif (match := _PCI.fullmatch(name)) is not None:
            node = _node(f"{sysfs.root}/bus/pci/devices/{name if match[1] else f'0000:{name}'}")
        elif _NETWORK.fullmatch(name) is not None:
            node = _node(f"{sysfs.root}/class/net/{name}/device")
        else:
            continue
        if node is not None:
            nodes[name] = node
    return nodes


def _node(path: str) -> int | None:
    """The NUMA node that a device's directory shows."""
    text = text_of(f"{path}/numa_node")  # -1: the firmware does not say
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


class _NumberedDevices:
    """The nodes of devices with a number. Each directory is read once: devices have ancestors in common, and a
    privileged container has all devices of the machine."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._root = sysfs.root
        self._nodes: dict[str, int | None] = {"": None}

    def node(self, kind: str, number: str) -> int | None:
        """Return a device's node. A VFIO group's is that of its devices, which are on one: they share a path to
        memory, which is why the IOMMU cannot separate them. Other virtual devices have none."""
        path = _linked(f"{self._root}/dev/{kind}/{number}")
        if (group := _VFIO_GROUP.fullmatch(path)) is not None:
            directory = f"{self._root}/kernel/iommu_groups/{group[1]}/devices"
            nodes = (self._above(_linked(f"{directory}/{device}")) for device in sorted(names_in(directory)))
            return next((node for node in nodes if node is not None), None)
        return None if path.startswith("virtual/") else self._above(path)

    def _above(self, path: str) -> int | None:
        """The node of the nearest directory with a `numa_node`, from `path` below `devices` upwards."""
        if path not in self._nodes:
            here = f"{self._root}/devices/{path}"
            self._nodes[path] = (_node(here) if os.path.exists(f"{here}/numa_node") else
                                 self._above(os.path.dirname(path)))
        return self._nodes[path]


def _linked(path: str) -> str:
    """Return the target of a link of sysfs, below `devices`; "" for no such link."""
    try:
        _, below, path = os.readlink(path).partition("../devices/")
    except OSError:
        return ""
    return path if below else ""


def _groups(sysfs: Sysfs, cpus: CpuSet, *names: str) -> list[CpuSet]:
    """The sets of CPUs that the first existing file of these names shows, read once for each set, not for each CPU."""
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
