"""The cluster's part of a watcher whose metrics are scraped (metered)."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.feature import WatcherPart
from vmpin.features.cluster.reporter_requests import reporter_families


def filled(cpus: CpuSet) -> WatcherPart:
    """Something has happened of everything that can."""
    return WatcherPart(metrics=lambda view, per_sandbox: reporter_families(1, 2))
