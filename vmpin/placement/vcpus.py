"""Which CPUs each vCPU of a sandbox gets.

Where there are as many vCPUs as exclusive CPUs, one vCPU is pinned on each; with fewer, each exclusive container gets
a share of the vCPUs, which float on its CPUs. vCPUs without a CPU of their own float. Existing assignments that are
still valid are kept, and a change moves as few vCPUs as possible: a vCPU that moves loses its cache, and whatever the
guest has pinned on it moves with it.

Where the rules come from:
- Kata boots a VM with `default_vcpus` (1) and plugs in a vCPU for each CPU that its containers ask for (sandbox.go,
  updateResources; runtime-rs, cpu_mem/cpu.rs). So a sandbox usually has one vCPU more than exclusive CPUs: the spare.
- Kata's own pinning (enable_vcpus_pinning) needs exactly as many vCPUs as CPUs, and does nothing here.
- Linux runs much of a guest's own work on the boot vCPU, which has the lowest id: the highest ids are pinned.
- The kubelet hands an init container's CPUs on to the next container of the pod: those have vCPUs in common
  (`CpuClaims.groups`).

Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId, Vcpu, VcpuId, named
from vmpin.domain.terminal import number_of
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


class Previous(NamedTuple):
    """The part of the previous placement that the next one keeps to."""

    mask: CpuSet = EMPTY
    vcpus: Mapping[VcpuId, tuple[CpuSet | None, ContainerId | None]] = MappingProxyType({})
    #: The CPU that each vCPU last had to itself, unless another vCPU has had it since. CPUs go offline and come back,
    #: and so do the entries of the kubelet's checkpoint.
    pairs: Mapping[VcpuId, int] = MappingProxyType({})


class CandidateCpus(NamedTuple):
    """The CPUs that the rules choose from, for one sandbox."""

    #: S without the CPUs that became another sandbox's.
    allowed: CpuSet
    #: E.
    exclusive: CpuSet
    #: Other pods' exclusive CPUs.
    foreign: CpuSet
    #: S − E.
    shared_part: CpuSet
    node: Node
    own: Ownership

    @property
    def pool(self) -> CpuSet:
        """P without any container's exclusive CPUs."""
        return self.own.pool - self.own.exclusive

    @property
    def housekeeping(self) -> CpuSet:
        """H without other pods' CPUs."""
        return (self.node.housekeeping & self.node.online) - self.foreign


def place_vcpus(given: Sequence[Vcpu], identified: bool, claims: CpuClaims, candidates: CandidateCpus, policy: Policy,
                previous: Previous, reasons: list[str]) -> tuple[tuple[VcpuPlacement, ...], bool]:
    """The placement of each vCPU, and whether they are too few for the claims; the reason is added to `reasons`.
    :param identified: False when some vCPU thread is not identified among the VM's threads: `given` lacks it."""
    vcpus = sorted(given, key=lambda vcpu: vcpu.id)
    if policy.vcpus is VcpuRule.OFF:
        return tuple(VcpuPlacement(vcpu.id, None) for vcpu in vcpus), False
    if policy.vcpus is VcpuRule.UNION or not candidates.exclusive:
        allowed = candidates.allowed
        return tuple([named(VcpuPlacement, (vcpu.id, allowed, None, False)) for vcpu in vcpus]), not identified
    placer = _Placer(vcpus, claims, candidates, policy, previous, reasons)
    if not identified:
        return placer.keep_previous(), True
    created = union(cpus for container, cpus in claims.exclusive if container not in claims.creating)
    if claims.creating and len(created) <= len(vcpus) <= len(candidates.exclusive):
        # Kata plugs in one vCPU after the other for a container that is created. Each gets a CPU of the container's as
        # it comes, and the vCPUs from before keep their CPUs: in the end the boot vCPU is spare again.
        return placer.one_to_one(candidates.exclusive - created), False
    if len(vcpus) >= len(candidates.exclusive):
        return placer.one_to_one(), False
    if not vcpus:
        reasons.append(f"no vCPU for {number_of(len(candidates.exclusive), 'CPU', 'exclusive')}")
        return (), True
    return placer.shares(), True


class _Placer(NamedTuple):
    """One sandbox's vCPUs, ascending by id, and what their placement depends on. Adds to `reasons` alone."""

    vcpus: Sequence[Vcpu]
    claims: CpuClaims
    candidates: CandidateCpus
    policy: Policy
    previous: Previous
    reasons: list[str]

    def floating(self) -> CpuSet:
        """Where vCPUs without a CPU of their own go: S − E, or by policy where the sandbox has no shared CPU."""
        candidates = self.candidates
        if candidates.shared_part:
            return candidates.shared_part
        if self.policy.spare_vcpus is SpareVcpuRule.SHARED:
            if candidates.pool:
                return candidates.pool
            self.reasons.append("spare_vcpus: shared: no CPU is in the shared pool; the sandbox mask is used")
        if self.policy.spare_vcpus is SpareVcpuRule.HOUSEKEEPING:
            if candidates.housekeeping:
                return (candidates.housekeeping - candidates.exclusive) or candidates.housekeeping
            self.reasons.append("spare_vcpus: housekeeping: no housekeeping CPU can be used; the sandbox mask is used")
        return candidates.allowed

    # Not all vCPU threads are identified.

    def keep_previous(self) -> tuple[VcpuPlacement, ...]:
        """Keep every vCPU that has CPUs of a container where it is, and all others off those CPUs: a vCPU that is
        plugged in cannot be identified before it has run, and must not move any other meanwhile."""
        allowed, groups = self.candidates.allowed, self.claims.groups
        lone: set[CpuSet] = set()
        kept: dict[VcpuId, VcpuPlacement] = {}
        for vcpu, (cpus, container) in sorted(self.previous.vcpus.items()):
            if cpus and container is not None and cpus <= allowed and cpus not in lone:
                owner = next((members[0] for members, own in groups if cpus <= own), None)
                if owner is not None:
                    kept[vcpu] = VcpuPlacement(vcpu, cpus, owner)
                    lone |= {cpus} if len(cpus) == 1 else set()
        # Where each container has vCPUs of its own, the others float; else they may be all that it has.
        apart = bool(kept) and {members[0] for members, own in groups if own & allowed} <= {
            placement.container for placement in kept.values()}
        rest = self.floating() if apart else allowed
        return tuple(kept.get(vcpu.id) or VcpuPlacement(vcpu.id, rest) for vcpu in self.vcpus)

    # As many vCPUs as exclusive CPUs, or more.

    def one_to_one(self, for_new: CpuSet = EMPTY) -> tuple[VcpuPlacement, ...]:
        """One vCPU on each exclusive CPU; the other vCPUs float. In tiers, the strongest first:

        1. A vCPU that has an exclusive CPU to itself keeps it (`_kept_pairs`).
        2. For the CPUs left, vCPUs are chosen (`_to_pin`); one whose former CPU is free again gets that.
        3. The others chosen get the CPU that suits the guest's topology (matching).
        4. The CPUs `for_new` go to vCPUs that had no placement before; there may be fewer of those."""
        guest = {vcpu.id: vcpu for vcpu in self.vcpus}
        topology = self.candidates.node.topology
        exclusive = self.candidates.exclusive - for_new
        pairs = self._kept_pairs()
        floating = self.floating() if len(self.vcpus) > len(exclusive) else EMPTY
        free = [cpu for cpu in exclusive if cpu not in pairs.values()]
        chosen = self._to_pin(pairs, free, floating)
        for vcpu in chosen:
            former = self.previous.pairs.get(vcpu)
            if former in free:
                free.remove(former)
                pairs[vcpu] = former
        pairs |= match([guest[vcpu] for vcpu in chosen if vcpu not in pairs], free, pairs, guest, topology)
        new = [guest[vcpu] for vcpu in sorted(guest.keys() - pairs.keys() - self.previous.vcpus.keys(), reverse=True)]
        free = [cpu for cpu in for_new if cpu not in pairs.values()]
        pairs |= match(new[:len(free)], free, pairs, guest, topology)
        owner = {cpu: container for container, cpus in reversed(self.claims.exclusive) for cpu in cpus}
        return tuple(
            VcpuPlacement(vcpu, CpuSet((pairs[vcpu],)), owner[pairs[vcpu]], pinned=True) if vcpu in pairs
            else VcpuPlacement(vcpu, floating) for vcpu in guest)

    def _kept_pairs(self) -> dict[VcpuId, int]:
        """Return the vCPUs that are on one exclusive CPU each, with that CPU. Where two are on the same CPU it goes to
        one that backed a container before one that floated, then to the one that last had it to itself."""
        on_one = [(container is None, self.previous.pairs.get(vcpu.id) != cpus.first, -vcpu.id, cpus.first)
                  for vcpu in self.vcpus
                  for cpus, container in [self.previous.vcpus.get(vcpu.id, (None, None))]
                  if cpus is not None and len(cpus) == 1 and cpus <= self.candidates.exclusive]
        pairs: dict[VcpuId, int] = {}
        for floated, _, negative_id, cpu in sorted(on_one):
            if floated and self.claims.creating:
                continue  # it floats on the one CPU of the container that is created, whose vCPU is about to come
            if cpu not in pairs.values():
                pairs[VcpuId(-negative_id)] = cpu
        return pairs

    def _to_pin(self, pairs: Mapping[VcpuId, int], free: Sequence[int], floating: CpuSet) -> list[VcpuId]:
        """The vCPUs without a pair that are pinned on the `free` CPUs, as many as those. In this order: those that
        have to move anyway (one that floats, and may go on floating there, does not); those whose former CPU is free
        again; the highest ids."""
        def last(vcpu: VcpuId) -> tuple[bool, bool, int]:
            cpus, _ = self.previous.vcpus.get(vcpu, (None, None))
            return bool(floating) and cpus == floating, self.previous.pairs.get(vcpu) not in free, -vcpu

        unpaired = [vcpu.id for vcpu in self.vcpus if vcpu.id not in pairs]
        return sorted(unpaired, key=last)[:len(free)]

    # Fewer vCPUs than exclusive CPUs.

    def shares(self) -> tuple[VcpuPlacement, ...]:
        """Each exclusive container floats on its own CPUs with its own share of the vCPUs, and the shared containers
        have one vCPU; with too few vCPUs for that, all float on the sandbox mask."""
        count, wants, allowed = len(self.vcpus), len(self.candidates.exclusive), self.candidates.allowed
        groups = {members[0]: cpus & allowed for members, cpus in self.claims.groups if cpus}
        for_shared = 1 if self.claims.shared else 0
        if count < len(groups) + for_shared:
            self.reasons.append(
                f"{number_of(count, 'vCPU')} for {wants} exclusive CPUs, fewer than the "
                f"{len(groups) + for_shared} groups of containers to keep apart: every vCPU floats on the "
                "sandbox mask")
            return tuple(VcpuPlacement(vcpu.id, allowed) for vcpu in self.vcpus)
        self.reasons.append(f"{number_of(count, 'vCPU')} for {wants} exclusive CPUs: no one-to-one, each exclusive "
                            "container has its own share of the vCPUs")
        # By container, None for all shared ones.
        sizes = share(count - for_shared, {container: len(cpus) for container, cpus in groups.items()})
        floating = self.floating() if for_shared else EMPTY
        room = {to: for_shared if to is None else sizes[to] for to in (None, *groups)}
        cpus_of = {to: floating if to is None else groups[to] for to in (None, *groups)}
        given: dict[VcpuId, ContainerId | None] = {}
        for vcpu, container in self._preferences(cpus_of):
            if vcpu not in given and room[container]:
                given[vcpu] = container
                room[container] -= 1
        return tuple(VcpuPlacement(vcpu.id, cpus_of[given[vcpu.id]], given[vcpu.id]) for vcpu in self.vcpus)

    def _preferences(self, cpus_of: Mapping[ContainerId | None, CpuSet]) -> Iterator[
            tuple[VcpuId, ContainerId | None]]:
        """Yield pairs of a vCPU and a container that it may back (None: the shared ones), the most preferred
        first. In tiers:

        1. A vCPU stays on its CPUs, and with its container.
        2. It stays on its CPUs, for another container that has those now.
        3. It goes to the CPUs that its container has now.
        4. The lowest ids go to the shared containers, the others to the exclusive ones in their order."""
        had = [(vcpu.id, *self.previous.vcpus[vcpu.id]) for vcpu in self.vcpus if vcpu.id in self.previous.vcpus]
        yield from ((vcpu, container) for vcpu, cpus, container in had
                    if container in cpus_of and cpus_of[container] == cpus)
        yield from ((vcpu, container) for vcpu, cpus, _ in had for container in cpus_of if cpus_of[container] == cpus)
        yield from ((vcpu, container) for vcpu, _, container in had if container is not None and container in cpus_of)
        yield from ((vcpu.id, container) for container in cpus_of for vcpu in self.vcpus)


def share(count: int, weights: Mapping[ContainerId, int]) -> dict[ContainerId, int]:
    """`count` things by weight: largest remainder, at least one each (count is at least the number of weights).

    >>> share(5, {"a": 6, "b": 2})
    {'a': 4, 'b': 1}"""
    got: dict[ContainerId, int] = {}
    while True:
        rest = {name: weight for name, weight in weights.items() if name not in got}
        free, total = count - len(got), sum(rest.values())
        # A group that would get less than one vCPU gets one; the others share what is left.
        small = [name for name, weight in rest.items() if free * weight < total]
        if not small:
            break
        got |= dict.fromkeys(small, 1)
    floors = {name: free * weight // total for name, weight in rest.items()}
    by_remainder = sorted(rest, key=lambda name: -(free * rest[name] % total))
    for name in by_remainder[: free - sum(floors.values())]:
        floors[name] += 1
    return {name: got.get(name) or floors[name] for name in weights}
