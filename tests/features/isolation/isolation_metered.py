"""The part of isolation in a watcher whose metrics are scraped (metered)."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId
from vmpin.feature import WatcherPart
from vmpin.features.isolation.isolation_metrics import foreign_families


class Foreign:
    """Foreign seconds by CPU, and by owner and CPU."""

    def __init__(self, by_cpu: dict[int, float], by_sandbox: dict[SandboxId, dict[int, float]]) -> None:
        self._by_cpu, self._by_sandbox = by_cpu, by_sandbox

    def foreign_seconds(self) -> dict[int, float]:
        return self._by_cpu

    def foreign_by_sandbox(self) -> dict[SandboxId, dict[int, float]]:
        return self._by_sandbox


def filled(cpus: CpuSet) -> WatcherPart:
    """Something has happened of everything that can."""
    def by_cpu(seconds: float) -> dict[int, float]:
        return {cpus.first: seconds}

    return WatcherPart(metrics=lambda scrape: foreign_families(scrape, Foreign(
        by_cpu(1.5), {**{sandbox: by_cpu(0.5) for sandbox in scrape.view.sandboxes}, SandboxId("gone"): by_cpu(1.0)})))
