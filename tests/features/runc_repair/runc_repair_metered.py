"""The part of runc_repair in a watcher whose metrics are scraped (metered)."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.feature import WatcherPart
from vmpin.features.runc_repair.runc_repair_watcher_part import repair_families


def filled(_: CpuSet) -> WatcherPart:
    """Some repairs were made, and some failed."""
    return WatcherPart(metrics=lambda *_: repair_families({"done": 2, "failed": 1}))
