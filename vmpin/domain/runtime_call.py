"""What a call of the runtime shows of a container, and what its answer can change: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, ContainerState, SandboxId


class VmSize(NamedTuple):
    """Whether a pod is a VM, and of which size."""

    vm: bool = False
    vcpus: int | None = None  #: Without those of its containers (Kata's default_vcpus); None: not known.
    most: int = 0  #: It never has more, whatever its containers have; 0: not known.
    part: int = 0  #: Thousandths of a vCPU that are added to its containers' limits before these are rounded up.


class RequestedContainer(NamedTuple):
    """A container, with the resources that the call has for it: at UpdateContainer those of the request, at
    Synchronize those listed. None: not set. In a call that only has its id, the other fields are not used."""

    id: ContainerId
    sandbox: SandboxId
    name: str = ""
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    annotations: Mapping[str, str] = MappingProxyType({})  #: The container's own.
    pod_annotations: Mapping[str, str] = MappingProxyType({})
    shares: int | None = None
    quota: int | None = None
    period: int | None = None
    cpuset: CpuSet | None = None
    mems: CpuSet | None = None
    vm: bool = False  #: Of its pod, as `VmSize` has them:
    vm_vcpus: int | None = None
    vm_most: int = 0
    vm_part: int = 0
    vm_overhead: int = 0  #: VMs only: the whole CPUs in the overhead of the pod's RuntimeClass.
    guaranteed: bool = False  #: The pod's QoS class is Guaranteed (its cgroup is neither burstable nor besteffort).
    state: ContainerState = ContainerState.CREATED
    time_ns: int = 0  #: When the call came, CLOCK_REALTIME ns: "since when" of the CPUs that it is given.
    devices: Mapping[str, str] = MappingProxyType({})  #: As `container_devices` (sources.nri) makes them.


class Listed(NamedTuple):
    """What Synchronize lists. The sandboxes include those without containers."""

    sandboxes: frozenset[SandboxId]
    containers: tuple[RequestedContainer, ...]


class Adjustment(NamedTuple):
    """What changes of the container that is being created. None: as the runtime has it."""

    cpus: CpuSet | None
    mems: CpuSet | None
    annotations: Mapping[str, str]
    env: Mapping[str, str]


class SideUpdate(NamedTuple):
    """The cpuset that a container is to have; never empty."""

    container: ContainerId
    cpus: CpuSet
