"""The part of isolation in a watcher whose metrics are scraped (metered)."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId
from vmpin.feature import WatcherPart
from vmpin.features.isolation.node_isolation import foreign_families


def filled(cpus: CpuSet) -> WatcherPart:
    """Something has happened of everything that can."""
    def by_cpu(seconds: float) -> dict[int, float]:
        return {cpus.first: seconds}

    return WatcherPart(metrics=lambda view, per_sandbox: foreign_families(view, per_sandbox, by_cpu(1.5), {
        **{sandbox: by_cpu(0.5) for sandbox in view.sandboxes}, SandboxId("gone"): by_cpu(1.0)}))
