"""What containers get on real machines, whose /sys is public test data (tests/data/sysfs)."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import make_tree

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.topology import Topology
from vmpin.features.allocator.allocator_topology import allocator_topology
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.cpu_request import (
    Alignment,
    CpuKind,
    CpuQuery,
    CpuWish,
    FoundCpus,
    Refusal,
    SmtUse,
)
from vmpin.features.allocator.grants.eligibility import allowed_cpus, near_nodes
from vmpin.features.allocator.search.best_set import best_cpus, largest
from vmpin.host.sysfs import Sysfs


def machine(tmp_path: Path, name: str, *devices: str) -> Topology:
    return allocator_topology(Sysfs(make_tree(tmp_path, name)), devices)


def best(topology: Topology, query: CpuQuery, taken: str = "") -> FoundCpus:
    found = best_cpus(topology, topology.online - CpuSet.parse(taken), query)
    assert isinstance(found, FoundCpus), found
    return found


def test_six_cpus_of_an_epyc_are_one_ccx(tmp_path: Path) -> None:
    topology = machine(tmp_path, "epyc-7451")
    found = best(topology, CpuQuery(6))
    assert str(found.cpus) == "0-2,48-50"
    assert found.cpus in topology.caches
    # Core 0 is taken: the CCX that it breaks is not broken further than it must be.
    assert best(topology, CpuQuery(4), taken="0,48").cpus == CpuSet.parse("1-2,49-50")
    assert best(topology, CpuQuery(6), taken="0,48").cpus == CpuSet.parse("3-5,51-53")
    assert largest(topology, topology.online, CpuQuery(1, Alignment.CACHE, True)) == 6


def test_a_dies_worth_and_more_of_an_epyc_takes_as_few_nodes_as_it_can(tmp_path: Path) -> None:
    topology = machine(tmp_path, "epyc-7451")
    assert best(topology, CpuQuery(12)).cpus == topology.nodes[0]
    assert best(topology, CpuQuery(14)).cost.nodes == 2
    socket = best(topology, CpuQuery(14, Alignment.SOCKET))
    assert socket.cpus <= topology.sockets[0]
    assert socket.cost.nodes == 1


def test_a_snc_machine_gives_a_half_of_a_socket_and_then_the_half_beside_it(tmp_path: Path) -> None:
    topology = machine(tmp_path, "xeon-snc")
    assert best(topology, CpuQuery(20)).cpus == topology.nodes[0]
    both = best(topology, CpuQuery(30))
    assert both.cpus <= topology.sockets[0]
    assert (both.cost.nodes, both.cost.distance, both.cost.partial_cores) == (2, 11, 0)


def test_a_hybrid_machine_gives_the_cores_that_are_asked_for(tmp_path: Path) -> None:
    topology = machine(tmp_path, "hybrid-8p8e")
    options = AllocationOptions()
    allowed = {kind: allowed_cpus(topology, CpuWish(kind=kind), options) for kind in CpuKind}
    assert allowed[CpuKind.PERFORMANCE] == CpuSet.parse("0-7")
    assert allowed[CpuKind.EFFICIENT] == CpuSet.parse("8-15")
    assert allowed[CpuKind.ANY] == CpuSet.parse("0-15")
    assert isinstance(allowed[CpuKind.ISOLATED], Refusal)
    # An efficient core has one thread: four of them are whole cores; of five CPUs, the fifth is one, too.
    found = best(topology, CpuQuery(5, smt=SmtUse.REQUIRE))
    assert found.cost.partial_cores == 0
    assert len(found.cpus & CpuSet.parse("8-15")) % 2 == 1


def test_isolated_cpus_are_given_where_they_are_asked_for_alone(tmp_path: Path) -> None:
    topology = machine(tmp_path, "xeon-isolcpus")
    options = AllocationOptions()
    isolated, plain = (allowed_cpus(topology, CpuWish(kind=kind), options)
                       for kind in (CpuKind.ISOLATED, CpuKind.ANY))
    assert isolated == CpuSet.parse("4-7,60-63")
    assert isinstance(plain, CpuSet)
    assert plain.isdisjoint(topology.isolated)
    # Each NUMA node has one isolated core, 4 with 60 and so on; nodes of memory alone have none.
    found = best_cpus(topology, CpuSet.parse("4-7,60-63"), CpuQuery(2))
    assert isinstance(found, FoundCpus)
    assert (found.cpus, found.cost.nodes) == (CpuSet.parse("4,60"), 1)


@pytest.mark.parametrize(("device", "node"), [("eth0", 0), ("ib0", 1), ("0000:83:00.0", 1)])
def test_cpus_near_a_device_are_on_its_node(tmp_path: Path, device: str, node: int) -> None:
    topology = machine(tmp_path, "xeon-e5-devices", device)
    near = near_nodes(topology, CpuWish(near=device), EMPTY)
    query = CpuQuery(4, near=frozenset(near))
    assert best(topology, query).cpus <= topology.nodes[node]


def test_offline_cpus_are_given_to_no_container(tmp_path: Path) -> None:
    topology = machine(tmp_path, "vm-offline")
    assert best(topology, CpuQuery(2)).cpus == CpuSet.parse("0-1")
    assert isinstance(best_cpus(topology, CpuSet.parse("0-3"), CpuQuery(3)), Refusal)
