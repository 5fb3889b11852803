"""Hardware ids by which a guest can identify its vCPUs. KVM derives them from its vcpu ids."""

from collections.abc import Iterable, Sequence

from vmpin.domain.model import VcpuId
from vmpin.protocol.frames import MAX_HW
from vmpin.vmm.vmm_type import VmmType


def hardware_ids(vmm: VmmType, argv: Sequence[str], vcpus: Iterable[VcpuId]) -> dict[VcpuId, int]:
    """Return the hardware id of each vCPU: the APIC id on x86, the MPIDR's affinity fields on arm64, KVM's vcpu id on
    other architectures. Invalid vCPU numbers are left out."""
    ids = vmm.kvm_ids(argv, vcpus)
    if vmm.machine(argv) == "aarch64":
        ids = {vcpu: mpidr(number) for vcpu, number in ids.items()}
    return {vcpu: number for vcpu, number in ids.items() if 0 <= number <= MAX_HW}


def mpidr(vcpu_id: int) -> int:
    """Aff2.Aff1.Aff0 of KVM's vcpu id on arm64: 16 vCPUs a cluster (arch/arm64/kvm/sys_regs.c: reset_mpidr).

    >>> mpidr(17)
    257"""
    return vcpu_id & 0x0F | (vcpu_id >> 4 & 0xFF) << 8 | (vcpu_id >> 12 & 0xFF) << 16
