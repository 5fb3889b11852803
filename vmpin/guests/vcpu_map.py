"""What a guest is told: which vCPUs each of its containers may use, by the numbers the hardware has for them.

Pure. No CPU of the host's is in it, unless that is asked for. What stays out: sending it (guest/), and the placement
it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vmpin.cpuset import EMPTY, union
from vmpin.domain.model import VcpuId, valid_id
from vmpin.placement.rules import Placement
from vmpin.protocol.messages import ContainerVcpus, VcpuMap
from vmpin.protocol.parsing import MAX_CONTAINERS

#: For comparing maps, and until one is sent.
NO_GENERATION = 0


def guest_map(placement: Placement, hw_of: Mapping[VcpuId, int], generation: int = NO_GENERATION,
              system: str = "spare", export: bool = False, host_cpus: bool = False) -> VcpuMap | None:
    """The map of a sandbox; None when nothing can be told, because some vCPU's number is not known (then nothing is
    narrowed: it might be to the wrong CPUs).

    An exclusive container has the vCPUs that back its CPUs; shared ones and the pause container have the floating
    ones, and every vCPU where none floats.

    :param hw_of: each vCPU's APIC id or MPIDR.
    :param system: `spare`: the guest's own processes go on the vCPUs that back nobody's CPUs, on all if there is none;
        `off`: they are left alone.
    :param host_cpus: whether each container's has the host's CPUs behind its vCPUs, too.
    """
    everyone = [place.id for place in placement.vcpus]
    if not everyone or any(vcpu not in hw_of for vcpu in everyone):
        return None
    owner = {place.id: place.container for place in placement.vcpus if place.container is not None}
    containers: dict[str, ContainerVcpus] = {}
    for container, vcpus in placement.containers.items():
        if vcpus and valid_id(container) and len(containers) < MAX_CONTAINERS:
            # One that has everyone's because none floats has nothing of its own. (CPUs that are handed from an init
            # container to the next are both containers'.)
            own = owner.keys() >= set(vcpus) and (len(vcpus) < len(everyone) or container in owner.values())
            behind = union(placement.by_vcpu[vcpu] or EMPTY for vcpu in vcpus) if host_cpus else EMPTY
            containers[container] = ContainerVcpus(_ids(hw_of, vcpus), own, behind)
    spare = [vcpu for vcpu in everyone if vcpu not in owner] or everyone
    return VcpuMap(None, generation, placement.sandbox, containers, _ids(hw_of, spare) if system == "spare" else None,
               export)


def _ids(hw_of: Mapping[VcpuId, int], vcpus: Iterable[VcpuId]) -> tuple[int, ...]:
    return tuple(sorted(hw_of[vcpu] for vcpu in vcpus))
