"""A guest's vCPUs: the map that it is sent (the vCPUs that each of its containers may use, by hardware id), and the
guest's own CPU number of each vCPU, as far as it can be derived from outside. Pure.

Linux on x86 numbers the CPUs present at boot by APIC id, the boot CPU first. Hotpluggable CPUs have had their numbers
from boot on, by APIC id, since 6.9 (arch/x86/kernel/cpu/topology.c: topology_init_possible_cpus); before that each
gets the next free number when it is first added (kernel/apic/apic.c: allocate_logical_cpuid), and keeps it. That order
can be seen later only if vCPUs are always plugged into the first free slot, as Kata does; QEMU lists the last slot
first."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import VcpuId, valid_id
from vmpin.domain.sandbox_placement import Placement
from vmpin.protocol.messages import ContainerVcpus, VcpuMap
from vmpin.protocol.parsing import MAX_CONTAINERS

#: The first Linux that numbers hotpluggable CPUs at boot.
NUMBERED_AT_BOOT = (6, 9)


def guest_map(placement: Placement, hw_of: Mapping[VcpuId, int], system: str = "spare", export: bool = False,
              host_cpus: bool = False) -> VcpuMap | None:
    """The map of a sandbox, with generation 0 until it is sent (agent_session); None if the hardware id of a vCPU is
    unknown, as containers might be given the wrong CPUs.

    An exclusive container gets the vCPUs that back its CPUs. Shared containers and the pause container get the
    floating vCPUs, or every vCPU if none floats.
    :param hw_of: the APIC id or MPIDR of each vCPU.
    :param system: `spare`: the guest's own processes get the vCPUs that back no exclusive CPU, or all if there is
        none; `off`: they are left alone.
    :param export: whether the agent writes cpus.json.
    :param host_cpus: whether the map includes the host's CPUs behind each container's vCPUs; else it has none."""
    all_vcpus = [place.id for place in placement.vcpus]
    if not all_vcpus or any(vcpu not in hw_of for vcpu in all_vcpus):
        return None
    owner = {place.id: place.container for place in placement.vcpus if place.container is not None}
    containers: dict[str, ContainerVcpus] = {}
    for container, vcpus in placement.containers.items():
        if vcpus and valid_id(container) and len(containers) < MAX_CONTAINERS:
            all_owned = owner.keys() >= set(vcpus)  # by it, or by an init container that passes its CPUs on to it
            # It gets every vCPU because none floats, and is not exclusive.
            none_floats = len(vcpus) == len(all_vcpus) and container not in owner.values()
            own = all_owned and not none_floats
            behind = union(placement.by_vcpu[vcpu] or EMPTY for vcpu in vcpus) if host_cpus else EMPTY
            containers[container] = ContainerVcpus(_ids(hw_of, vcpus), own, behind)
    spare = [vcpu for vcpu in all_vcpus if vcpu not in owner] or all_vcpus
    return VcpuMap(None, 0, placement.sandbox, containers, _ids(hw_of, spare) if system == "spare" else None, export)


def _ids(hw_of: Mapping[VcpuId, int], vcpus: Iterable[VcpuId]) -> tuple[int, ...]:
    return tuple(sorted(hw_of[vcpu] for vcpu in vcpus))


@dataclass(frozen=True)
class GuestVcpus:
    """`hw` maps each existing vCPU to its hardware id, in the order of creation. The VM was started with the indices 0
    to `boot` - 1, by APIC id, and has slots for `most` vCPUs."""

    hw: Mapping[VcpuId, int] = field(default_factory=dict)
    boot: int = 0
    most: int = 0

    @property
    def plugged(self) -> list[VcpuId]:
        """The vCPUs that were plugged after boot, in that order."""
        return [vcpu for vcpu in self.hw if vcpu >= self.boot]


def guest_cpu_numbers(vcpus: GuestVcpus, kernel: tuple[int, int] | None) -> dict[VcpuId, int]:
    """The guest CPU of every vCPU for which it can be shown.
    :param kernel: the version of the guest's Linux. None, if it is unknown: then only numbers that every version
        gives.

    >>> guest_cpu_numbers(GuestVcpus({0: 0, 1: 1, 7: 7}, 2, 8), None)
    {0: 0, 1: 1}
    >>> guest_cpu_numbers(GuestVcpus({0: 0, 1: 1, 7: 7}, 2, 8), (6, 1))
    {0: 0, 1: 1, 7: 2}
    """
    if not vcpus.hw.keys() >= set(range(vcpus.boot)):
        return {}  # a boot vCPU is unidentified or was unplugged: no number is certain
    numbers = {VcpuId(number): number for number in range(vcpus.boot)}
    plugged = vcpus.plugged
    upwards = [*range(vcpus.boot, vcpus.boot + len(plugged))]
    downwards = [*range(vcpus.most - 1, vcpus.most - 1 - len(plugged), -1)]
    if plugged == upwards or (kernel is not None and kernel >= NUMBERED_AT_BOOT):
        return numbers | {vcpu: vcpu for vcpu in plugged}
    if kernel is not None and plugged == downwards:
        return numbers | dict(zip(plugged, upwards, strict=True))
    return numbers


@dataclass(frozen=True)
class CpuView:
    """The guest's CPUs as they can be addressed at one moment."""

    #: The guest's CPU by hardware id, for each vCPU for which it can be shown.
    numbers: Mapping[int, int]
    #: The hardware ids of the other vCPUs, ascending.
    unnumbered: tuple[int, ...]
    #: The hardware ids of vCPUs that may be offline.
    offline: frozenset[int]
    #: How many CPUs are online in the guest, of how many vCPUs.
    online: int
    total: int

    @property
    def all_cpus(self) -> CpuSet:
        """Every CPU that has a number and is online."""
        return CpuSet(cpu for hw, cpu in self.numbers.items() if hw not in self.offline)


def cpu_view(vcpus: GuestVcpus, kernel: tuple[int, int] | None, online: int) -> CpuView:
    """Return what is known from outside of the guest's CPUs: numbers, ids without one, and which may be offline.
    :param kernel: as in `guest_cpu_numbers`. :param online: how many CPUs are online in the guest."""
    numbers = {vcpus.hw[vcpu]: cpu for vcpu, cpu in guest_cpu_numbers(vcpus, kernel).items()}
    # Which of the plugged vCPUs are offline is not shown from outside; boot CPUs are online unless a user of the guest
    # took them offline.
    offline = frozenset(vcpus.hw[vcpu] for vcpu in vcpus.plugged) if online < len(vcpus.hw) else frozenset[int]()
    return CpuView(numbers, tuple(sorted(set(vcpus.hw.values()) - numbers.keys())), offline, online, len(vcpus.hw))
