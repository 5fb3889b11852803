"""The placement of one sandbox: the CPUs that each of its threads may use, and why. Decided by placement.rules."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ContainerId, SandboxId, ThreadRole, VcpuId
from vmpin.named_tuple import NamedTuple

_VCPU = ThreadRole.VCPU  # an enum's member is looked up by a function, which is expensive for thousands of threads


class Verdict(enum.StrEnum):
    """How well a sandbox could be placed; the value is what status prints."""

    PINNED = "pinned"
    FLOATING = "floating"
    #: To be pinned or floating soon: a stale cpuset cgroup still keeps threads elsewhere, or the runtime is creating a
    #: container for which vCPUs may be plugged in, or vCPU threads are not identified yet.
    WAITING = "waiting"
    DEGRADED = "degraded"
    OFF = "off"
    #: Its threads keep their masks: no source reported a container, and there is no shared pool; or no CPU is left.
    UNMANAGED = "unmanaged"


class VcpuPlacement(NamedTuple):
    """The CPUs of a vCPU; None: its mask is not set. It backs `container`; None: it floats."""

    id: VcpuId
    cpus: CpuSet | None
    container: ContainerId | None = None
    pinned: bool = False  #: One vCPU on one exclusive CPU.


class Previous(NamedTuple):
    """The part of the previous placement that the next one keeps to."""

    mask: CpuSet = EMPTY
    vcpus: Mapping[VcpuId, tuple[CpuSet | None, ContainerId | None]] = MappingProxyType({})
    #: The CPU that each vCPU last had to itself, unless another vCPU has had it since. Kept because CPUs go offline
    #: and come back, as do the entries of the kubelet's checkpoint.
    pairs: Mapping[VcpuId, int] = MappingProxyType({})


class Placement(NamedTuple):
    """The placement of one sandbox."""

    sandbox: SandboxId
    mask: CpuSet
    verdict: Verdict
    reasons: tuple[str, ...]
    vcpus: tuple[VcpuPlacement, ...]
    #: The CPUs of the other threads by role; None: their masks are not set.
    others: Mapping[ThreadRole, CpuSet | None]
    #: The vCPUs that each live container may use in the guest.
    containers: Mapping[ContainerId, tuple[VcpuId, ...]]
    #: Why its cgroup may refuse a mask for now, "" for no reason. The cgroup is stale: its authority will rewrite it
    #: (the kubelet within its reconcile period, 10 s), or Kata will, for a request that the runtime is working on.
    waiting: str = ""
    #: Whether the runtime is working on a request: a mask that changes then is no drift.
    pending: bool = False

    @cached_property
    def by_vcpu(self) -> Mapping[VcpuId, CpuSet | None]:
        """The CPUs of each vCPU."""
        return {place.id: place.cpus for place in self.vcpus}

    def cpus_for(self, role: ThreadRole, vcpu: VcpuId | None) -> CpuSet | None:
        """The CPUs of a thread; None if its mask is not set (also for a vCPU that is not placed yet)."""
        if role is _VCPU:
            return None if vcpu is None else self.by_vcpu.get(vcpu)
        return self.others[role]

    def without_vcpu(self, vcpu: VcpuId) -> tuple[object, ...]:
        """The CPUs of all threads except this vCPU, to compare two placements."""
        return self.others, {place.id: place.cpus for place in self.vcpus if place.id != vcpu}

    def as_previous(self, before: Previous | None = None, identified: bool = True) -> Previous:
        """The part that the next placement keeps to.
        :param before: the part that this placement kept to.
        :param identified: False while some vCPU thread is not identified: its former placement is kept."""
        before = before or Previous()
        vcpus = {place.id: (place.cpus, place.container) for place in self.vcpus}
        pairs = {vcpu: cpus.first for vcpu, (cpus, container) in vcpus.items()
                 if container is not None and cpus is not None and len(cpus) == 1}
        taken = set(pairs.values())
        older = {vcpu: cpu for vcpu, cpu in before.pairs.items() if vcpu not in pairs and cpu not in taken}
        return Previous(self.mask, vcpus if identified else {**before.vcpus, **vcpus}, {**older, **pairs})

