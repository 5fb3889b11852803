"""Scenarios of guest nodes with bound memory, all small ones: each compared with every way to pin the same vCPUs."""

from __future__ import annotations

from itertools import accumulate, chain, combinations, pairwise, permutations, product

import pytest

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import Container, ContainerId, SandboxId, Vcpu, VcpuId
from vmpin.domain.policy import Policy
from vmpin.domain.topology import Topology
from vmpin.features.scenarios.node_scenario import Scenario, ScenarioSandbox, place_scenario
from vmpin.placement.ownership import Node
from vmpin.placement.rules import PlacementRequest

#: The vCPUs of each node of the guest.
GUESTS = [(1,), (2,), (1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (1, 1, 1), (1, 1, 2)]


@pytest.mark.parametrize("spare", [0, 1])
@pytest.mark.parametrize("cpus_of_nodes", [(2, 2), (1, 3), (3, 1), (1, 1, 2)], ids=str)
def test_the_least_number_of_vcpus_is_away_from_its_memory(cpus_of_nodes: tuple[int, ...], spare: int) -> None:
    """With every memory (bound to one node, to several, to none) and every set of exclusive CPUs, of one node or of
    several. The spare vCPU is the boot vCPU, whose memory does not count."""
    ends = pairwise((0, *accumulate(cpus_of_nodes)))
    nodes = {number: CpuSet(range(*bounds)) for number, bounds in enumerate(ends)}
    node = Node(Topology.build(CpuSet(range(4)), nodes=nodes), EMPTY)
    memories = [frozenset(bound) for size in range(len(nodes) + 1) for bound in combinations(nodes, size)]
    seen = set()
    for guest in GUESTS:
        for memory, own in product(product(memories, repeat=len(guest)), combinations(range(4), sum(guest))):
            vcpus = tuple(Vcpu(VcpuId(number), None, place, memory[place]) for number, place in enumerate(chain(
                [0] * spare, *([place] * size for place, size in enumerate(guest)))))
            away: dict[tuple[int, int], bool] = {
                (vcpu.id, cpu): bool(vcpu.memory) and node.topology.node_of(cpu) not in vcpu.memory
                for vcpu in vcpus for cpu in own}
            least = min(sum(away[pair] for pair in zip(range(spare, len(vcpus)), way, strict=True))
                        for way in permutations(own))
            request = PlacementRequest(SandboxId("s"), vcpus, (
                Container(ContainerId("c"), cpuset=CpuSet(own), exclusive=True),))
            (placement,) = place_scenario(Scenario(node, Policy(), (ScenarioSandbox(request, 0, 0),))).placements
            pairs = [(vcpu.id, cpu) for vcpu in placement.vcpus if vcpu.pinned for cpu in vcpu.cpus or ()]
            assert sorted(cpu for _, cpu in pairs) == list(own)
            assert sum(away[pair] for pair in pairs) == least, (guest, memory, own, pairs)
            assert [reason.partition(" ")[0] for reason in placement.reasons] == [str(least)] * bool(least)
            seen.add(least)
    assert max(seen) == 4 - min(cpus_of_nodes)
