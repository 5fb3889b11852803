"""The numbers by which a guest knows its vCPUs."""

from __future__ import annotations

import pytest

from vmpin.domain.model import VcpuId
from vmpin.vmm.cloud_hypervisor import CLOUD_HYPERVISOR
from vmpin.vmm.firecracker import FIRECRACKER
from vmpin.vmm.hardware_ids import hardware_ids
from vmpin.vmm.qemu import QEMU

X86 = ["/usr/bin/qemu-system-x86_64"]


def ids(*numbers: int) -> list[VcpuId]:
    return [VcpuId(number) for number in numbers]


@pytest.mark.parametrize(("argv", "numbers", "found"), [
    ([*X86, "-smp", "1,cores=1,threads=1,sockets=8,maxcpus=8"], (0, 7), {0: 0, 7: 7}),
    ([*X86, "-smp", "6,sockets=2,cores=3,threads=1"], (0, 2, 3), {0: 0, 2: 2, 3: 4}),
    ([*X86, "-smp", "12,sockets=2,cores=3,threads=2"], (5, 6), {5: 5, 6: 8}),
    (["qemu-system-aarch64", "-smp", "20"], (0, 15, 16, 17), {0: 0, 15: 15, 16: 256, 17: 257}),
    (["qemu-system-s390x", "-smp", "20"], (17,), {17: 17}),
])
def test_vcpus_are_known_in_the_guest_by_what_the_hardware_calls_them(
        argv: list[str], numbers: tuple[int, ...], found: dict[int, int]) -> None:
    assert hardware_ids(QEMU, argv, ids(*numbers)) == found


def test_other_vmms_count_apic_ids_from_nought(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert hardware_ids(FIRECRACKER, ["firecracker"], ids(0, 17)) == {0: 0, 17: 17}
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert hardware_ids(CLOUD_HYPERVISOR, ["cloud-hypervisor"], ids(0, 17)) == {0: 0, 17: 257}
