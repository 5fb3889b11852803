"""Values of the runtime's calls to an allocator: a container with its requested resources, and the changes in an
answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.named_tuple import NamedTuple


class RequestedContainer(NamedTuple):
    """A container with its resources in a call: at UpdateContainer the requested ones, at Synchronize the listed ones.
    None: not set. In a call that has only its id, the other fields are not used."""

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
    vm: bool = False  #: Whether the pod is a VM, with these vCPUs besides those for its containers (None: unknown),
    vm_vcpus: int | None = None
    vm_most: int = 0  #: so many at most (0: unknown),
    vm_part: int = 0  #: and these thousandths of one more.
    vm_overhead: int = 0  #: Only for VMs: the whole CPUs in the overhead of the pod's RuntimeClass.
    guaranteed: bool = False  #: The pod's QoS class is Guaranteed (its cgroup is neither burstable nor besteffort).
    state: ContainerState = ContainerState.CREATED
    time_ns: int = 0  #: When the call was received (CLOCK_REALTIME ns), recorded as the time of its grant.
    devices: Mapping[str, str] = MappingProxyType({})  #: By `container_devices` (sources.nri).


class Listed(NamedTuple):
    """The list of Synchronize. `sandboxes` include those without containers."""

    sandboxes: frozenset[SandboxId]
    containers: tuple[RequestedContainer, ...]


class Adjustment(NamedTuple):
    """Changes to the container that is being created. None: no change."""

    cpus: CpuSet | None
    mems: CpuSet | None
    annotations: Mapping[str, str]
    env: Mapping[str, str]


class SideUpdate(NamedTuple):
    """A new cpuset for another container; never empty."""

    container: ContainerId
    cpus: CpuSet
