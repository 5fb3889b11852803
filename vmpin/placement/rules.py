"""Who may run where: the rules that place every thread of a VM sandbox.

Pure: the same input gives the same placement, and a placement fed back as `previous` gives itself. The words:
S the sandbox mask, E the sandbox's exclusive CPUs, P the shared pool, H the housekeeping CPUs, n vCPUs, e = \\|E\\|.

Whatever the policy, no thread is put on a CPU that is another container's alone, and by default none leaves S.
What stays out: which CPU belongs to whom (ownership), and which of them each vCPU gets (vcpuplaces).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId, ThreadRole, Vcpu, VcpuId
from vmpin.placement.ownership import CpuClaims, Node, Ownership, is_counted
from vmpin.placement.policy import Policy, ThreadPolicy, VcpuRule
from vmpin.placement.vcpus import CandidateCpus, Previous, VcpuPlacement, place_vcpus


class Verdict(enum.StrEnum):
    PINNED = "pinned"
    FLOATING = "floating"
    #: As pinned or floating, but a cpuset cgroup that the kubelet has yet to rewrite still keeps threads elsewhere, or
    #: the runtime is creating a container that vCPUs may come with, or vCPU threads cannot be identified yet.
    WAITING = "waiting"
    DEGRADED = "degraded"
    OFF = "off"
    #: No container is known, and no shared pool: nothing says where its threads belong, so their masks stay.
    UNMANAGED = "unmanaged"


#: Kept, as an enum's member is looked up by a function: dear for thousands of threads in a pass.
_VCPU = ThreadRole.VCPU

#: A reason of the verdict `waiting`.
VCPUS_UNIDENTIFIED = ("its vCPU threads cannot all be identified yet: until then its other threads are kept on the "
                      "sandbox mask")
#: The reason of the verdict `unmanaged`.
UNMANAGED = ("no container of it is known, and no shared pool (no readable checkpoint of the kubelet's, "
             "node.shared_pool is not set): its threads keep the masks they have")


@dataclass(frozen=True)
class Placement:
    """What was decided for one sandbox."""

    sandbox: SandboxId
    mask: CpuSet
    verdict: Verdict
    reasons: tuple[str, ...]
    vcpus: tuple[VcpuPlacement, ...]
    #: By role, all but the vCPUs; None leaves the role's threads alone.
    others: Mapping[ThreadRole, CpuSet | None]
    #: Which vCPUs each live container may use in the guest.
    containers: Mapping[ContainerId, tuple[VcpuId, ...]]
    #: Why its cgroup may refuse a mask for now, "" where it may not: the kubelet decided otherwise since the cgroup
    #: was written, and rewrites it within its reconcile period (10 s); or the runtime has been asked for something, on
    #: the way to which Kata rewrites it.
    waiting: str = ""
    #: Whether the runtime has been asked for something: whatever becomes of masks meanwhile is its doing.
    pending: bool = False
    by_vcpu: Mapping[VcpuId, CpuSet | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_vcpu", {place.id: place.cpus for place in self.vcpus})

    def cpus_for(self, role: ThreadRole, vcpu: VcpuId | None) -> CpuSet | None:
        """The CPUs of a thread; None when it is to be left alone (or is a vCPU nobody placed yet)."""
        if role is _VCPU:
            return None if vcpu is None else self.by_vcpu.get(vcpu)
        return self.others[role]

    def without_vcpu(self, vcpu: VcpuId) -> tuple[object, ...]:
        """Where all threads but this vCPU go, to compare."""
        return self.others, {place.id: place.cpus for place in self.vcpus if place.id != vcpu}

    def as_previous(self, before: Previous | None = None, known: bool = True) -> Previous:
        """What the next placement keeps to.

        :param before: what this one kept to.
        :param known: False while some vCPU cannot be told: what was kept of it is kept on.
        """
        had = before or Previous()
        vcpus = {place.id: (place.cpus, place.container) for place in self.vcpus}
        pairs = {vcpu: cpus.first for vcpu, (cpus, container) in vcpus.items()
                 if cpus is not None and len(cpus) == 1 and container is not None}
        taken = set(pairs.values())
        older = {vcpu: cpu for vcpu, cpu in had.pairs.items() if vcpu not in pairs and cpu not in taken}
        return Previous(self.mask, vcpus if known else {**had.vcpus, **vcpus}, {**older, **pairs})


@dataclass(frozen=True)
class PlacementRequest:
    """One sandbox to place. `known` is False when its vCPUs could not (all) be told from its other threads, `awaited`
    when that is so for a short time only, as of a VM that boots or has just got a vCPU. `ended`: a container of it has
    ended of late."""

    id: SandboxId
    vcpus: tuple[Vcpu, ...]
    containers: tuple[Container, ...]
    vcpus_identified: bool = True
    identification_pending: bool = False
    container_ended: bool = False


def place(request: PlacementRequest, node: Node, own: Ownership, policy: Policy,
          previous: Previous | None = None) -> Placement:
    """Apply the rules to one sandbox, whose claims are part of `own`."""
    before = previous or Previous()
    claim = own.claims.get(request.id) or CpuClaims((), ())
    if node.shared_pool is None and not claim.exclusive and not claim.shared and not before.mask:
        return _as_it_is(request)
    reasons: list[str] = []
    foreign = own.foreign(request.id)
    mask = _mask(claim, foreign, node, own, before, reasons)
    lost = bool(reasons)
    # Where threads may go: S without what became another's while this sandbox's cpusets still name it.
    allowed = (mask - foreign) or mask
    ground = CandidateCpus(allowed, claim.cpus, foreign, node, own)
    if not request.vcpus_identified and policy.vcpus is not VcpuRule.OFF:
        reasons.append(VCPUS_UNIDENTIFIED if request.identification_pending else
                       "the vCPUs cannot all be told from the VM's other threads, which are kept on the sandbox mask")
    places, shortage = place_vcpus(request.vcpus, request.vcpus_identified, claim, ground, policy, before, reasons)
    containers, unserved = _containers(request, claim, places, policy)
    unserved = unserved if request.vcpus_identified else ""  # who is told next may be for them
    if unserved:
        reasons.append(unserved)
    others: dict[ThreadRole, CpuSet | None] = {}
    for role in ThreadRole:
        if role is not ThreadRole.VCPU:
            others[role] = _other(role, ground, policy, request.vcpus_identified, reasons)
    if policy.vcpus is VcpuRule.OFF:
        verdict = Verdict.OFF
    elif request.identification_pending and not request.vcpus_identified and not lost:
        verdict = Verdict.WAITING
    elif shortage or unserved or lost:
        verdict = Verdict.DEGRADED
    elif policy.vcpus is VcpuRule.AUTO and claim.creating and sum(each.pinned for each in places) < len(claim.cpus):
        verdict = Verdict.WAITING
        reasons.append(f"{len(places)} vCPUs for {len(claim.cpus)} exclusive CPUs, while a container is created that "
                       "more may come with")
    elif claim.cpus and policy.vcpus is VcpuRule.AUTO:
        verdict = Verdict.PINNED
    else:
        verdict = Verdict.FLOATING
    return Placement(request.id, mask, verdict, tuple(dict.fromkeys(reasons)), places, others, containers,
                     _waiting(request, own, allowed), claim.pending)


def _as_it_is(request: PlacementRequest) -> Placement:
    """Every thread is left alone: whatever masks they have may have been set by hand, for a reason."""
    vcpus = sorted(vcpu.id for vcpu in request.vcpus)
    return Placement(request.id, EMPTY, Verdict.UNMANAGED, (UNMANAGED,),
                     tuple(VcpuPlacement(vcpu, None) for vcpu in vcpus),
                     {role: None for role in ThreadRole if role is not ThreadRole.VCPU},
                     {container.id: tuple(vcpus) for container in request.containers
                      if container.state is not ContainerState.STOPPED})


def _mask(claim: CpuClaims, foreign: CpuSet, node: Node, own: Ownership, before: Previous,
          reasons: list[str]) -> CpuSet:
    """S: the OR of the containers' cpusets. Never empty: an empty mask is no mask to the kernel (EINVAL)."""
    none = not claim.exclusive and not claim.shared
    if none:
        # Without a pool that is known, what it had while its containers were there is all there is to go by.
        mask = EMPTY if node.shared_pool is None else own.pool
    else:
        mask = claim.cpus | union(own.pool if cpus is None else cpus for _, cpus in claim.shared)
    if mask - foreign:
        return mask
    if mask:
        why = f"its CPUs {mask} are other containers' alone"
    elif claim.exclusive or any(cpus is not None for _, cpus in claim.shared):
        why = "none of the sandbox's CPUs is online"
    elif none and node.shared_pool is None:
        why = "no container of it is known any more, and no shared pool"
    else:
        why = "the shared pool has no CPU"
    last = before.mask & node.online
    if last - foreign:
        reasons.append(f"{why}: the last valid mask {last} is kept")
        return last
    if own.pool - foreign:
        reasons.append(f"{why}: it is kept on the shared pool {own.pool}")
        return own.pool
    reasons.append(f"{why}, and no CPU is left for it: it may run on every online CPU")
    return node.online


def _waiting(request: PlacementRequest, own: Ownership, allowed: CpuSet) -> str:
    """Which containers' cpusets the kubelet has yet to rewrite, as far as threads need that, or what the runtime has
    been asked for; "" for nothing."""
    counted = [container for container in request.containers if is_counted(container)]
    if not counted and request.container_ended:
        # Kata takes no CPU out of the sandbox's cgroup when its last container ends: an empty cpuset is not written
        # (src/runtime/pkg/resourcecontrol/cgroups.go, UpdateCpuSet; crates/resource/src/cgroups/resource_inner.rs).
        return "waits for a container, or for its end: its cgroup may still have the CPUs of its last container alone"
    asked = [f"create {container.name or container.id}" if container.creating else
             f"give {container.name or container.id} the CPUs {container.requested_cpuset}"
             for container in counted if container.creating or container.requested_cpuset is not None]
    if asked:
        return f"waits for the runtime to {', '.join(asked)}"
    if not any(container.stale_cpuset for container in counted):
        return ""
    has = union(container.stale_cpuset or container.cpuset or own.pool for container in counted)
    if allowed <= has:
        return ""
    late = [f"{container.name or container.id} from {container.stale_cpuset} to {container.cpuset or own.pool}"
            for container in counted if container.stale_cpuset]
    return f"waits for the kubelet to rewrite the cpuset of {', '.join(late)}"


def _containers(request: PlacementRequest, claim: CpuClaims, places: Sequence[VcpuPlacement],
                policy: Policy) -> tuple[dict[ContainerId, tuple[VcpuId, ...]], str]:
    """The vCPUs of each live container, and why some container is badly off ("" if none is)."""
    everyone = tuple(place.id for place in places)
    floating = tuple(place.id for place in places if place.container is None)
    exclusive = dict(claim.exclusive)
    group = {member: cpus for members, cpus in claim.groups for member in members}
    apart = any(place.container is not None for place in places)
    found: dict[ContainerId, tuple[VcpuId, ...]] = {}
    unserved = []
    for container in request.containers:
        if container.state is ContainerState.STOPPED:
            continue
        if container.pause:
            found[container.id] = floating or everyone  # it asked for nothing, so it lacks nothing
            continue
        if not apart:
            found[container.id] = everyone
            continue
        cpus = exclusive.get(container.id)
        if cpus is None:
            mine = floating
        else:
            # Containers of a pod may have CPUs in common: a vCPU that backs those is all of theirs.
            mine = tuple(place.id for place in places if place.container is not None and place.cpus
                         and place.cpus <= (cpus if place.pinned else group[container.id]))
        if not mine and container.id not in claim.creating:
            unserved.append(str(container.id))
        found[container.id] = mine or everyone
    if not unserved:
        return found, ""
    return found, (f"no vCPU is left for {', '.join(unserved)}: all {len(everyone)} vCPUs back exclusive CPUs, "
                   "and it may use every one of them")


def _other(role: ThreadRole, ground: CandidateCpus, policy: Policy, known: bool, reasons: list[str]) -> CpuSet | None:
    """Where the threads of one other role go."""
    rule = policy.rule(role)
    if not known and policy.vcpus is not VcpuRule.OFF and role not in (ThreadRole.VIRTIOFSD, ThreadRole.SHIM):
        return ground.allowed  # any of these threads may be a vCPU
    if rule is ThreadPolicy.OFF:
        return None
    if rule is ThreadPolicy.APART:
        return ground.shared_part or ground.allowed
    if rule is ThreadPolicy.SANDBOX:
        return ground.allowed
    if rule is ThreadPolicy.SHARED:
        found = ground.shared_part or ground.pool
    elif rule is ThreadPolicy.HOUSEKEEPING:
        found = ground.housekeeping
    else:
        assert isinstance(rule, CpuSet)
        found = (rule & ground.node.online) - ground.foreign
    if found:
        return found
    reasons.append(f"{role.policy}: {rule}: no such CPU can be used; the sandbox mask is used")
    return ground.allowed
