"""The rules by which threads are distinguished, on /proc trees written here; real VMMs are in tests/integration."""

from __future__ import annotations

from pathlib import Path

import pytest
import vmm_trees
from vmm_trees import CPU0, CPU1, IO, PID, QEMU, RCU, Fake, by_thread, kvm_run

from vmpin.domain.model import ThreadId, ThreadRole, VcpuId
from vmpin.host.procfs import PF_USER_WORKER, Procfs
from vmpin.vmm import cloud_hypervisor, dragonball, firecracker, qemu, stratovirt
from vmpin.vmm.threads import Identified
from vmpin.vmm.vmm_type import VmmType

unnamed = vmm_trees.unnamed

NAMES = [
    (qemu.QEMU, "CPU 0/KVM", ThreadRole.VCPU, 0),
    (qemu.QEMU, "CPU 255/TCG", ThreadRole.VCPU, 255),
    (qemu.QEMU, "ALL CPUs/TCG", ThreadRole.EMULATOR, None),
    (qemu.QEMU, "CPU x/KVM", ThreadRole.EMULATOR, None),
    (qemu.QEMU, "CPU 1234567/KVM", ThreadRole.EMULATOR, None),
    (qemu.QEMU, "IO iothread0", ThreadRole.IOTHREAD, None),
    (qemu.QEMU, "IO mon_iothread", ThreadRole.EMULATOR, None),
    (qemu.QEMU, "worker", ThreadRole.EMULATOR, None),
    (qemu.QEMU, "vcpu0", ThreadRole.EMULATOR, None),
    (qemu.QEMU, "vhost-100", ThreadRole.VHOST, None),
    (qemu.QEMU, "vhost-user", ThreadRole.EMULATOR, None),
    (qemu.QEMU, "kvm-nx-lpage-re", ThreadRole.KVM, None),
    (qemu.QEMU, "iou-sqp-100", ThreadRole.EMULATOR, None),
    (stratovirt.STRATOVIRT, "CPU 3/KVM", ThreadRole.VCPU, 3),
    (cloud_hypervisor.CLOUD_HYPERVISOR, "vcpu3", ThreadRole.VCPU, 3),
    (cloud_hypervisor.CLOUD_HYPERVISOR, "vcpu3x", ThreadRole.EMULATOR, None),
    (cloud_hypervisor.CLOUD_HYPERVISOR, "_disk0_q0", ThreadRole.EMULATOR, None),
    (cloud_hypervisor.CLOUD_HYPERVISOR, "vhost-100", ThreadRole.VHOST, None),
    (firecracker.FIRECRACKER, "fc_vcpu 3", ThreadRole.VCPU, 3),
    (firecracker.FIRECRACKER, "fc_api", ThreadRole.EMULATOR, None),
    (dragonball.DRAGONBALL, "db_vcpu3", ThreadRole.VCPU, 3),
    (dragonball.DRAGONBALL, "tokio-runtime-w", ThreadRole.EMULATOR, None),
]


@pytest.mark.parametrize(("vmm", "comm", "role", "vcpu"), NAMES)
def test_name_gives_the_role(tmp_path: Path, vmm: VmmType, comm: str, role: ThreadRole, vcpu: int | None) -> None:
    fake = Fake(tmp_path, argv=["vmm"], vmm=vmm)
    fake.thread(PID, "main")
    fake.thread(RCU, comm)
    found = fake.identify()
    assert found.roles == {PID: (ThreadRole.EMULATOR, None), RCU: (role, vcpu)}
    assert (found.found_by, found.complete) == (("names", True) if vcpu is not None else ("none", False))


def test_named_vcpus_may_have_holes_and_are_complete_at_what_smp_promises(tmp_path: Path) -> None:
    fake = Fake(tmp_path, argv=[QEMU, "-smp", "2,maxcpus=8"])
    fake.thread(PID)
    fake.thread(CPU0, "CPU 0/KVM")
    found = fake.identify()
    assert (found.found_by, found.complete, by_thread(found)) == ("names", False, {CPU0: 0})
    fake.thread(CPU1, "CPU 1/KVM")
    fake.thread(110, "CPU 7/KVM")
    found = fake.identify()
    assert (found.found_by, found.complete, by_thread(found)) == ("names", True, {CPU0: 0, CPU1: 1, 110: 7})
    assert not fake.slept


def test_monitor_iothread_counts_when_it_is_declared(tmp_path: Path) -> None:
    fake = Fake(tmp_path, argv=[QEMU, "-object", "iothread,id=mon_iothread"])
    fake.thread(PID)
    fake.thread(IO, "IO mon_iothread")
    assert fake.identify().roles[IO] == (ThreadRole.IOTHREAD, None)


def test_number_claimed_twice_discredits_all_names(unnamed: Fake) -> None:
    unnamed.thread(CPU0, "CPU 1/KVM", kvm_run(12))
    unnamed.thread(CPU1, "CPU 1/KVM", kvm_run(13))
    found = unnamed.identify()
    assert (found.found_by, found.complete, by_thread(found)) == ("kvm_run", True, {CPU0: 0, CPU1: 1})


def test_kernels_worker_is_no_vcpu_whatever_its_name(tmp_path: Path) -> None:
    fake = Fake(tmp_path, argv=["firecracker"], vmm=firecracker.FIRECRACKER)
    fake.thread(PID, "firecracker")
    fake.thread(RCU, "fc_vcpu 0", flags=PF_USER_WORKER)
    assert by_thread(fake.identify()) == {}


def test_threads_in_kvm_run_are_vcpus_and_kvms_worker_is_not(unnamed: Fake) -> None:
    found = unnamed.identify()
    assert (found.found_by, found.complete, by_thread(found)) == ("kvm_run", True, {CPU0: 0, CPU1: 1})
    assert found.roles[108] == (ThreadRole.KVM, None)
    assert found.roles[RCU] == found.roles[IO] == found.roles[PID] == (ThreadRole.EMULATOR, None)
    assert not unnamed.slept


def test_kvm_run_on_arm_is_ioctl_29(unnamed: Fake) -> None:
    unnamed.argv[0] = "qemu-system-aarch64"
    unnamed.thread(CPU0, call=kvm_run(12).replace("16 ", "29 ", 1))
    assert by_thread(unnamed.identify()) == {CPU0: 0, CPU1: 1}


@pytest.mark.parametrize("call", [
    "16 0xc 0xae81 0x0", "16 0x3 0xae80 0x0", "16 zz 0xae80", "16", "", "-1 0x7f 0x7f", kvm_run(99), "17 0xc 0xae80"])
def test_other_calls_are_not_kvm_run(unnamed: Fake, call: str) -> None:
    unnamed.thread(CPU1, call=call)
    found = unnamed.identify()
    assert (by_thread(found), found.complete) == ({CPU0: 0}, False)


def test_two_threads_in_the_same_vcpu_are_not_believed(unnamed: Fake) -> None:
    unnamed.thread(CPU1, call=kvm_run(12))
    found = unnamed.identify()
    assert (found.found_by, by_thread(found), found.complete) == ("none", {}, False)


def test_thread_on_a_cpu_is_looked_at_again(unnamed: Fake) -> None:
    unnamed.thread(CPU1, call="running")
    unnamed.later = {CPU1: kvm_run(13)}
    found = unnamed.identify()
    assert (found.found_by, by_thread(found), found.complete) == ("kvm_run", {CPU0: 0, CPU1: 1}, True)
    assert len(unnamed.slept) == 1


def test_busy_vcpu_is_given_up_within_ten_milliseconds(unnamed: Fake) -> None:
    unnamed.thread(CPU1, call="running")
    found = unnamed.identify()
    assert (by_thread(found), found.complete) == ({CPU0: 0}, False)
    assert 0 < sum(unnamed.slept) < 0.01


def test_what_was_learned_is_kept_though_the_vcpu_never_shows_again(unnamed: Fake) -> None:
    unnamed.thread(CPU1, call="running")
    learned = {ThreadId(CPU1, 7): VcpuId(1)}
    assert by_thread(unnamed.identify(learned)) == {CPU0: 0, CPU1: 1}
    found = unnamed.identify({ThreadId(CPU0, 7): VcpuId(0), **learned})
    assert (found.found_by, by_thread(found), found.complete) == ("learned", {CPU0: 0, CPU1: 1}, True)
    assert not unnamed.slept


def test_what_was_learned_of_an_earlier_thread_of_that_number_is_not_used(unnamed: Fake) -> None:
    found = unnamed.identify({ThreadId(RCU, 6): VcpuId(0), ThreadId(999, 7): VcpuId(1)})
    assert by_thread(found) == {CPU0: 0, CPU1: 1}


def test_name_that_contradicts_what_was_learned_is_not_believed(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.thread(PID)
    fake.thread(CPU0, "CPU 1/KVM")
    fake.thread(CPU1, "CPU 0/KVM")
    found = fake.identify({ThreadId(CPU0, 7): VcpuId(0)})
    assert (by_thread(found), found.complete) == ({CPU0: 0}, False)


def test_new_vcpu_of_an_unnamed_qemu_makes_it_incomplete_until_it_shows(unnamed: Fake) -> None:
    learned = {ThreadId(CPU0, 7): VcpuId(0), ThreadId(CPU1, 7): VcpuId(1)}
    unnamed.fd(20, "anon_inode:kvm-vcpu:7")
    unnamed.thread(110)
    assert not unnamed.identify(learned).complete
    unnamed.thread(110, call=kvm_run(20))
    found = unnamed.identify(learned)
    assert (by_thread(found), found.complete) == ({CPU0: 0, CPU1: 1, 110: 7}, True)


def test_named_qemu_with_a_newborn_thread_is_looked_into(unnamed: Fake) -> None:
    """A thread has its creator's name until it sets its own."""
    unnamed.thread(CPU0, "CPU 0/KVM")
    unnamed.thread(CPU1, "CPU 1/KVM")
    assert unnamed.identify().complete
    unnamed.fd(20, "anon_inode:kvm-vcpu:2")
    unnamed.thread(110)
    assert not unnamed.identify().complete
    unnamed.thread(110, "CPU 2/KVM")
    assert unnamed.identify().complete


def test_apic_ids_are_turned_back_into_cpu_indices(unnamed: Fake) -> None:
    unnamed.argv = [QEMU, "-smp", "3,sockets=2,cores=3,maxcpus=6"]
    unnamed.fd(20, "anon_inode:kvm-vcpu:4")
    unnamed.thread(110, call=kvm_run(20))
    assert by_thread(unnamed.identify()) == {CPU0: 0, CPU1: 1, 110: 3}


def test_vmm_without_names_and_descriptors_is_unknown(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    for tid in (PID, RCU, CPU0, CPU1):
        fake.thread(tid)
    found = fake.identify()
    assert (found.found_by, found.complete, set(found.roles.values())) == (
        "none", False, {(ThreadRole.EMULATOR, None)})
    assert set(found.roles) == set(fake.stats)


def test_no_threads_are_no_roles(tmp_path: Path) -> None:
    assert Fake(tmp_path).identify() == Identified({}, "none", False)


def test_where_every_slot_has_its_vcpu_no_descriptor_is_looked_for(tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no other, whatever threads without a name there are."""
    fake = Fake(tmp_path, argv=[QEMU, "-smp", "2"])
    for tid, name in ((PID, "qemu"), (RCU, "qemu"), (CPU0, "CPU 0/KVM"), (CPU1, "CPU 1/KVM")):
        fake.thread(tid, name)
    looked: list[int] = []

    def descriptors(procfs: Procfs, pid: int) -> dict[int, int]:
        looked.append(pid)
        return {}

    monkeypatch.setattr("vmpin.vmm.kvm.vcpu_fds", descriptors)
    assert fake.identify().complete
    assert not looked
    fake.argv = [QEMU, "-smp", "2,maxcpus=3"]
    assert fake.identify().complete
    assert looked == [PID]
