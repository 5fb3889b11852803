"""`memory`: what the metrics have of the memory of sandboxes."""

from __future__ import annotations

from vmpin.config import values
from vmpin.config.values import setting
from vmpin.named_tuple import NamedTuple


class MemorySettings(NamedTuple):
    """`memory`."""

    metrics: bool = setting(False, values.flag, "whether the metrics of each sandbox (metrics.per_sandbox) have the "
                            "memory of its VMM's cgroup, by NUMA node")
