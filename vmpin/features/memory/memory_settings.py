"""`memory`: what the metrics have of the memory of sandboxes."""

from typing import NamedTuple

from vmpin.config import values
from vmpin.config.values import setting


class MemorySettings(NamedTuple):
    """`memory`."""

    metrics: bool = setting(False, values.flag, "whether the metrics of each sandbox (metrics.per_sandbox) have the "
                            "memory of its VMM's cgroup, by NUMA node")
