"""The metrics of the allocator, with `allocate.mode` other than off. Names of pods only where asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from vmpin.features.allocator.allocation_report import AllocatorView, free_cpus, largest_sets
from vmpin.features.allocator.grants.allocation_options import AllocationMode
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, RefusalKind
from vmpin.features.allocator.grants.ledger import GrantState
from vmpin.features.common.metric_families import Metric, counter, gauge
from vmpin.features.common.pod_labels import label_text


def allocation_families(view: AllocatorView, by_pod: bool) -> Iterator[Metric]:
    machine, free = view.machine, free_cpus(view)
    yield gauge("vmpin_allocate_mode", "Whether CPUs are given out (allocate.mode), 1 for the mode in force; off also "
                "where the kubelet's policy is static.", {mode: mode == view.mode for mode in AllocationMode}, "mode")
    yield gauge("vmpin_allocatable_cpus", "CPUs that a container can still get as its own, by NUMA node.",
                {str(node): len(cpus & free) for node, cpus in machine.nodes.items()}, "node")
    yield gauge("vmpin_allocatable_cache_cpus", "CPUs that a container can still get as its own, by last-level cache "
                "(the first CPU that shares it).",
                {str(cache.first): len(cache & free) for cache in machine.caches}, "cache")
    yield gauge("vmpin_allocatable_largest_cpus", "The size of the largest set of CPUs that would fit, anywhere, "
                "within one NUMA node, and within one last-level cache.", largest_sets(view), "within")
    granted = Counter((grant.policy, grant.state) for grant in view.ledger.grants.values())
    yield gauge("vmpin_allocations", "Containers in the allocator's ledger, by policy and state.",
                {(policy, state): granted[policy, state] for policy in CpuPolicy for state in GrantState},
                "policy", "state")
    yield gauge("vmpin_pool_cpus", "CPUs that shared containers are on.", len(view.ledger.shared))
    yield counter("vmpin_allocation_refusals_total", "Requests that were refused: too few CPUs are free (cpus), none "
                  "are aligned as asked (alignment), or the container may not have what it asks for (request).",
                  {kind: view.refusals.get(kind, 0) for kind in RefusalKind}, "reason")
    if by_pod:
        yield gauge("vmpin_pod_refused_timestamp_seconds", "Unix time of the last refused request of a container, of "
                    "those in vmpin alloc.",
                    {(*map(label_text, (request.namespace, request.pod, request.container)), request.kind):
                     request.time_ns / 1e9 for request in view.ledger.refused},
                    "namespace", "pod", "container", "reason")
    yield counter("vmpin_pool_changes_total", "Changes of the CPUs that shared containers are on.", view.pool_changes)
