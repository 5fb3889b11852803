"""Which vCPU gets which CPU, when vCPUs are matched one-to-one with equally good CPUs.

Guest NUMA nodes stay together on one host node, and guest SMT siblings on the siblings of one host core, as far as the
CPUs allow: the guest's scheduler takes siblings for threads that share a core, and its memory policy takes a node for
near memory. Among equals, ascending id to ascending CPU. Pairs that already hold only guide the rest.

Pure.
"""

from collections.abc import Iterable, Mapping, Sequence

from vmpin.domain.model import Vcpu, VcpuId
from vmpin.domain.topology import Topology


def match(vcpus: Sequence[Vcpu], cpus: Iterable[int], kept: Mapping[VcpuId, int], guest: Mapping[VcpuId, Vcpu],
          topology: Topology) -> dict[VcpuId, int]:
    """Give each of `vcpus` one of `cpus` (at least as many).
    :param kept: pairs of other vCPUs that stay, whose nodes and cores draw their siblings near.
    :param guest: all vCPUs of the guest by id, for the cores and nodes of `kept`."""
    free = sorted(cpus)
    if all(vcpu.core is None and vcpu.node is None for vcpu in vcpus):
        return {vcpu.id: cpu for vcpu, cpu in zip(sorted(vcpus, key=lambda v: v.id), free, strict=False)}
    pairs: dict[VcpuId, int] = {}
    for node, members in _by_node(vcpus):
        near = [cpu for vcpu, cpu in kept.items() if node is not None and guest[vcpu].node == node]
        pool = _node_pool(len(members), free, near, topology)
        found = _match_cores(members, pool, {**kept, **pairs}, guest, topology)
        pairs |= found
        free = [cpu for cpu in free if cpu not in found.values()]
    return pairs


def _by_node(vcpus: Sequence[Vcpu]) -> list[tuple[int | None, list[Vcpu]]]:
    """The vCPUs by guest node: the biggest group first, as it is the hardest to keep together; no node last."""
    groups: dict[int | None, list[Vcpu]] = {}
    for vcpu in sorted(vcpus, key=lambda v: v.id):
        groups.setdefault(vcpu.node, []).append(vcpu)
    return sorted(groups.items(), key=lambda item: (item[0] is None, -len(item[1]), item[0] or 0))


def _node_pool(size: int, free: Sequence[int], near: Sequence[int], topology: Topology) -> list[int]:
    """CPUs for a guest node of `size` vCPUs: one host node if one is big enough, else as few as possible."""
    by_node: dict[int, list[int]] = {}
    for cpu in free:
        by_node.setdefault(_node(topology, cpu), []).append(cpu)
    holds = {node: sum(_node(topology, cpu) == node for cpu in near) for node in by_node}

    def fitness(node: int) -> tuple[int, bool, int, int]:
        room = len(by_node[node])
        # Near its own first; then one that holds all of it, the tightest; else the roomiest.
        return (-holds[node], room < size, room if room >= size else -room, node)

    pool: list[int] = []
    for node in sorted(by_node, key=fitness):
        if len(pool) >= size:
            break
        pool += by_node[node]
    return pool


def _node(topology: Topology, cpu: int) -> int:
    node = topology.node_of(cpu)
    return -1 if node is None else node


def _match_cores(members: Sequence[Vcpu], pool: Sequence[int], kept: Mapping[VcpuId, int],
                 guest: Mapping[VcpuId, Vcpu], topology: Topology) -> dict[VcpuId, int]:
    """The vCPUs of one guest node: siblings onto siblings, then the rest ascending. Uses the front of `pool` first. In
    tiers: beside siblings that stay where they are; a group of siblings on one host core, the biggest group first; the
    others."""
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
                todo = [vcpu for vcpu in group if vcpu.id not in pairs]
                give(todo, [free for free in left if free in topology.core_of(cpu)])
    for group in sorted(groups.values(), key=lambda group: (-len(group), group[0].id)):
        todo = [vcpu for vcpu in group if vcpu.id not in pairs]
        while len(todo) > 1:
            cores: dict[int, list[int]] = {}
            for cpu in left:
                cores.setdefault(topology.core_of(cpu).first, []).append(cpu)
            best = min(cores.values(), key=lambda cpus: (len(cpus) < len(todo), abs(len(cpus) - len(todo)),
                                                         left.index(cpus[0])))
            if len(best) < 2:
                break  # no siblings are left; singles go ascending below
            give(todo, best)
            todo = [vcpu for vcpu in todo if vcpu.id not in pairs]
    rest = [vcpu for vcpu in members if vcpu.id not in pairs]
    chosen = left[: len(rest)]
    give(rest, sorted(chosen))
    return pairs
