"""CRI-O's annotation for interrupts, `irq-load-balancing.crio.io`, of a pod or with `/CONTAINER` of one container.

Pure. With `disable` a container's CPUs take no interrupts of devices, which irqs.policy: away does for all exclusive
CPUs. With `housekeeping` the first of them, and of its SMT siblings those that are the container's, go on taking them
(CRI-O: internal/runtimehandlerhooks/high_performance_hooks_linux.go). It is a pod's author who writes it: it opens no
other pod's CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.topology import Topology

KEY = "irq-load-balancing.crio.io"


def housekeeping_cpus(annotations: Mapping[str, str], container: str, cpus: CpuSet, topology: Topology) -> CpuSet:
    """The CPUs of a container that go on taking interrupts; EMPTY for none. :param container: its name.
    :param cpus: its exclusive CPUs."""
    value = annotations.get(f"{KEY}/{container}", annotations.get(KEY))
    return topology.core_of(cpus.first) & cpus if value == "housekeeping" and cpus else EMPTY
