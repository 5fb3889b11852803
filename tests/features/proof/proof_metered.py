"""The part of the proof in a watcher whose metrics are scraped (metered)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ThreadRole
from vmpin.feature import WatcherPart
from vmpin.features.proof.proof_metrics import families
from vmpin.features.proof.residency_ledger import ResidencyLedger
from vmpin.reconcile.view import NodeView


def filled(cpus: CpuSet) -> WatcherPart:
    """Each sandbox has run."""
    def metrics(view: NodeView, per_sandbox: bool) -> Iterator[Metric]:
        ledger = ResidencyLedger()
        for sandbox in view.sandboxes:
            ledger.of(sandbox).of(ThreadRole.VCPU).placed = 10**9
        return families(ledger, view, per_sandbox)

    return WatcherPart(metrics=metrics)
