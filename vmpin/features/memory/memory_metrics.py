"""The metric of sandboxes' memory by NUMA node, with `memory.metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vmpin.cpuset import EMPTY, union
from vmpin.domain.model import SandboxId
from vmpin.features.memory.memory_nodes import cgroup_memory
from vmpin.reconcile.view import NodeView

if TYPE_CHECKING:
    from vmpin.features.common.metric_families import Metric


#: The cgroups that one scrape reads: some 0.1 ms each, in which the watcher does nothing else.
AT_ONCE = 16


class MemoryReadings:
    """The memory of VMMs' cgroups. Each scrape reads at most 16 of them, whatever the number of VMs: those that were
    read longest ago."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._memory: dict[SandboxId, Counter[int]] = {}  #: Bytes by node; the one that was read last is last.

    def read(self) -> Mapping[SandboxId, Counter[int]]:
        vms = self._view.vms
        kept = {sandbox: memory for sandbox, memory in self._memory.items() if sandbox in vms}
        for sandbox in [*(sandbox for sandbox in vms if sandbox not in kept), *kept][:AT_ONCE]:
            kept.pop(sandbox, None)
            kept[sandbox] = cgroup_memory(self._view.cgroups, vms[sandbox].vmm.pid)
        self._memory = kept
        return kept


def memory_families(view: NodeView, memory: Mapping[SandboxId, Mapping[int, int]]) -> Iterator[Metric]:
    """The family of the metric. :param memory: bytes by node, of each sandbox."""
    from vmpin.features.common.metric_families import gauge
    from vmpin.features.common.pod_labels import POD, pod_labels

    nodes, sizes = view.node.topology.nodes, dict[tuple[str, ...], float]()
    for sandbox, names in pod_labels(memory, view).items():
        placement = view.placements.get(sandbox)
        placed = union(vcpu.cpus or EMPTY for vcpu in placement.vcpus) if placement is not None else EMPTY
        for node, size in sorted(memory[sandbox].items()):
            near = "no" if placed.isdisjoint(nodes.get(node, EMPTY)) else "yes"
            sizes[(*names, str(node), near if placed else "unknown")] = size
    yield gauge("vmpin_sandbox_memory_bytes", "Memory of the cgroup that the VMM of each VM sandbox is in, by NUMA "
                "node of the host, and whether its vCPUs are placed there.", sizes, *POD, "node", "near")
