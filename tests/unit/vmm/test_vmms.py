"""The table of VMMs, and the hardware ids that a guest of each has."""

from __future__ import annotations

import re

import pytest

from vmpin.domain.model import VcpuId
from vmpin.vmm.cloud_hypervisor import CLOUD_HYPERVISOR
from vmpin.vmm.dragonball import DRAGONBALL
from vmpin.vmm.firecracker import FIRECRACKER
from vmpin.vmm.guest_machine import hardware_ids
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.vmm_type import VmmType
from vmpin.vmm.vmms import VMMS, is_cut_id, library_with, named_in_kata


def test_a_shim_with_vcpu_threads_is_dragonball() -> None:
    assert library_with(["containerd-shim", "db_vcpu0"]) is DRAGONBALL
    assert library_with(["containerd-shim", "tokio-runtime-w"]) is None
    assert library_with([]) is None


def test_katas_words_for_vmms() -> None:
    assert {name: vmm.name for name in ("qemu", "clh", "firecracker", "stratovirt", "dragonball", "remote", "")
            if (vmm := named_in_kata(name)) is not None} == {
        "qemu": "qemu", "clh": "cloud-hypervisor", "firecracker": "firecracker", "stratovirt": "stratovirt"}


def test_an_id_is_cut_where_kata_cuts_it() -> None:
    assert FIRECRACKER.id_length == 32
    assert is_cut_id("a" * 32, "a" * 64)
    assert not is_cut_id("a" * 31, "a" * 64)
    assert not is_cut_id("b" * 32, "a" * 64)


@pytest.mark.parametrize("vmm", VMMS)
def test_a_vmm_is_a_program_or_a_library(vmm: VmmType) -> None:
    assert bool(vmm.program) == bool(vmm.beginnings) != bool(vmm.library_thread)
    assert "(?P<vcpu>" in vmm.thread_names
    assert re.compile(vmm.thread_names).groups == len(re.compile(vmm.thread_names).groupindex)


def test_names_are_unique() -> None:
    assert len({vmm.name for vmm in VMMS}) == len(VMMS)
    named = [vmm.kata_name for vmm in VMMS if vmm.kata_name]
    assert len(set(named)) == len(named)


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
