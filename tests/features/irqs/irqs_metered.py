"""The part of irqs in a watcher whose metrics are scraped (metered)."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.feature import WatcherPart
from vmpin.features.irqs.interrupt_table import IrqKind
from vmpin.features.irqs.irqs_watcher_part import irq_families


def filled(cpus: CpuSet) -> WatcherPart:
    """Each kind of interrupt has come."""
    return WatcherPart(metrics=lambda view, per_sandbox: irq_families({(cpus.first, kind): 3 for kind in IrqKind}))
