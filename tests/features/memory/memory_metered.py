"""What the feature reports of a VM whose memory is on two nodes."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.feature import WatcherPart
from vmpin.features.memory.memory_metrics import memory_families


def filled(cpus: CpuSet) -> WatcherPart:
    return WatcherPart(metrics=lambda scrape: memory_families(scrape, {sandbox: {0: 1 << 20, 1: 1 << 20}
                                                                       for sandbox in scrape.view.vms}))
