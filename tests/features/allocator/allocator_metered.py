"""The allocator's part of a watcher whose metrics are scraped (metered)."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.domain.topology import Topology
from vmpin.feature import WatcherPart
from vmpin.features.allocator.allocation_metrics import allocation_families
from vmpin.features.allocator.allocation_report import AllocatorView
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.cpu_request import RefusalKind
from vmpin.features.allocator.grants.ledger import Ledger, RefusedRequest


def part_of(view: AllocatorView) -> WatcherPart:
    return WatcherPart(metrics=lambda _, per_sandbox: allocation_families(view, per_sandbox))


def filled(cpus: CpuSet) -> WatcherPart:
    """Something has happened of everything that can."""
    refused = RefusedRequest("main", "tests", "shop", "why", 10**18, RefusalKind.CPUS)
    return part_of(AllocatorView("on", "", Topology.build(cpus, caches=[cpus], nodes={0: cpus}), AllocationOptions(),
                                 Ledger(shared=cpus, refused=(refused,)), cpus))
