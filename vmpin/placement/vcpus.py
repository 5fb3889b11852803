"""Which CPUs each vCPU of a sandbox gets: one to one where there are enough of them, else shares; who has a place
that is still right stays there.

Pure. What stays out: the sandbox mask and the other threads (placement), which CPU of equals (matching).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId, Vcpu, VcpuId
from vmpin.placement.matching import match
from vmpin.placement.ownership import CpuClaims, Node, Ownership
from vmpin.placement.policy import Policy, SpareVcpuRule, VcpuRule


class VcpuPlacement(NamedTuple):
    """Where a vCPU may run; None leaves it alone. `container` is the one it backs, None if it floats."""

    id: VcpuId
    cpus: CpuSet | None
    container: ContainerId | None = None
    #: One vCPU on one exclusive CPU.
    pinned: bool = False


@dataclass(frozen=True)
class Previous:
    """What stability needs of the placement before."""

    mask: CpuSet = EMPTY
    vcpus: Mapping[VcpuId, tuple[CpuSet | None, ContainerId | None]] = field(default_factory=dict)
    #: The CPU that each vCPU last had to itself, if no other has had it since: CPUs go off and come back, and the
    #: kubelet's checkpoint does.
    pairs: Mapping[VcpuId, int] = field(default_factory=dict)


class CandidateCpus(NamedTuple):
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


def place_vcpus(given: Sequence[Vcpu], known: bool, claim: CpuClaims, ground: CandidateCpus, policy: Policy,
                before: Previous,
                reasons: list[str]) -> tuple[tuple[VcpuPlacement, ...], bool]:
    """Place the vCPUs; True when there were too few of them for what was asked. Why is added to `reasons`.

    :param known: False when they are not all, as some cannot be told from the VM's other threads.
    """
    vcpus = sorted(given, key=lambda vcpu: vcpu.id)
    if policy.vcpus is VcpuRule.OFF:
        return tuple(VcpuPlacement(vcpu.id, None) for vcpu in vcpus), False
    everywhere = tuple(VcpuPlacement(vcpu.id, ground.allowed) for vcpu in vcpus)
    if policy.vcpus is VcpuRule.UNION or not ground.exclusive:
        return everywhere, not known
    if not known:
        return _as_before(vcpus, claim, ground, policy, before, reasons), True
    settled = union(cpus for container, cpus in claim.exclusive if container not in claim.creating)
    if claim.creating and len(settled) <= len(vcpus) <= len(ground.exclusive):
        # Kata plugs in one vCPU after the other for a container that is created. Each gets a CPU of the container's as
        # it comes, and the vCPUs from before keep their places: in the end the boot vCPU is spare again.
        return _one_to_one(vcpus, claim, ground, policy, before, reasons, ground.exclusive - settled), False
    if len(vcpus) >= len(ground.exclusive):
        return _one_to_one(vcpus, claim, ground, policy, before, reasons), False
    if not vcpus:
        reasons.append(f"no vCPU for {len(ground.exclusive)} exclusive CPUs")
        return (), True
    return _shares(vcpus, claim, ground, policy, before, reasons), True


def _floating(ground: CandidateCpus, policy: Policy, reasons: list[str]) -> CpuSet:
    """Where vCPUs without a CPU of their own go: S − E, or by policy where the sandbox has no shared CPU."""
    if ground.shared_part:
        return ground.shared_part
    if policy.spare_vcpus is SpareVcpuRule.SHARED:
        if ground.pool:
            return ground.pool
        reasons.append("spare_vcpus: shared: no CPU is in the shared pool; the sandbox mask is used")
    if policy.spare_vcpus is SpareVcpuRule.HOUSEKEEPING:
        if ground.housekeeping:
            return (ground.housekeeping - ground.exclusive) or ground.housekeeping
        reasons.append("spare_vcpus: housekeeping: no housekeeping CPU can be used; the sandbox mask is used")
    return ground.allowed


def _as_before(vcpus: Sequence[Vcpu], claim: CpuClaims, ground: CandidateCpus, policy: Policy, before: Previous,
               reasons: list[str]) -> tuple[VcpuPlacement, ...]:
    """While some vCPU cannot be told: who has CPUs of a container's own stays there, and nobody else goes there. One
    that is plugged in is nobody's until it has run, and that may move no other."""
    lone: set[CpuSet] = set()
    kept: dict[VcpuId, VcpuPlacement] = {}
    for vcpu, (cpus, container) in sorted(before.vcpus.items()):
        if cpus and container is not None and cpus <= ground.allowed and cpus not in lone:
            owner = next((members[0] for members, own in claim.groups if cpus <= own), None)
            if owner is not None:
                kept[vcpu] = VcpuPlacement(vcpu, cpus, owner)
                lone |= {cpus} if len(cpus) == 1 else set()
    # Where each container has vCPUs of its own, the others float; else they may be all that it has.
    apart = bool(kept) and {members[0] for members, own in claim.groups if own & ground.allowed} <= {
        place.container for place in kept.values()}
    rest = _floating(ground, policy, reasons) if apart else ground.allowed
    return tuple(kept.get(vcpu.id) or VcpuPlacement(vcpu.id, rest) for vcpu in vcpus)


def _one_to_one(vcpus: Sequence[Vcpu], claim: CpuClaims, ground: CandidateCpus, policy: Policy, before: Previous,
                reasons: list[str], for_new: CpuSet = EMPTY) -> tuple[VcpuPlacement, ...]:
    """e vCPUs on e exclusive CPUs. Pairs that are still valid stay; of the others the highest ids are pinned, as
    the boot vCPU carries the guest's own housekeeping and interrupts.

    :param for_new: exclusive CPUs that only vCPUs get that had no place before; there may be fewer of those.
    """
    guest = {vcpu.id: vcpu for vcpu in vcpus}
    pairs: dict[VcpuId, int] = {}
    had = {vcpu.id: before.vcpus.get(vcpu.id, (None, None)) for vcpu in vcpus}
    last = {vcpu.id: before.pairs.get(vcpu.id, -1) for vcpu in vcpus}
    # One that had the CPU to itself comes before one that floated on a mask of this one CPU.
    for number in sorted(had, key=lambda number: (had[number][1] is None, last[number] not in (had[number][0] or ()),
                                                  -number)):
        cpus, container = had[number]
        if container is None and claim.creating:
            continue  # it floats on the one CPU of the container that is created, whose vCPU comes just now
        if cpus is not None and len(cpus) == 1 and cpus <= ground.exclusive and cpus.first not in pairs.values():
            pairs[number] = cpus.first
    spare = len(vcpus) - len(ground.exclusive - for_new)
    floating = _floating(ground, policy, reasons) if spare else EMPTY
    wanted = [cpu for cpu in ground.exclusive - for_new if cpu not in pairs.values()]
    # Of the unpaired, those that have to move anyway are pinned first: each that floats and may go on floating
    # where it did is a vCPU that does not move. Then those that had a CPU that is there again, and get that.
    unpaired = sorted(had.keys() - pairs.keys(), key=lambda number: (spare > 0 and had[number][0] == floating,
                                                                     last[number] not in wanted, -number))
    chosen = unpaired[: len(wanted)]
    for number in chosen:
        if last[number] in wanted:
            wanted.remove(last[number])
            pairs[number] = last[number]
    pairs |= match([guest[number] for number in chosen if number not in pairs], wanted, pairs, guest,
                   ground.node.topology)
    if for_new:
        new = [guest[number] for number in sorted(had.keys() - pairs.keys() - before.vcpus.keys(), reverse=True)]
        free = [cpu for cpu in for_new if cpu not in pairs.values()]
        pairs |= match(new[:len(free)], free, pairs, guest, ground.node.topology)
    owner = {cpu: container for container, cpus in reversed(claim.exclusive) for cpu in cpus}
    return tuple(
        VcpuPlacement(vcpu.id, CpuSet((pairs[vcpu.id],)), owner[pairs[vcpu.id]], pinned=True) if vcpu.id in pairs
        else VcpuPlacement(vcpu.id, floating) for vcpu in vcpus)


def _shares(vcpus: Sequence[Vcpu], claim: CpuClaims, ground: CandidateCpus, policy: Policy, before: Previous,
            reasons: list[str]) -> tuple[VcpuPlacement, ...]:
    """Fewer vCPUs than exclusive CPUs: each exclusive container floats on its own CPUs with its own vCPUs."""
    groups = {members[0]: cpus & ground.allowed for members, cpus in claim.groups if cpus}
    for_shared = 1 if claim.shared else 0
    count, wants = len(vcpus), len(ground.exclusive)
    if count < len(groups) + for_shared:
        reasons.append(f"{count} vCPUs for {wants} exclusive CPUs, fewer than the {len(groups) + for_shared} groups "
                       "of containers to keep apart: every vCPU floats on the sandbox mask")
        return tuple(VcpuPlacement(vcpu.id, ground.allowed) for vcpu in vcpus)
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
    return tuple(VcpuPlacement(vcpu_id, where[given[vcpu_id]], given[vcpu_id]) for vcpu_id in ids)


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
