"""The map that a guest is sent: the vCPUs that each of its containers may use, by hardware id.

Pure. The map has no CPU numbers of the host unless configured."""

from collections.abc import Iterable, Mapping

from vmpin.cpuset import EMPTY, union
from vmpin.domain.model import VcpuId, valid_id
from vmpin.placement.rules import Placement
from vmpin.protocol.messages import ContainerVcpus, VcpuMap
from vmpin.protocol.parsing import MAX_CONTAINERS


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
    :param host_cpus: whether the map includes the host's CPUs behind each container's vCPUs."""
    all_vcpus = [place.id for place in placement.vcpus]
    if not all_vcpus or any(vcpu not in hw_of for vcpu in all_vcpus):
        return None
    owner = {place.id: place.container for place in placement.vcpus if place.container is not None}
    containers: dict[str, ContainerVcpus] = {}
    for container, vcpus in placement.containers.items():
        if vcpus and valid_id(container) and len(containers) < MAX_CONTAINERS:
            # A container that gets every vCPU because none floats is not exclusive. (CPUs that pass from an init
            # container to the next belong to both.)
            own = owner.keys() >= set(vcpus) and (len(vcpus) < len(all_vcpus) or container in owner.values())
            behind = union(placement.by_vcpu[vcpu] or EMPTY for vcpu in vcpus) if host_cpus else EMPTY
            containers[container] = ContainerVcpus(_ids(hw_of, vcpus), own, behind)
    spare = [vcpu for vcpu in all_vcpus if vcpu not in owner] or all_vcpus
    return VcpuMap(None, 0, placement.sandbox, containers, _ids(hw_of, spare) if system == "spare" else None, export)


def _ids(hw_of: Mapping[VcpuId, int], vcpus: Iterable[VcpuId]) -> tuple[int, ...]:
    return tuple(sorted(hw_of[vcpu] for vcpu in vcpus))
