"""The ledger: which container has which CPUs, as what, since when, and what was refused.

A pod holds the CPUs of its stopped containers until it ends, and its next containers use them first: init containers
and restarts. So a CPU may be in a lapsed grant and in a live one of the same pod, and in no two pods' grants.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, CpuWish
from vmpin.features.allocator.grants.refusal import RefusalKind

#: Refused requests that are kept.
MAX_REFUSED = 64


class GrantState(enum.StrEnum):
    RESERVED = "reserved"  #: Kept before Create was answered.
    RUNNING = "running"
    LAPSED = "lapsed"  #: The container has stopped; its pod has not ended.


class CpuAmount(NamedTuple):
    """What a container requests, in thousandths of a CPU; limit 0: none. `size`: whole CPUs, where request = limit in
    whole CPUs, else 0."""

    request: int = 0
    limit: int = 0
    size: int = 0


class Grant(NamedTuple):
    """What one container has."""

    container: ContainerId
    sandbox: SandboxId
    name: str
    namespace: str
    pod: str
    pod_uid: str
    wish: CpuWish  #: As asked by annotations.
    policy: CpuPolicy  #: As decided.
    group: str = ""  #: NAMESPACE/NAME, or NAME of a configured group.
    state: GrantState = GrantState.RESERVED
    amount: CpuAmount = CpuAmount()
    cpus: CpuSet = EMPTY  #: Its own: exclusive, fixed, or what it brought into its group.
    spare: CpuSet = EMPTY  #: Of a VM: CPUs for its spare vCPUs and other threads.
    own_spare: bool = False  #: `spare` is out of the pool (cpu-spare: own).
    node: int | None = None  #: The NUMA node of policy numa.
    near: CpuSet = EMPTY  #: The NUMA nodes of what `cpu-near` names, and
    devices: CpuSet = EMPTY  #: those of its own devices, as found when it was created.
    written: CpuSet = EMPTY  #: The cpuset that the runtime has for it, or has been answered; empty: none.
    left_alone: bool = False  #: Its cpuset is empty or another plugin's, and vmpin sets none.
    vm: bool = False
    vm_vcpus: int = 0
    vm_most: int = 0  #: As `VmSize.most`.
    vm_part: int = 0  #: As `VmSize.part`.
    vm_overhead: int = 0
    since_ns: int = 0
    guaranteed: bool = False  #: The pod's QoS class is Guaranteed.
    annotated: str = ""  #: Digest of the annotations that were decided on last (texts.asking_annotations).

    @property
    def live(self) -> bool:
        return self.state is not GrantState.LAPSED

    @property
    def out_of_pool(self) -> CpuSet:
        """The CPUs that the pool is without because of it."""
        own = self.cpus if self.policy in (CpuPolicy.EXCLUSIVE, CpuPolicy.GROUP) else EMPTY
        return own | self.spare if self.own_spare else own

    @property
    def held(self) -> CpuSet:
        """The CPUs that become exclusive to no other pod's container."""
        return self.cpus | self.spare if self.own_spare else self.cpus


class RefusedRequest(NamedTuple):
    container: str
    namespace: str
    pod: str
    reason: str
    time_ns: int
    kind: RefusalKind = RefusalKind.REQUEST


class Ledger(NamedTuple):
    """All grants by container. `shared`: the CPUs that shared containers are on, or are being updated to."""

    grants: Mapping[ContainerId, Grant] = MappingProxyType({})
    shared: CpuSet = EMPTY
    refused: tuple[RefusedRequest, ...] = ()

    def with_grants(self, *grants: Grant) -> Ledger:
        return self._replace(grants={**self.grants, **{grant.container: grant for grant in grants}})

    def without(self, containers: Iterable[ContainerId]) -> Ledger:
        gone = set(containers)
        return self._replace(grants={key: grant for key, grant in self.grants.items() if key not in gone})

    def with_refusal(self, refused: RefusedRequest) -> Ledger:
        """A container's refusal replaces the one before: the kubelet retries every few seconds, and the numbers in
        the reason may be others."""
        others = [one for one in self.refused if one[:3] != refused[:3]]
        return self._replace(refused=(*others, refused)[-MAX_REFUSED:])

    def of_sandbox(self, sandbox: SandboxId) -> list[Grant]:
        """Return the grants of a sandbox, the oldest first."""
        return sorted((grant for grant in self.grants.values() if grant.sandbox == sandbox), key=age)

    def of_group(self, group: str) -> list[Grant]:
        return sorted((grant for grant in self.grants.values() if grant.group == group), key=age)

    def held(self) -> CpuSet:
        """Return all CPUs that belong to some pod, and are given to no other."""
        return union(grant.held for grant in self.grants.values())

    def out_of_pool(self) -> CpuSet:
        return union(grant.out_of_pool for grant in self.grants.values())

    def others_own(self) -> CpuSet:
        """Return the CPUs to which another program has restricted containers that are left alone. They stay in the
        pool, and become exclusive to no container. Where a container may use all shared CPUs, that is no restriction.
        """
        return union(grant.written for grant in self.grants.values()
                     if grant.left_alone and grant.live and not self.shared <= grant.written)


def age(grant: Grant) -> tuple[int, ContainerId]:
    """Return the sort key of a grant: the order does not depend on that of the map."""
    return (grant.since_ns, grant.container)
