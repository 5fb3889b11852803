"""What Kata's own `enable_vcpus_pinning` would place, as read from the source of Kata 4.1.0.

Go: src/runtime/virtcontainers/sandbox.go, checkVCPUsPinning (where `enable_numa` is off, the default); runtime-rs:
src/runtime-rs/crates/resource/src/cgroups/resource_inner.rs, check_vcpus_pinning. Both pin one to one where the number
of vCPU threads is that of the CPUs of all containers together, and else nothing. Pure.
"""

from collections.abc import Collection
from dataclasses import dataclass

from vmpin.cpuset import CpuSet
from vmpin.domain.terminal import number_of

SOURCE = "Kata 4.1.0, checkVCPUsPinning (virtcontainers/sandbox.go) and check_vcpus_pinning (runtime-rs)"


@dataclass(frozen=True)
class KataPinning:
    #: By number of the vCPU; empty where nothing is pinned: the pod's cgroup alone confines the threads then.
    masks: dict[int, CpuSet]
    reason: str


def kata_pinning(vcpus: Collection[int], cpus: CpuSet) -> KataPinning:
    """Return the masks that Kata's own pinning of vCPUs would set.
    :param vcpus: the numbers of the VM's vCPUs.
    :param cpus: the cpusets of all containers of the pod together; Kata does not distinguish exclusive ones."""
    if not cpus:
        return KataPinning({}, "no container of the pod has a cpuset")
    if len(vcpus) != len(cpus):
        have = f"the VM has {number_of(len(vcpus), 'vCPU')} and the pod {number_of(len(cpus), 'CPU')}"
        return KataPinning({}, f"{have}; it pins only where these numbers are equal")
    return KataPinning({vcpu: CpuSet((cpu,)) for vcpu, cpu in zip(sorted(vcpus), cpus, strict=True)},
                       f"the VM has as many vCPUs as the pod has CPUs: {len(vcpus)}")
