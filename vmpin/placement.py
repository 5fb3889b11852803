"""Who may run where: the rules that place every thread of a VM sandbox.

Pure: the same input gives the same placement, and a placement fed back as `previous` gives itself. The words:
S the sandbox mask, E the sandbox's exclusive CPUs, P the shared pool, H the housekeeping CPUs, n vCPUs, e = \\|E\\|.

Whatever the policy, no thread is put on a CPU that is another container's alone, and by default none leaves S.
What stays out: which CPU belongs to whom (ownership), which vCPU gets which CPU of equals (matching).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.matching import match
from vmpin.model import Container, ContainerId, ContainerState, SandboxId, ThreadRole, Vcpu, VcpuId
from vmpin.ownership import Claims, Node, Ownership
from vmpin.policy import Policy, Spare, Vcpus, Where


class Verdict(enum.StrEnum):
    PINNED = "pinned"
    FLOATING = "floating"
    DEGRADED = "degraded"
    OFF = "off"


@dataclass(frozen=True)
class VcpuPlace:
    """Where a vCPU may run; None leaves it alone. `container` is the one it backs, None if it floats."""

    id: VcpuId
    cpus: CpuSet | None
    container: ContainerId | None = None
    #: One vCPU on one exclusive CPU.
    pinned: bool = False


@dataclass(frozen=True)
class Placement:
    """What was decided for one sandbox."""

    sandbox: SandboxId
    mask: CpuSet
    verdict: Verdict
    reasons: tuple[str, ...]
    vcpus: tuple[VcpuPlace, ...]
    #: By role, all but the vCPUs; None leaves the role's threads alone.
    others: Mapping[ThreadRole, CpuSet | None]
    #: Which vCPUs each live container may use in the guest.
    containers: Mapping[ContainerId, tuple[VcpuId, ...]]
    by_vcpu: Mapping[VcpuId, CpuSet | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_vcpu", {place.id: place.cpus for place in self.vcpus})

    def cpus_for(self, role: ThreadRole, vcpu: VcpuId | None) -> CpuSet | None:
        """The CPUs of a thread; None when it is to be left alone (or is a vCPU nobody placed yet)."""
        if role is ThreadRole.VCPU:
            return None if vcpu is None else self.by_vcpu.get(vcpu)
        return self.others[role]

    def but(self, vcpu: VcpuId) -> tuple[object, ...]:
        """Where all threads but this vCPU go, to compare."""
        return self.others, {place.id: place.cpus for place in self.vcpus if place.id != vcpu}

    def previous(self, untold: Previous | None = None) -> Previous:
        """What the next placement keeps to. :param untold: while some vCPU cannot be told, what was kept of it."""
        kept = {} if untold is None else untold.vcpus
        return Previous(self.mask, {**kept, **{place.id: (place.cpus, place.container) for place in self.vcpus}})


@dataclass(frozen=True)
class Previous:
    """What stability needs of the placement before."""

    mask: CpuSet = EMPTY
    vcpus: Mapping[VcpuId, tuple[CpuSet | None, ContainerId | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """One sandbox to place. `known` is False when its vCPUs could not (all) be told from its other threads."""

    id: SandboxId
    vcpus: tuple[Vcpu, ...]
    containers: tuple[Container, ...]
    known: bool = True


def place(request: Request, node: Node, own: Ownership, policy: Policy, previous: Previous | None = None) -> Placement:
    """Apply the rules to one sandbox, whose claims are part of `own`."""
    before = previous or Previous()
    claim = own.claims.get(request.id) or Claims((), ())
    reasons: list[str] = []
    foreign = own.foreign(request.id)
    mask = _mask(claim, foreign, node, own, before, reasons)
    lost = bool(reasons)
    # Where threads may go: S without what became another's while this sandbox's cpusets still name it.
    allowed = (mask - foreign) or mask
    ground = _Ground(allowed, claim.cpus, foreign, node, own)
    places, shortage = _vcpus(request, claim, ground, policy, before, reasons)
    containers, unserved = _containers(request, claim, places, policy)
    unserved = unserved if request.known else ""  # who is told next may be for them
    if unserved:
        reasons.append(unserved)
    others: dict[ThreadRole, CpuSet | None] = {}
    for role in ThreadRole:
        if role is not ThreadRole.VCPU:
            others[role] = _other(role, ground, policy, request.known, reasons)
    if policy.vcpus is Vcpus.OFF:
        verdict = Verdict.OFF
    elif shortage or unserved or lost:
        verdict = Verdict.DEGRADED
    elif claim.cpus and policy.vcpus is Vcpus.AUTO:
        verdict = Verdict.PINNED
    else:
        verdict = Verdict.FLOATING
    return Placement(request.id, mask, verdict, tuple(dict.fromkeys(reasons)), places, others, containers)


@dataclass(frozen=True)
class _Ground:
    """The CPUs the rules choose from, for one sandbox."""

    allowed: CpuSet
    exclusive: CpuSet
    foreign: CpuSet
    node: Node
    own: Ownership

    @property
    def shared_part(self) -> CpuSet:
        """S − E."""
        return self.allowed - self.exclusive

    @property
    def pool(self) -> CpuSet:
        """P without anyone's exclusive CPUs."""
        return self.own.pool - self.own.exclusive

    @property
    def housekeeping(self) -> CpuSet:
        """H without what is another's."""
        return (self.node.housekeeping & self.node.online) - self.foreign


def _mask(claim: Claims, foreign: CpuSet, node: Node, own: Ownership, before: Previous,
          reasons: list[str]) -> CpuSet:
    """S: the OR of the containers' cpusets. Never empty: an empty mask is no mask to the kernel (EINVAL)."""
    if not claim.exclusive and not claim.shared:
        mask = own.pool
    else:
        mask = claim.cpus | union(own.pool if cpus is None else cpus for _, cpus in claim.shared)
    if mask - foreign:
        return mask
    if mask:
        why = f"its CPUs {mask} are other containers' alone"
    elif claim.exclusive or any(cpus is not None for _, cpus in claim.shared):
        why = "none of the sandbox's CPUs is online"
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


def _vcpus(request: Request, claim: Claims, ground: _Ground, policy: Policy, before: Previous,
           reasons: list[str]) -> tuple[tuple[VcpuPlace, ...], bool]:
    """Place the vCPUs; True when there were too few of them for what was asked."""
    vcpus = sorted(request.vcpus, key=lambda vcpu: vcpu.id)
    if policy.vcpus is Vcpus.OFF:
        return tuple(VcpuPlace(vcpu.id, None) for vcpu in vcpus), False
    everywhere = tuple(VcpuPlace(vcpu.id, ground.allowed) for vcpu in vcpus)
    if not request.known:
        reasons.append("the vCPUs cannot all be told from the VM's other threads: each without a place is kept on the "
                       "sandbox mask")
    if policy.vcpus is Vcpus.UNION or not ground.exclusive:
        return everywhere, not request.known
    if not request.known:
        return _as_before(vcpus, claim, ground, policy, before, reasons), True
    if len(vcpus) >= len(ground.exclusive):
        return _one_to_one(vcpus, claim, ground, policy, before, reasons), False
    if not vcpus:
        reasons.append(f"no vCPU for {len(ground.exclusive)} exclusive CPUs")
        return (), True
    return _shares(vcpus, claim, ground, policy, before, reasons), True


def _floating(ground: _Ground, policy: Policy, reasons: list[str]) -> CpuSet:
    """Where vCPUs without a CPU of their own go: S − E, or by policy where the sandbox has no shared CPU."""
    if ground.shared_part:
        return ground.shared_part
    if policy.spare_vcpus is Spare.SHARED:
        if ground.pool:
            return ground.pool
        reasons.append("spare_vcpus: shared: no CPU is in the shared pool; the sandbox mask is used")
    if policy.spare_vcpus is Spare.HOUSEKEEPING:
        if ground.housekeeping:
            return (ground.housekeeping - ground.exclusive) or ground.housekeeping
        reasons.append("spare_vcpus: housekeeping: no housekeeping CPU can be used; the sandbox mask is used")
    return ground.allowed


def _as_before(vcpus: Sequence[Vcpu], claim: Claims, ground: _Ground, policy: Policy, before: Previous,
               reasons: list[str]) -> tuple[VcpuPlace, ...]:
    """While some vCPU cannot be told: who has a place that is still right stays there. One that is plugged in is
    nobody's until it has run, and that may move no other."""
    floating = _floating(ground, policy, reasons)
    places: dict[VcpuId, VcpuPlace] = {}
    lone: set[CpuSet] = set()
    for vcpu in vcpus:
        cpus, container = before.vcpus.get(vcpu.id, (None, None))
        if cpus and container is not None and cpus <= ground.allowed and cpus not in lone:
            owner = next((name for name, own in claim.exclusive if cpus <= own), None)
            if owner is not None:
                places[vcpu.id] = VcpuPlace(vcpu.id, cpus, owner)
                lone |= {cpus} if len(cpus) == 1 else set()
        elif cpus == floating:
            places[vcpu.id] = VcpuPlace(vcpu.id, floating)
    return tuple(places.get(vcpu.id) or VcpuPlace(vcpu.id, ground.allowed) for vcpu in vcpus)


def _one_to_one(vcpus: Sequence[Vcpu], claim: Claims, ground: _Ground, policy: Policy, before: Previous,
                reasons: list[str]) -> tuple[VcpuPlace, ...]:
    """e vCPUs on e exclusive CPUs. Pairs that are still valid stay; of the others the highest ids are pinned, as
    the boot vCPU carries the guest's own housekeeping and interrupts."""
    guest = {vcpu.id: vcpu for vcpu in vcpus}
    pairs: dict[VcpuId, int] = {}
    # One that had the CPU to itself comes before one that floated on a mask of this one CPU.
    for vcpu in sorted(vcpus, key=lambda vcpu: (before.vcpus.get(vcpu.id, (None, None))[1] is None, -vcpu.id)):
        cpus, _ = before.vcpus.get(vcpu.id, (None, None))
        if cpus is not None and len(cpus) == 1 and cpus <= ground.exclusive and cpus.first not in pairs.values():
            pairs[vcpu.id] = cpus.first
    spare = len(vcpus) - len(ground.exclusive)
    floating = _floating(ground, policy, reasons) if spare else EMPTY
    wanted = [cpu for cpu in ground.exclusive if cpu not in pairs.values()]
    # Of the unpaired, those that have to move anyway are pinned first: each that floats and may go on floating
    # where it did is a vCPU that does not move.
    unpaired = sorted((vcpu for vcpu in vcpus if vcpu.id not in pairs),
                      key=lambda vcpu: (spare > 0 and before.vcpus.get(vcpu.id, (None, None))[0] == floating,
                                        -vcpu.id))
    pairs |= match(unpaired[: len(wanted)], wanted, pairs, guest, ground.node.topology)
    owner = {cpu: container for container, cpus in reversed(claim.exclusive) for cpu in cpus}
    return tuple(
        VcpuPlace(vcpu.id, CpuSet((pairs[vcpu.id],)), owner[pairs[vcpu.id]], pinned=True) if vcpu.id in pairs
        else VcpuPlace(vcpu.id, floating) for vcpu in vcpus)


def _shares(vcpus: Sequence[Vcpu], claim: Claims, ground: _Ground, policy: Policy, before: Previous,
            reasons: list[str]) -> tuple[VcpuPlace, ...]:
    """Fewer vCPUs than exclusive CPUs: each exclusive container floats on its own CPUs with its own vCPUs."""
    groups = {container: cpus & ground.allowed for container, cpus in claim.exclusive if cpus}
    for_shared = 1 if claim.shared else 0
    count, wants = len(vcpus), len(ground.exclusive)
    if count < len(groups) + for_shared:
        reasons.append(f"{count} vCPUs for {wants} exclusive CPUs, fewer than the {len(groups) + for_shared} groups "
                       "of containers to keep apart: every vCPU floats on the sandbox mask")
        return tuple(VcpuPlace(vcpu.id, ground.allowed) for vcpu in vcpus)
    reasons.append(f"{count} vCPUs for {wants} exclusive CPUs: no one-to-one, each exclusive container has its own "
                   "share of the vCPUs")
    sizes = share(count - for_shared, {container: len(cpus) for container, cpus in groups.items()})
    # A place is a container's, or None for the shared ones: the lowest ids are theirs, so they choose first.
    floating = _floating(ground, policy, reasons) if for_shared else EMPTY
    places: list[ContainerId | None] = [None, *groups]
    room = {to: for_shared if to is None else sizes[to] for to in places}
    where = {to: floating if to is None else groups[to] for to in places}
    given: dict[VcpuId, ContainerId | None] = {}

    def give(vcpu_id: VcpuId, to: ContainerId | None) -> None:
        if vcpu_id not in given and room[to]:
            given[vcpu_id] = to
            room[to] -= 1

    ids = [vcpu.id for vcpu in vcpus]
    was = {vcpu_id: before.vcpus[vcpu_id] for vcpu_id in ids if vcpu_id in before.vcpus}
    for vcpu_id, (cpus, container) in was.items():  # who has its CPUs already stays, for its container if it can
        if container in room and where[container] == cpus:
            give(vcpu_id, container)
    for vcpu_id, (cpus, _) in was.items():
        for to in where:
            if where[to] == cpus:
                give(vcpu_id, to)
    for vcpu_id, (_, container) in was.items():  # and else goes where its container went
        if container in sizes:
            give(vcpu_id, container)
    for to in where:
        for vcpu_id in ids:
            give(vcpu_id, to)
    return tuple(VcpuPlace(vcpu_id, where[given[vcpu_id]], given[vcpu_id]) for vcpu_id in ids)


def share(count: int, weights: Mapping[ContainerId, int]) -> dict[ContainerId, int]:
    """`count` things by weight: largest remainder, at least one each (count is at least the number of weights).

    >>> share(5, {"a": 6, "b": 2})
    {'a': 4, 'b': 1}
    """
    got: dict[ContainerId, int] = {}
    while True:
        rest = {name: weight for name, weight in weights.items() if name not in got}
        free, total = count - len(got), sum(rest.values())
        # Who would get less than one gets one; the others share what is left.
        small = [name for name, weight in rest.items() if free * weight < total]
        if not small:
            break
        got |= dict.fromkeys(small, 1)
    floors = {name: free * weight // total for name, weight in rest.items()}
    by_remainder = sorted(rest, key=lambda name: -(free * rest[name] % total))
    for name in by_remainder[: free - sum(floors.values())]:
        floors[name] += 1
    return {name: got.get(name) or floors[name] for name in weights}


def _containers(request: Request, claim: Claims, places: Sequence[VcpuPlace],
                policy: Policy) -> tuple[dict[ContainerId, tuple[VcpuId, ...]], str]:
    """The vCPUs of each live container, and why some container is badly off ("" if none is)."""
    everyone = tuple(place.id for place in places)
    floating = tuple(place.id for place in places if place.container is None)
    exclusive = dict(claim.exclusive)
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
            mine = tuple(place.id for place in places
                         if place.container == container.id or (place.pinned and place.cpus and place.cpus <= cpus))
        if not mine:
            unserved.append(str(container.id))
        found[container.id] = mine or everyone
    if not unserved:
        return found, ""
    return found, (f"no vCPU is left for {', '.join(unserved)}: all {len(everyone)} vCPUs back exclusive CPUs, "
                   "and it may use every one of them")


def _other(role: ThreadRole, ground: _Ground, policy: Policy, known: bool, reasons: list[str]) -> CpuSet | None:
    """Where the threads of one other role go."""
    rule = policy.rule(role)
    if not known and policy.vcpus is not Vcpus.OFF and role not in (ThreadRole.VIRTIOFSD, ThreadRole.SHIM):
        return ground.allowed  # any of these threads may be a vCPU
    if rule is Where.OFF:
        return None
    if rule is Where.SANDBOX:
        return ground.allowed
    if rule is Where.SHARED:
        found = ground.shared_part or ground.pool
    elif rule is Where.HOUSEKEEPING:
        found = ground.housekeeping
    else:
        assert isinstance(rule, CpuSet)
        found = (rule & ground.node.online) - ground.foreign
    if found:
        return found
    reasons.append(f"{role.policy}: {rule}: no such CPU can be used; the sandbox mask is used")
    return ground.allowed
