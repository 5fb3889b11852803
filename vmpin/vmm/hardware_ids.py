"""The numbers by which a guest can identify its vCPUs: ids of the hardware, which KVM derives from its vcpu ids."""

from collections.abc import Iterable, Sequence

from vmpin.domain.model import VcpuId
from vmpin.protocol.frames import MAX_HW
from vmpin.vmm.vmm_type import VmmType


def hardware_ids(vmm: VmmType, argv: Sequence[str], vcpus: Iterable[VcpuId]) -> dict[VcpuId, int]:
    """Return the number by which the guest can identify each vCPU. On x86 it is the APIC id, on arm64 the MPIDR's
    affinity fields, else its number. A number that is none is left out."""
    ids = vmm.kvm_ids(argv, vcpus)
    if vmm.machine(argv) == "aarch64":
        ids = {vcpu: mpidr(number) for vcpu, number in ids.items()}
    return {vcpu: number for vcpu, number in ids.items() if 0 <= number <= MAX_HW}


def mpidr(vcpu_id: int) -> int:
    """Aff2.Aff1.Aff0 of KVM's vcpu id on arm64: 16 vCPUs a cluster (arch/arm64/kvm/sys_regs.c: reset_mpidr).

    >>> mpidr(17)
    257"""
    return vcpu_id & 0x0F | (vcpu_id >> 4 & 0xFF) << 8 | (vcpu_id >> 12 & 0xFF) << 16
