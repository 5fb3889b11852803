"""The part of memory in a watcher whose metrics are scraped (metered)."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.feature import WatcherPart
from vmpin.features.memory.memory_metrics import memory_families


def filled(_: CpuSet) -> WatcherPart:
    """Each VM has memory on two nodes."""
    return WatcherPart(metrics=lambda view, per_sandbox: memory_families(
        view, {sandbox: {0: 1 << 30, 1: 4096} for sandbox in view.sandboxes}))
