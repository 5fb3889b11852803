"""The rules that place every thread of a VM sandbox: where each may run.

Pure: the same input gives the same placement, and a placement fed back as `previous` gives itself. In comments, S is
the sandbox mask, E the sandbox's exclusive CPUs, P the shared pool and H the housekeeping CPUs.

Whatever the policy, no thread is placed on another container's exclusive CPU, and by default none leaves S. No cpuset
of a container confines the emulator, vhost and virtiofsd threads: Kata keeps them in the sandbox's cgroup or, with
sandbox_cgroup_only=false, in one without limits (sandbox.go, kata_overhead). So each has a policy of its own.
"""

import enum
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.assignments import Rulings, writer_of
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId, ThreadRole, Vcpu, VcpuId, VcpuState
from vmpin.domain.terminal import number_of
from vmpin.placement.ownership import CpuClaims, Node, Ownership, is_counted
from vmpin.placement.policy import Policy, ThreadPolicy, VcpuRule
from vmpin.placement.rulings import effective_containers
from vmpin.placement.vcpus import CandidateCpus, Previous, VcpuPlacement, place_vcpus


class Verdict(enum.StrEnum):
    """How well a sandbox could be placed; the value is what status prints."""

    PINNED = "pinned"
    FLOATING = "floating"
    #: As pinned or floating, but a cpuset cgroup that the kubelet has yet to rewrite still keeps threads elsewhere, or
    #: the runtime is creating a container that vCPUs may come with, or vCPU threads cannot be identified yet.
    WAITING = "waiting"
    DEGRADED = "degraded"
    OFF = "off"
    #: Its threads keep the masks they have: no source reported a container, and there is no shared pool; or no CPU is
    #: left for it.
    UNMANAGED = "unmanaged"


#: An enum's member is looked up by a function, which costs much for thousands of threads in a pass.
_VCPU = ThreadRole.VCPU
_OTHERS = tuple(role for role in ThreadRole if role is not _VCPU)
_APART = ThreadPolicy.APART

#: A reason of the verdict `waiting`.
VCPUS_UNIDENTIFIED = ("its vCPU threads cannot all be identified yet: until then its other threads are kept on the "
                      "sandbox mask")
#: The reason of the verdict `unmanaged`.
UNMANAGED = ("no container of it is known, and no shared pool (no readable checkpoint of the kubelet's, "
             "node.shared_pool is not set): its threads keep the masks they have")
#: Why a VM is left as it is at a watcher's start.
UNLISTED = ("its containers are not known before the runtime lists them to the watcher (NRI): its threads keep the "
            "masks they have")


class _Decision(NamedTuple):
    """The fields of a placement."""

    sandbox: SandboxId
    mask: CpuSet
    verdict: Verdict
    reasons: tuple[str, ...]
    vcpus: tuple[VcpuPlacement, ...]
    #: By role, all but the vCPUs; None leaves the role's threads alone.
    others: Mapping[ThreadRole, CpuSet | None]
    #: The vCPUs that each live container may use in the guest.
    containers: Mapping[ContainerId, tuple[VcpuId, ...]]
    #: Why its cgroup may refuse a mask for now, "" where it may not: the authority has decided otherwise since the
    #: cgroup was written, and rewrites it (the kubelet within its reconcile period, 10 s); or the runtime is working
    #: on a request, for which Kata rewrites it.
    waiting: str = ""
    #: Whether the runtime is working on a request: a mask that changes meanwhile is no drift.
    pending: bool = False


class Placement(_Decision):
    """The decision for one sandbox."""

    @cached_property
    def by_vcpu(self) -> Mapping[VcpuId, CpuSet | None]:
        """The CPUs of each vCPU. Takes no part in equality."""
        return {place.id: place.cpus for place in self.vcpus}

    def cpus_for(self, role: ThreadRole, vcpu: VcpuId | None) -> CpuSet | None:
        """The CPUs of a thread; None when it is left alone (or is a vCPU that is not placed yet)."""
        if role is _VCPU:
            return None if vcpu is None else self.by_vcpu.get(vcpu)
        return self.others[role]

    def without_vcpu(self, vcpu: VcpuId) -> tuple[object, ...]:
        """Where all threads but this vCPU go, to compare two placements."""
        return self.others, {place.id: place.cpus for place in self.vcpus if place.id != vcpu}

    def as_previous(self, before: Previous | None = None, identified: bool = True) -> Previous:
        """The part that the next placement keeps to.
        :param before: the one that this placement kept to.
        :param identified: False while some vCPU thread is not identified: its former placement is kept."""
        had = before or Previous()
        vcpus = {place.id: (place.cpus, place.container) for place in self.vcpus}
        pairs = {vcpu: cpus.first for vcpu, (cpus, container) in vcpus.items()
                 if container is not None and cpus is not None and len(cpus) == 1}
        taken = set(pairs.values())
        older = {vcpu: cpu for vcpu, cpu in had.pairs.items() if vcpu not in pairs and cpu not in taken}
        return Previous(self.mask, vcpus if identified else {**had.vcpus, **vcpus}, {**older, **pairs})


class PlacementRequest(NamedTuple):
    """One sandbox to place. `vcpus` are those whose threads are identified. `container_ended`: one of its containers
    has ended lately. `nic_node`: the host's NUMA node of its NIC, None where that is not known."""

    id: SandboxId
    vcpus: tuple[Vcpu, ...]
    containers: tuple[Container, ...]
    vcpu_state: VcpuState = VcpuState.IDENTIFIED
    container_ended: bool = False
    nic_node: int | None = None

    @property
    def vcpus_identified(self) -> bool:
        return self.vcpu_state is VcpuState.IDENTIFIED


def place(request: PlacementRequest, node: Node, own: Ownership, policy: Policy,
          previous: Previous | None = None) -> Placement:
    """Apply the rules to one sandbox, whose claims are in `own`. Mutates nothing."""
    before = previous or Previous()
    claim = own.claims.get(request.id) or CpuClaims((), ())
    if node.shared_pool is None and not claim.exclusive and not claim.shared and not before.mask:
        return _unmanaged(request, UNMANAGED)
    reasons: list[str] = []
    foreign = own.foreign(request.id)
    mask = _mask(claim, own.rest_of_pod(request.id), foreign, node, own, before, reasons)
    if not mask:
        return _unmanaged(request, *reasons)
    lost = bool(reasons)
    # S without the CPUs that became another pod's while this sandbox's cpusets still name them.
    allowed = mask - foreign
    exclusive = claim.cpus
    candidates = CandidateCpus(allowed, exclusive, foreign, allowed - exclusive, node, own)
    if not request.vcpus_identified and policy.vcpus is not VcpuRule.OFF:
        reasons.append(VCPUS_UNIDENTIFIED if request.vcpu_state is VcpuState.AWAITED else
                       "its vCPU threads cannot all be identified: its other threads are kept on the sandbox mask")
    places, shortage = place_vcpus(request.vcpus, request.vcpus_identified, claim, candidates, policy, before, reasons)
    containers, unserved = _containers(request, claim, places, policy)
    unserved = unserved if request.vcpus_identified else ""  # a vCPU that is identified later may be for them
    if unserved:
        reasons.append(unserved)
    others = {role: _other(role, candidates, policy, request, reasons) for role in _OTHERS}
    verdict = _verdict(request, claim, places, policy, lost, bool(shortage or unserved), reasons)
    return Placement(request.id, mask, verdict, tuple(dict.fromkeys(reasons)), places, others, containers,
                     _waiting(request, own, allowed), claim.pending)


def place_before_vm(sandbox: SandboxId, state: SandboxState | None, node: Node, own: Ownership, policy: Policy,
                    rulings: Rulings, previous: Previous | None = None) -> Placement | None:
    """The placement of a sandbox without a VM: the CPUs of its containers that were reported, else the shared pool.
    None if its processes are left alone: it was unpinned, or there are neither CPUs nor a pool.
    :param state: what the sources reported of the sandbox, None for nothing."""
    if state is not None and state.suspended:
        return None
    containers = () if state is None else effective_containers(state, rulings)
    request = PlacementRequest(sandbox, (), containers, VcpuState.UNIDENTIFIED)
    placement = place(request, node, own, policy, previous)
    return None if placement.verdict is Verdict.UNMANAGED else placement


def _verdict(request: PlacementRequest, claim: CpuClaims, places: Sequence[VcpuPlacement], policy: Policy, lost: bool,
             short: bool, reasons: list[str]) -> Verdict:
    """Return the verdict on a placement; for one that waits for more vCPUs, add the reason to `reasons`.
    :param lost: S had no valid CPU. :param short: vCPUs lack, for one-to-one or for a container."""
    if policy.vcpus is VcpuRule.OFF:
        return Verdict.OFF
    if request.vcpu_state is VcpuState.AWAITED and not lost:
        return Verdict.WAITING
    if short or lost:
        return Verdict.DEGRADED
    if not claim.cpus or policy.vcpus is not VcpuRule.AUTO:
        return Verdict.FLOATING
    if claim.creating and sum(each.pinned for each in places) < len(claim.cpus):
        reasons.append(f"{number_of(len(places), 'vCPU')} for {number_of(len(claim.cpus), 'CPU', 'exclusive')}, while "
                       "a container is created that more may come with")
        return Verdict.WAITING
    return Verdict.PINNED


def _unmanaged(request: PlacementRequest, why: str) -> Placement:
    """Leave every thread alone: its mask may have been set by hand, for a reason."""
    vcpus = sorted(vcpu.id for vcpu in request.vcpus)
    containers = {each.id: tuple(vcpus) for each in request.containers if each.state is not ContainerState.STOPPED}
    places = tuple(VcpuPlacement(vcpu, None) for vcpu in vcpus)
    return Placement(request.id, EMPTY, Verdict.UNMANAGED, (why,), places, dict.fromkeys(_OTHERS),
                     containers)


def _mask(claim: CpuClaims, rest: CpuSet, foreign: CpuSet, node: Node, own: Ownership, before: Previous,
          reasons: list[str]) -> CpuSet:
    """S: the OR of the containers' cpusets, with a CPU at least that is no other pod's; without one (the pool is
    empty) `rest`; else what is left for it, with the reason. Empty if nothing is: no placement widens a sandbox onto
    CPUs that nothing gives it (reserved ones).
    :param rest: the CPUs that the kubelet gives its pod beside those of its containers."""
    none = not claim.exclusive and not claim.shared
    if none:
        # Without a shared pool, only its previous mask shows which CPUs it may use.
        mask = EMPTY if node.shared_pool is None else own.pool
    else:
        mask = claim.cpus | union(own.pool if cpus is None else cpus for _, cpus in claim.shared)
    if not mask - foreign:
        mask = rest or mask
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
    reasons.append(f"{why}, and no CPU is left for it: its threads keep the masks they have")
    return EMPTY


def _waiting(request: PlacementRequest, own: Ownership, allowed: CpuSet) -> str:
    """Describe what the placement waits for; "" for nothing. That is a request that the runtime is working on, or
    containers' cpusets that are yet to be rewritten, where a thread needs that."""
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
    late = [container for container in counted if container.stale_cpuset]
    cpusets = ", ".join(f"{container.name or container.id} from {container.stale_cpuset} to "
                        f"{container.own_cpus or own.pool}" for container in late)
    return f"waits for {writer_of(late[0])} to rewrite the cpuset of {cpusets}"


def _containers(request: PlacementRequest, claim: CpuClaims, places: Sequence[VcpuPlacement],
                policy: Policy) -> tuple[dict[ContainerId, tuple[VcpuId, ...]], str]:
    """The vCPUs of each live container, and why some container has none of its own ("" if all have)."""
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
            found[container.id] = floating or everyone  # it claims no CPU, so it lacks none
            continue
        if not apart:
            found[container.id] = everyone
            continue
        cpus = exclusive.get(container.id)
        if cpus is None:
            mine = floating
        else:
            # Containers of a pod may have CPUs in common: a vCPU that backs those belongs to each of them.
            mine = tuple(place.id for place in places if place.container is not None and place.cpus
                         and place.cpus <= (cpus if place.pinned else group[container.id]))
        if not mine and container.id not in claim.creating:
            unserved.append(str(container.id))
        found[container.id] = mine or everyone
    if not unserved:
        return found, ""
    return found, (f"no vCPU is left for {', '.join(unserved)}: the VM's "
                   f"{number_of(len(everyone), 'vCPU backs exclusive CPUs')}, "
                   "and it may use every one of them")


def _other(role: ThreadRole, candidates: CandidateCpus, policy: Policy, request: PlacementRequest,
           reasons: list[str]) -> CpuSet | None:
    """Where the threads of a role other than the vCPUs go; None leaves them alone."""
    rule = policy.rule(role)
    unsure = not request.vcpus_identified and policy.vcpus is not VcpuRule.OFF
    if unsure and role not in (ThreadRole.VIRTIOFSD, ThreadRole.SHIM):
        return candidates.allowed  # any of these threads may be a vCPU
    if rule is _APART:
        return candidates.shared_part or candidates.allowed
    if rule is ThreadPolicy.NEAR:
        apart = candidates.shared_part or candidates.allowed
        near = EMPTY if request.nic_node is None else candidates.node.topology.nodes.get(request.nic_node, EMPTY)
        return (apart & near) or apart
    if rule is ThreadPolicy.OFF:
        return None
    if rule is ThreadPolicy.SANDBOX:
        return candidates.allowed
    if rule is ThreadPolicy.SHARED:
        found = candidates.shared_part or candidates.pool
    elif rule is ThreadPolicy.HOUSEKEEPING:
        found = candidates.housekeeping
    else:
        assert isinstance(rule, CpuSet)
        found = (rule & candidates.node.online) - candidates.foreign
    if found:
        return found
    reasons.append(f"{role.policy}: {rule}: no such CPU can be used; the sandbox mask is used")
    return candidates.allowed
