"""What is exported of the allocator."""

from __future__ import annotations

from pathlib import Path

from allocator_metered import part_of
from metered import metered

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.topology import Topology
from vmpin.features.allocator.allocation_report import AllocatorView
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, CpuWish
from vmpin.features.allocator.grants.ledger import Grant, GrantState, Ledger


def test_an_allocator_has_metrics_of_its_own(tmp_path: Path) -> None:
    machine = Topology.build(CpuSet.parse("0-3"), caches=[CpuSet.parse("0-1"), CpuSet.parse("2-3")],
                             nodes={0: CpuSet.parse("0-1"), 1: CpuSet.parse("2-3")})
    grant = Grant(ContainerId("c"), SandboxId("s"), "main", "shop", "web", "u", CpuWish(CpuPolicy.EXCLUSIVE),
                  CpuPolicy.EXCLUSIVE, state=GrantState.RUNNING, cpus=CpuSet.parse("2"))
    with metered(tmp_path) as node:
        assert "vmpin_allocat" not in node.scrape()
        node.parts = {"allocator": part_of(AllocatorView(
            "on", "", machine, AllocationOptions(reserved=CpuSet.parse("0")),
            Ledger({grant.container: grant}, CpuSet.parse("0-1,3")), CpuSet.parse("0-1,3"), {"cpus": 2}, 5))}
        assert node.values("vmpin_allocate_mode") == {("off",): 0, ("observe",): 0, ("on",): 1}
        assert node.values("vmpin_allocatable_cpus") == {("0",): 1, ("1",): 1}
        assert node.values("vmpin_allocatable_cache_cpus") == {("0",): 1, ("2",): 1}
        assert node.values("vmpin_allocatable_largest_cpus") == {("machine",): 2, ("node",): 1, ("cache",): 1}
        assert node.values("vmpin_allocations")["exclusive", "running"] == 1
        assert node.values("vmpin_pool_cpus") == {(): 3}
        assert node.values("vmpin_allocation_refusals_total") == {("cpus",): 2, ("alignment",): 0, ("request",): 0}
        assert node.values("vmpin_pool_changes_total") == {(): 5}
