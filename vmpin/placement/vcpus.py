"""The rules for vCPUs: which CPUs each vCPU of a sandbox gets. Pure. S, E, P and H as in `rules`.

With at least as many vCPUs as exclusive CPUs, one vCPU is pinned on each exclusive CPU. With fewer, each exclusive
container gets a share of the vCPUs, which float on its CPUs. vCPUs without a CPU of their own float. Valid assignments
are kept, and a change moves as few vCPUs as possible: a vCPU that moves loses its cache, and everything that the guest
has pinned on it moves too.

Reasons for the rules:
- Kata boots a VM with `default_vcpus` (1) and plugs in a vCPU for each CPU that its containers request (sandbox.go,
  updateResources; runtime-rs, cpu_mem/cpu.rs). So a sandbox usually has one more vCPU than exclusive CPUs: the spare.
- Kata's own pinning (enable_vcpus_pinning) needs exactly as many vCPUs as CPUs, so it has no effect here.
- Linux runs much of a guest's own work on the boot vCPU, which has the lowest id: the highest ids are pinned.
- The kubelet passes an init container's CPUs on to the next container of the pod: such containers share vCPUs
  (`CpuClaims.groups`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId, Vcpu, VcpuId, named
from vmpin.domain.policy import Policy, SpareVcpuRule, VcpuRule
from vmpin.domain.sandbox_placement import Previous, VcpuPlacement
from vmpin.domain.terminal import number_of
from vmpin.domain.topology import Topology
from vmpin.named_tuple import NamedTuple
from vmpin.placement.ownership import CpuClaims, Node, Ownership


class CandidateCpus(NamedTuple):
    """The CPUs that the rules choose from, for one sandbox."""

    allowed: CpuSet  #: S without other pods' exclusive CPUs.
    exclusive: CpuSet  #: E.
    foreign: CpuSet  #: Other pods' exclusive CPUs.
    shared_part: CpuSet  #: S − E.
    node: Node
    own: Ownership

    @property
    def pool(self) -> CpuSet:
        """P as `Ownership.pool_for_policies`."""
        return self.own.pool_for_policies

    @property
    def housekeeping(self) -> CpuSet:
        """H without other pods' CPUs."""
        return (self.node.housekeeping & self.node.online) - self.foreign


def place_vcpus(vcpus: Sequence[Vcpu], identified: bool, claims: CpuClaims, candidates: CandidateCpus, policy: Policy,
                previous: Previous, reasons: list[str]) -> tuple[tuple[VcpuPlacement, ...], bool]:
    """The placement of each vCPU, and whether there are too few vCPUs for the claims, with the reason added to
    `reasons`.
    :param identified: False if `vcpus` lacks some, because their threads are not identified."""
    vcpus = sorted(vcpus, key=lambda vcpu: vcpu.id)
    if policy.vcpus is VcpuRule.OFF:
        return tuple(VcpuPlacement(vcpu.id, None) for vcpu in vcpus), False
    if policy.vcpus is VcpuRule.UNION or not candidates.exclusive:
        allowed = candidates.allowed
        return tuple([named(VcpuPlacement, (vcpu.id, allowed, None, False)) for vcpu in vcpus]), not identified
    placer = _Placer(vcpus, claims, candidates, policy, previous, reasons)
    if not identified:
        return placer.keep_previous(), True
    of_created = union(cpus for container, cpus in claims.exclusive if container not in claims.creating)
    if claims.creating and len(of_created) <= len(vcpus) <= len(candidates.exclusive):
        # Kata plugs in one vCPU after another for a container that is being created. Each new vCPU gets one of the
        # container's CPUs, and the earlier vCPUs keep their CPUs: in the end the boot vCPU is the spare one again.
        # With the boot vCPU 0 and a container for CPUs 4-5, vCPU 1 gets 4 and vCPU 2 gets 5. Without this rule vCPUs 0
        # and 1 would be as many as the exclusive CPUs, and vCPU 0 would be on one of them until vCPU 2 exists.
        return placer.one_to_one(of_container_in_creation=candidates.exclusive - of_created), False
    if len(vcpus) >= len(candidates.exclusive):
        return placer.one_to_one(), False
    if not vcpus:
        reasons.append(f"no vCPU for {number_of(len(candidates.exclusive), 'CPU', 'exclusive')}")
        return (), True
    return placer.shares(), True


class _Placer(NamedTuple):
    """Places one sandbox's vCPUs, which are ascending by id. Mutates only `reasons`."""

    vcpus: Sequence[Vcpu]
    claims: CpuClaims
    candidates: CandidateCpus
    policy: Policy
    previous: Previous
    reasons: list[str]

    def floating(self) -> CpuSet:
        """The CPUs of vCPUs without a CPU of their own: S − E, or by policy if the sandbox has no shared CPU."""
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
        """Keep vCPUs on the CPUs of their containers, and all other vCPUs off those CPUs: a vCPU that is plugged in
        cannot be identified before it has run, and must not move another vCPU until then."""
        allowed, groups = self.candidates.allowed, self.claims.groups
        taken: set[CpuSet] = set()
        kept: dict[VcpuId, VcpuPlacement] = {}
        for vcpu, (cpus, container) in sorted(self.previous.vcpus.items()):
            if cpus and container is not None and cpus <= allowed and cpus not in taken:
                owner = next((members[0] for members, own in groups if cpus <= own), None)
                if owner is not None:
                    kept[vcpu] = VcpuPlacement(vcpu, cpus, owner)
                    taken |= {cpus} if len(cpus) == 1 else set()
        # If each container has vCPUs of its own, the others float; if not, the others may be all that it has.
        apart = bool(kept) and {members[0] for members, own in groups if own & allowed} <= {
            placement.container for placement in kept.values()}
        rest = self.floating() if apart else allowed
        return tuple(kept.get(vcpu.id) or VcpuPlacement(vcpu.id, rest) for vcpu in self.vcpus)

    # As many vCPUs as exclusive CPUs, or more.

    def one_to_one(self, of_container_in_creation: CpuSet = EMPTY) -> tuple[VcpuPlacement, ...]:
        """One vCPU on each exclusive CPU; the other vCPUs float. In this order:

        1. A vCPU that has an exclusive CPU to itself keeps it (`_kept_pairs`).
        2. vCPUs are chosen for the remaining CPUs (`_to_pin`); one whose former CPU is free again gets that.
        3. The other chosen vCPUs get CPUs by the guest's topology (`match`).
        4. The CPUs `of_container_in_creation` go to vCPUs without a previous placement, as far as there are any."""
        guest = {vcpu.id: vcpu for vcpu in self.vcpus}
        topology = self.candidates.node.topology
        exclusive = self.candidates.exclusive - of_container_in_creation
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
        free = [cpu for cpu in of_container_in_creation if cpu not in pairs.values()]
        pairs |= match(new[:len(free)], free, pairs, guest, topology)
        away = sum(bool(guest[vcpu].memory) and topology.node_of(cpu) not in guest[vcpu].memory
                   for vcpu, cpu in pairs.items())
        if away:
            pinned, verb = number_of(len(pairs), "vCPU", "pinned"), "is" if away == 1 else "are"
            self.reasons.append(f"{away} of {pinned} {verb} on another NUMA node than the memory of the guest")
        owner = {cpu: container for container, cpus in reversed(self.claims.exclusive) for cpu in cpus}
        return tuple(
            VcpuPlacement(vcpu, CpuSet((pairs[vcpu],)), owner[pairs[vcpu]], pinned=True) if vcpu in pairs
            else VcpuPlacement(vcpu, floating) for vcpu in guest)

    def _kept_pairs(self) -> dict[VcpuId, int]:
        """The vCPUs that have one exclusive CPU each, with that CPU. If two have the same CPU, a vCPU that backed a
        container keeps it before one that floated, then the vCPU that last had it to itself."""
        on_one = [(container is None, self.previous.pairs.get(vcpu.id) != cpus.first, -vcpu.id, cpus.first)
                  for vcpu in self.vcpus
                  for cpus, container in [self.previous.vcpus.get(vcpu.id, (None, None))]
                  if cpus is not None and len(cpus) == 1 and cpus <= self.candidates.exclusive]
        pairs: dict[VcpuId, int] = {}
        for floated, _, negative_id, cpu in sorted(on_one):
            if floated and self.claims.creating:
                continue  # it floats on the only CPU of a container whose vCPU is about to be plugged in
            if cpu not in pairs.values():
                pairs[VcpuId(-negative_id)] = cpu
        return pairs

    def _to_pin(self, pairs: Mapping[VcpuId, int], free: Sequence[int], floating: CpuSet) -> list[VcpuId]:
        """Choose the vCPUs without a pair to be pinned, one for each of the `free` CPUs. In this order: those that
        must move anyway (not those that float and may stay there); those whose former CPU is free again; the highest
        ids."""
        def order(vcpu: VcpuId) -> tuple[bool, bool, int]:
            """The sort key; False comes first."""
            cpus, _ = self.previous.vcpus.get(vcpu, (None, None))
            return bool(floating) and cpus == floating, self.previous.pairs.get(vcpu) not in free, -vcpu

        unpaired = [vcpu.id for vcpu in self.vcpus if vcpu.id not in pairs]
        return sorted(unpaired, key=order)[:len(free)]

    # Fewer vCPUs than exclusive CPUs.

    def shares(self) -> tuple[VcpuPlacement, ...]:
        """Each exclusive container gets a share of the vCPUs, which float on its CPUs; the shared containers together
        get one vCPU. With too few vCPUs for that, all vCPUs float on the sandbox mask."""
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
        # By container; None stands for all shared containers.
        sizes = share(count - for_shared, {container: len(cpus) for container, cpus in groups.items()})
        floating = self.floating() if for_shared else EMPTY
        cpus_of = {key: floating if key is None else groups[key] for key in (None, *groups)}
        room = {key: for_shared if key is None else sizes[key] for key in (None, *groups)}

        backed: dict[VcpuId, ContainerId | None] = {}
        for vcpu, container in self._preferences(cpus_of):
            if vcpu not in backed and room[container]:
                backed[vcpu] = container
                room[container] -= 1
        return tuple(VcpuPlacement(vcpu.id, cpus_of[backed[vcpu.id]], backed[vcpu.id]) for vcpu in self.vcpus)

    def _preferences(self, cpus_of: Mapping[ContainerId | None, CpuSet]) -> Iterator[
            tuple[VcpuId, ContainerId | None]]:
        """Pairs of a vCPU and a container that it may back (None: the shared ones), the most preferred first:

        1. A vCPU keeps its CPUs and its container.
        2. It keeps its CPUs, which another container has now.
        3. It keeps its container, which has other CPUs now.
        4. The lowest ids back the shared containers, the others the exclusive ones in their order."""
        had = [(vcpu.id, *self.previous.vcpus[vcpu.id]) for vcpu in self.vcpus if vcpu.id in self.previous.vcpus]
        yield from ((vcpu, container) for vcpu, cpus, container in had
                    if container in cpus_of and cpus_of[container] == cpus)
        yield from ((vcpu, container) for vcpu, cpus, _ in had for container in cpus_of if cpus_of[container] == cpus)
        yield from ((vcpu, container) for vcpu, _, container in had if container is not None and container in cpus_of)
        yield from ((vcpu.id, container) for container in cpus_of for vcpu in self.vcpus)


def share(count: int, weights: Mapping[ContainerId, int]) -> dict[ContainerId, int]:
    """Divide `count` by weight: largest remainder, at least one each (`count` is at least the number of weights).

    >>> share(5, {"a": 6, "b": 2})
    {'a': 4, 'b': 1}"""
    ones: dict[ContainerId, int] = {}  # those that would get less than one, which get one
    while True:
        rest = {name: weight for name, weight in weights.items() if name not in ones}
        free, total = count - len(ones), sum(rest.values())
        small = [name for name, weight in rest.items() if free * weight < total]
        if not small:
            break
        ones |= dict.fromkeys(small, 1)
    floors = {name: free * weight // total for name, weight in rest.items()}
    by_remainder = sorted(rest, key=lambda name: -(free * rest[name] % total))
    for name in by_remainder[: free - sum(floors.values())]:
        floors[name] += 1
    return {name: ones.get(name) or floors[name] for name in weights}


def match(vcpus: Sequence[Vcpu], cpus: Iterable[int], kept: Mapping[VcpuId, int], guest: Mapping[VcpuId, Vcpu],
          topology: Topology) -> dict[VcpuId, int]:
    """Give each of `vcpus` one of `cpus` (at least as many), by the guest's topology: a guest NUMA node goes onto the
    host nodes of its memory, else onto one host node, and guest SMT siblings onto the siblings of one host core, as
    far as the CPUs allow. As few vCPUs as possible are away from their memory. The guest's scheduler assumes that
    siblings share a core, and its memory policy that a node's memory is near. Among equals, ascending id to ascending
    CPU.
    :param kept: pairs of other vCPUs, to whose nodes and cores their siblings are drawn.
    :param guest: all vCPUs of the guest by id, for the cores and nodes of `kept`."""
    free = sorted(cpus)
    if all(vcpu.core is None and vcpu.node is None and not vcpu.memory for vcpu in vcpus):
        return {vcpu.id: cpu for vcpu, cpu in zip(sorted(vcpus, key=lambda v: v.id), free, strict=False)}
    pairs: dict[VcpuId, int] = {}
    for members, host_node in _beside_memory(_by_node(vcpus), free, topology):
        pool = [cpu for cpu in free if topology.node_of(cpu) == host_node]
        placed = _match_cores(members, pool, {**kept, **pairs}, guest, topology)
        pairs |= placed
        free = sorted(set(free).difference(placed.values()))
    for members in _by_node([vcpu for vcpu in vcpus if vcpu.id not in pairs]):
        node = members[0].node
        near = [cpu for vcpu, cpu in {**kept, **pairs}.items() if node is not None and guest[vcpu].node == node]
        pool = _node_pool(len(members), free, near, topology)
        placed = _match_cores(members, pool, {**kept, **pairs}, guest, topology)
        pairs |= placed
        free = sorted(set(free).difference(placed.values()))
    return pairs


def _beside_memory(groups: Sequence[list[Vcpu]], free: Sequence[int], topology: Topology) -> Iterator[
        tuple[list[Vcpu], int]]:
    """Choose as many vCPUs as possible for the host nodes that the memory of their guest nodes is bound to, over all
    guest nodes: yields vCPUs with the host node that has CPUs for them. All vCPUs of a group have the same memory."""
    room = Counter(node for cpu in free if (node := topology.node_of(cpu)) is not None)
    wanted = [(members, [node for node in sorted(members[0].memory) if node in room]) for members in groups]
    given = _most_beside([(len(members), nodes) for members, nodes in wanted], room)
    for group, (members, nodes) in enumerate(wanted):
        left = members
        for node in nodes:
            count = given.get((group, node), 0)
            if count:
                yield left[:count], node
            left = left[count:]


def _most_beside(groups: Sequence[tuple[int, Sequence[int]]], room: Mapping[int, int]) -> dict[tuple[int, int], int]:
    """The largest number of vCPUs on host nodes of their memory: a maximum flow from guest nodes to host nodes.
    :param groups: of each guest node its vCPUs, and the host nodes of its memory. :param room: free CPUs by host node.
    :returns: how many vCPUs of a guest node (its place in `groups`) get CPUs of a host node."""
    given: dict[tuple[int, int], int] = {}
    left = dict(room)

    def give(group: int, visited: set[int]) -> bool:
        """Give a group one more CPU, moving others' shares to other nodes where that is needed."""
        for node in groups[group][1]:
            if node in visited:
                continue
            visited.add(node)
            if left[node]:
                left[node] -= 1
            else:
                holders = [other for (other, host_node), count in given.items() if host_node == node and count]
                moved = next((other for other in holders if give(other, visited)), None)
                if moved is None:
                    continue
                given[moved, node] -= 1
            given[group, node] = given.get((group, node), 0) + 1
            return True
        return False

    for group, (size, _) in enumerate(groups):
        for _ in range(size):
            if not give(group, set()):
                break
    return given


def _by_node(vcpus: Sequence[Vcpu]) -> list[list[Vcpu]]:
    """The vCPUs by guest node and memory, the biggest group first, as it is the hardest to keep together; those
    without a node last. (A VMM has one memory for a guest node; a scenario may have several.)"""
    groups: dict[object, list[Vcpu]] = {}
    for vcpu in sorted(vcpus, key=lambda v: v.id):
        groups.setdefault((vcpu.node, vcpu.memory), []).append(vcpu)
    return sorted(groups.values(), key=lambda group: (group[0].node is None, -len(group), group[0].node or 0))


def _node_pool(size: int, free: Sequence[int], near: Sequence[int], topology: Topology) -> list[int]:
    """CPUs for a guest node of `size` vCPUs: of one host node if one is big enough, else of as few as possible."""
    by_node: dict[int, list[int]] = {}
    for cpu in free:
        by_node.setdefault(_node(topology, cpu), []).append(cpu)
    holds = {node: sum(_node(topology, cpu) == node for cpu in near) for node in by_node}

    def fitness(node: int) -> tuple[int, bool, int, int]:
        room, missing = len(by_node[node]), size - len(pool)
        # The host node with most of its vCPUs; then the smallest that has room for all; else the biggest.
        return (-holds[node], room < missing, room if room >= missing else -room, node)

    pool: list[int] = []
    while by_node and len(pool) < size:
        pool += by_node.pop(min(by_node, key=fitness))
    return pool


def _node(topology: Topology, cpu: int) -> int:
    node = topology.node_of(cpu)
    return -1 if node is None else node


def _match_cores(members: Sequence[Vcpu], pool: Sequence[int], kept: Mapping[VcpuId, int],
                 guest: Mapping[VcpuId, Vcpu], topology: Topology) -> dict[VcpuId, int]:
    """Match the vCPUs of one guest node, using the front of `pool` first. In this order: siblings of kept vCPUs beside
    those; groups of siblings onto one host core each, the biggest group first; the others, ascending."""
    pairs: dict[VcpuId, int] = {}
    left = list(pool)

    def give(vcpus: Sequence[Vcpu], cpus: Sequence[int]) -> None:
        for vcpu, cpu in zip(vcpus, cpus, strict=False):
            pairs[vcpu.id] = cpu
            left.remove(cpu)

    groups: dict[int, list[Vcpu]] = {}
    for vcpu in members:
        if vcpu.core is not None:
            groups.setdefault(vcpu.core, []).append(vcpu)
    for core, group in groups.items():
        node = group[0].node
        for vcpu_id, cpu in kept.items():
            other = guest[vcpu_id]
            if other.core == core and other.node == node:
                unmatched = [vcpu for vcpu in group if vcpu.id not in pairs]
                give(unmatched, [free for free in left if free in topology.core_of(cpu)])
    for group in sorted(groups.values(), key=lambda group: (-len(group), group[0].id)):
        unmatched = [vcpu for vcpu in group if vcpu.id not in pairs]
        while len(unmatched) > 1:
            cores: dict[int, list[int]] = {}
            for cpu in left:
                cores.setdefault(topology.core_of(cpu).first, []).append(cpu)
            best = min(cores.values(), key=lambda cpus: (
                len(cpus) < len(unmatched), abs(len(cpus) - len(unmatched)), left.index(cpus[0])))
            if len(best) < 2:
                break  # no siblings are left
            give(unmatched, best)
            unmatched = [vcpu for vcpu in unmatched if vcpu.id not in pairs]
    rest = [vcpu for vcpu in members if vcpu.id not in pairs]
    give(rest, sorted(left[:len(rest)]))
    return pairs

