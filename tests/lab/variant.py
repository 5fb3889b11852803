"""Which node is asked for: the kernel, the cgroup layout, the CPUs."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kernel(enum.StrEnum):
    """By its version; the Debian release that it comes from is `suite`."""

    #: vhost workers and kvm-pit are kernel threads, and a mask that a cpuset cut is forgotten.
    V6_1 = "6.1"
    #: vhost workers are threads of QEMU, and the mask that was asked for is remembered.
    V6_12 = "6.12"

    @property
    def suite(self) -> str:
        return {"6.1": "bookworm", "6.12": "trixie"}[self.value]


class Cgroup(enum.StrEnum):
    V2 = "v2"
    V1 = "v1"
    #: v1 controllers, and an empty v2 hierarchy beside them.
    HYBRID = "hybrid"


class Topology(enum.StrEnum):
    """8 CPUs as 2 sockets (each a NUMA node) of 2 cores of 2 threads."""

    FULL = "2x2x2"
    #: SMT off, and CPU 6 offline: 0, 2 and 4 are left.
    NOSMT = "nosmt"
    #: All of them, and an IOMMU, so that devices can be passed through (VFIO). Without interrupt remapping.
    IOMMU = "2x2x2-iommu"


@dataclass(frozen=True)
class Variant:
    kernel: Kernel = Kernel.V6_12
    cgroup: Cgroup = Cgroup.V2
    topology: Topology = Topology.FULL

    def __post_init__(self) -> None:
        if self.kernel is not Kernel.V6_1 and self.cgroup is not Cgroup.V2:
            raise ValueError(f"Debian's kernel {self.kernel} has no cpusets of cgroup v1 (CONFIG_CPUSETS_V1): "
                             f"{self.cgroup} needs kernel 6.1")

    def __str__(self) -> str:
        return f"{self.kernel}-{self.cgroup}-{self.topology}"
