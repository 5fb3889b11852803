"""The metrics of the allocator. Names of pods only where asked for; by cache only where a machine has more
caches than NUMA nodes.

For `allocate.mode` other than off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vmpin.domain.terminal import label_text
from vmpin.features.allocator.allocation_report import AllocatorView, free_cpus, largest_sets
from vmpin.features.allocator.grants.allocation_options import AllocationMode
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, RefusalKind
from vmpin.features.allocator.grants.ledger import GrantState


def allocation_families(view: AllocatorView, by_pod: bool) -> Iterator[Metric]:
    machine, free = view.machine, free_cpus(view)
    mode = GaugeMetricFamily("vmpin_allocate_mode", "Whether CPUs are given out (allocate.mode), 1 for the mode in "
                             "force; off also where the kubelet's policy is static.", labels=["mode"])
    for name in AllocationMode:
        mode.add_metric([name], name == view.mode)
    yield mode
    by_node = GaugeMetricFamily("vmpin_allocatable_cpus", "CPUs that a container can still get as its own, by NUMA "
                                "node.", labels=["node"])
    for node, cpus in machine.nodes.items():
        by_node.add_metric([str(node)], len(cpus & free))
    yield by_node
    by_cache = GaugeMetricFamily("vmpin_allocatable_cache_cpus", "CPUs that a container can still get as its own, by "
                                 "last-level cache (the first CPU that shares it).", labels=["cache"])
    for cache in machine.caches:
        by_cache.add_metric([str(cache.first)], len(cache & free))
    yield by_cache
    fits = GaugeMetricFamily("vmpin_allocatable_largest_cpus", "The size of the largest set of CPUs that would fit, "
                             "anywhere, within one NUMA node, and within one last-level cache.", labels=["within"])
    for within, size in largest_sets(view).items():
        fits.add_metric([within], size)
    yield fits
    granted = Counter((grant.policy, grant.state) for grant in view.ledger.grants.values())
    grants = GaugeMetricFamily("vmpin_allocations", "Containers in the allocator's ledger, by policy and state.",
                               labels=["policy", "state"])
    for policy in CpuPolicy:
        for state in GrantState:
            grants.add_metric([policy, state], granted[policy, state])
    yield grants
    pool = GaugeMetricFamily("vmpin_pool_cpus", "CPUs that shared containers are on.")
    pool.add_metric([], len(view.ledger.shared))
    yield pool
    refused = CounterMetricFamily("vmpin_allocation_refusals_total", "Requests that were refused: too few CPUs are "
                                  "free (cpus), none are aligned as asked (alignment), or the container may not have "
                                  "what it asks for (request).", labels=["reason"])
    for kind in RefusalKind:
        refused.add_metric([kind], view.refusals.get(kind, 0))
    yield refused
    if by_pod:
        last = {(request.namespace, request.pod, request.container, str(request.kind)): request.time_ns / 1e9
                for request in view.ledger.refused}
        times = GaugeMetricFamily("vmpin_pod_refused_timestamp_seconds", "Unix time of the last refused request of a "
                                  "container, of those in vmpin alloc.",
                                  labels=["namespace", "pod", "container", "reason"])
        for names, time in last.items():
            times.add_metric([label_text(name) for name in names], time)
        yield times
    changes = CounterMetricFamily("vmpin_pool_changes_total", "Changes of the CPUs that shared containers are on.")
    changes.add_metric([], view.pool_changes)
    yield changes
