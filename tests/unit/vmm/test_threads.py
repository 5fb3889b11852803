"""The rules by which threads are distinguished, on /proc trees written here; real VMMs are in tests/integration."""

from __future__ import annotations

from pathlib import Path

import pytest
import vmm_trees
from identified_threads import vcpus_of
from vmm_trees import CPU0, CPU1, FUTEX, IO, PID, PPOLL, QEMU, RCU, UNNAMED, Fake, kvm_run

from vmpin.domain.model import ThreadId, ThreadRole, VcpuId
from vmpin.host.procfs import PF_USER_WORKER, Procfs
from vmpin.vmm import cloud_hypervisor, dragonball, firecracker, openvmm, qemu, stratovirt
from vmpin.vmm.qmp import read_answer
from vmpin.vmm.threads import Identified, wants_qmp
from vmpin.vmm.virtual_machine import QmpAnswer
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
    (openvmm.OPENVMM, "vp-12", ThreadRole.VCPU, 12),
    (openvmm.OPENVMM, "vp-x", ThreadRole.EMULATOR, None),
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
    assert (found.found_by, found.complete, vcpus_of(found)) == ("names", False, {CPU0: 0})
    fake.thread(CPU1, "CPU 1/KVM")
    fake.thread(110, "CPU 7/KVM")
    found = fake.identify()
    assert (found.found_by, found.complete, vcpus_of(found)) == ("names", True, {CPU0: 0, CPU1: 1, 110: 7})
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
    assert (found.found_by, found.complete, vcpus_of(found)) == ("kvm_run", True, {CPU0: 0, CPU1: 1})


def test_kernels_worker_is_no_vcpu_whatever_its_name(tmp_path: Path) -> None:
    fake = Fake(tmp_path, argv=["firecracker"], vmm=firecracker.FIRECRACKER)
    fake.thread(PID, "firecracker")
    fake.thread(RCU, "fc_vcpu 0", flags=PF_USER_WORKER)
    assert vcpus_of(fake.identify()) == {}


def test_threads_in_kvm_run_are_vcpus_and_kvms_worker_is_not(unnamed: Fake) -> None:
    found = unnamed.identify()
    assert (found.found_by, found.complete, vcpus_of(found)) == ("kvm_run", True, {CPU0: 0, CPU1: 1})
    assert found.roles[108] == (ThreadRole.KVM, None)
    assert found.roles[RCU] == found.roles[IO] == found.roles[PID] == (ThreadRole.EMULATOR, None)
    assert not unnamed.slept


def test_kvm_run_on_arm_is_ioctl_29(unnamed: Fake) -> None:
    unnamed.argv[0] = "qemu-system-aarch64"
    unnamed.thread(CPU0, call=kvm_run(12).replace("16 ", "29 ", 1))
    assert vcpus_of(unnamed.identify()) == {CPU0: 0, CPU1: 1}


@pytest.mark.parametrize("call", ["54 0xc 0xae80 0x0", "54 0xc 0x2000ae80 0x0"])
def test_kvm_run_on_s390x_and_power_is_ioctl_54(unnamed: Fake, call: str) -> None:
    unnamed.thread(CPU0, call=call)
    assert vcpus_of(unnamed.identify()) == {CPU0: 0, CPU1: 1}


@pytest.mark.parametrize("call", [
    "16 0xc 0xae81 0x0", "16 0x3 0xae80 0x0", "16 zz 0xae80", "16", "", "-1 0x7f 0x7f", kvm_run(99), "17 0xc 0xae80"])
def test_other_calls_are_not_kvm_run(unnamed: Fake, call: str) -> None:
    unnamed.thread(CPU1, call=call)
    found = unnamed.identify()
    assert (vcpus_of(found), found.complete) == ({CPU0: 0}, False)


def test_two_threads_in_the_same_vcpu_are_not_believed(unnamed: Fake) -> None:
    unnamed.thread(CPU1, call=kvm_run(12))
    found = unnamed.identify()
    assert (found.found_by, vcpus_of(found), found.complete) == ("none", {}, False)


def test_thread_on_a_cpu_is_looked_at_again(unnamed: Fake) -> None:
    unnamed.thread(CPU1, call="running")
    unnamed.later = {CPU1: kvm_run(13)}
    found = unnamed.identify()
    assert (found.found_by, vcpus_of(found), found.complete) == ("kvm_run", {CPU0: 0, CPU1: 1}, True)
    assert len(unnamed.slept) == 1


def test_busy_vcpu_is_given_up_within_ten_milliseconds(unnamed: Fake) -> None:
    unnamed.thread(CPU1, call="running")
    found = unnamed.identify()
    assert (vcpus_of(found), found.complete) == ({CPU0: 0}, False)
    assert 0 < sum(unnamed.slept) < 0.01


def test_what_was_learned_is_kept_though_the_vcpu_never_shows_again(unnamed: Fake) -> None:
    unnamed.thread(CPU1, call="running")
    learned = {ThreadId(CPU1, 7): VcpuId(1)}
    assert vcpus_of(unnamed.identify(learned)) == {CPU0: 0, CPU1: 1}
    found = unnamed.identify({ThreadId(CPU0, 7): VcpuId(0), **learned})
    assert (found.found_by, vcpus_of(found), found.complete) == ("learned", {CPU0: 0, CPU1: 1}, True)
    assert not unnamed.slept


def test_what_was_learned_of_an_earlier_thread_of_that_number_is_not_used(unnamed: Fake) -> None:
    found = unnamed.identify({ThreadId(RCU, 6): VcpuId(0), ThreadId(999, 7): VcpuId(1)})
    assert vcpus_of(found) == {CPU0: 0, CPU1: 1}


def test_name_that_contradicts_what_was_learned_is_not_believed(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.thread(PID)
    fake.thread(CPU0, "CPU 1/KVM")
    fake.thread(CPU1, "CPU 0/KVM")
    found = fake.identify({ThreadId(CPU0, 7): VcpuId(0)})
    assert (vcpus_of(found), found.complete) == ({CPU0: 0}, False)


def test_new_vcpu_of_an_unnamed_qemu_makes_it_incomplete_until_it_shows(unnamed: Fake) -> None:
    learned = {ThreadId(CPU0, 7): VcpuId(0), ThreadId(CPU1, 7): VcpuId(1)}
    unnamed.fd(20, "anon_inode:kvm-vcpu:7")
    unnamed.thread(110)
    assert not unnamed.identify(learned).complete
    unnamed.thread(110, call=kvm_run(20))
    found = unnamed.identify(learned)
    assert (vcpus_of(found), found.complete) == ({CPU0: 0, CPU1: 1, 110: 7}, True)


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
    assert vcpus_of(unnamed.identify()) == {CPU0: 0, CPU1: 1, 110: 3}


def test_a_number_that_no_vcpu_can_have_is_not_taken(unnamed: Fake) -> None:
    """The state file could not be loaded with it. KVM takes ids up to 16383 on x86, and QMP's answer is the VMM's."""
    unnamed.fd(20, "anon_inode:kvm-vcpu:8192")
    unnamed.thread(110, call=kvm_run(20))
    assert vcpus_of(unnamed.identify()) == {CPU0: 0, CPU1: 1}
    unnamed.thread(110, call="")
    assert vcpus_of(unnamed.identify(qmp=read_answer([{"thread-id": 110, "cpu-index": 4000000}], []))) == {
        CPU0: 0, CPU1: 1}


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


def test_debugfs_identifies_busy_vcpus_without_waiting(unnamed: Fake) -> None:
    for tid in (CPU0, CPU1):
        unnamed.thread(tid, call="running")
    unnamed.debugfs(0, CPU0)
    unnamed.debugfs(1, CPU1)
    found = unnamed.identify()
    assert (found.found_by, vcpus_of(found), found.complete) == ("debugfs", {CPU0: 0, CPU1: 1}, True)
    assert not unnamed.slept


def test_debugfs_zero_is_a_vcpu_that_never_ran(unnamed: Fake) -> None:
    unnamed.thread(CPU1)
    unnamed.debugfs(0, CPU0)
    unnamed.debugfs(1, 0)
    found = unnamed.identify()
    assert (vcpus_of(found), found.complete) == ({CPU0: 0}, False)


def test_debugfs_shows_that_a_vcpu_was_unplugged(unnamed: Fake) -> None:
    """QEMU keeps its descriptor, so without debugfs it would be missed for ever."""
    unnamed.fd(20, "anon_inode:kvm-vcpu:7")
    assert not unnamed.identify().complete
    unnamed.debugfs(7, 111)
    assert unnamed.identify().complete


def test_debugfs_of_another_process_is_not_read(unnamed: Fake) -> None:
    where = unnamed.root / f"debug/kvm/{PID}7-11/vcpu1"
    where.mkdir(parents=True)
    (where / "pid").write_text(f"{RCU}\n")
    unnamed.thread(CPU1)
    assert vcpus_of(unnamed.identify()) == {CPU0: 0}


def test_qmp_answer_identifies_vcpus_and_iothreads(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    for tid in (PID, RCU, IO, CPU0, CPU1):
        fake.thread(tid)
    found = fake.identify(qmp=QmpAnswer({CPU0: VcpuId(0), CPU1: VcpuId(1)}, frozenset((IO,))))
    assert (found.found_by, vcpus_of(found), found.complete) == ("qmp", {CPU0: 0, CPU1: 1}, True)
    assert found.roles[IO] == (ThreadRole.IOTHREAD, None)
    # a pass later only what was learned is handed in
    found = fake.identify({ThreadId(CPU0, 7): VcpuId(0), ThreadId(CPU1, 7): VcpuId(1)},
                          iothreads=(ThreadId(IO, 7), ThreadId(RCU, 6)))
    assert found.roles[IO] == (ThreadRole.IOTHREAD, None)
    assert found.roles[RCU] == (ThreadRole.EMULATOR, None)


def test_qmp_answer_about_threads_that_are_not_there_is_not_believed(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    for tid in (PID, RCU, CPU0):
        fake.thread(tid)
    found = fake.identify(qmp=QmpAnswer({CPU0: VcpuId(0), 1: VcpuId(1)}, frozenset((1,))))
    assert (vcpus_of(found), found.complete) == ({CPU0: 0}, False)
    assert set(found.roles) == {PID, RCU, CPU0}
    found = fake.identify(qmp=QmpAnswer({CPU0: VcpuId(0), RCU: VcpuId(0)}, frozenset()))
    assert vcpus_of(found) == {}


def test_names_go_before_qmp_and_qmp_still_identifies_the_iothreads(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    for tid, comm in ((PID, UNNAMED), (IO, UNNAMED), (CPU0, "CPU 0/KVM"), (CPU1, "CPU 1/KVM")):
        fake.thread(tid, comm)
    found = fake.identify(qmp=QmpAnswer({CPU0: VcpuId(1), CPU1: VcpuId(0)}, frozenset((IO,))))
    assert (found.found_by, vcpus_of(found)) == ("names", {CPU0: 0, CPU1: 1})
    assert found.roles[IO] == (ThreadRole.IOTHREAD, None)


def test_qmp_replies_of_the_wrong_shape_are_left_out() -> None:
    good = {"thread-id": 5, "cpu-index": 1, "props": {"socket-id": 1, "junk": "x"}, "target": "x86_64"}
    bad: list[object] = [None, 3, {}, {"thread-id": "5", "cpu-index": 0}, {"thread-id": True, "cpu-index": 0},
                         {"thread-id": -1, "cpu-index": 0}, {"thread-id": 6, "cpu-index": 1.0},
                         {"thread-id": 1 << 40, "cpu-index": 0}]
    answer = read_answer([*bad, good], [*bad, {"thread-id": 9, "id": "io"}])
    assert answer.vcpus == {5: 1}
    assert answer.iothreads == {6, 9}
    assert read_answer(None, {"return": []}) == QmpAnswer({}, frozenset())


@pytest.mark.parametrize(("calls", "declared", "qmp", "expected"), [
    # threads 101… in the order they were made; vCPU 105 follows
    ([FUTEX, PPOLL], 1, False, {102}),
    ([PPOLL], 1, False, {101}),
    ([FUTEX, PPOLL, PPOLL], 1, True, {102}),            # the monitors' own comes after
    ([FUTEX, PPOLL, PPOLL, PPOLL], 2, True, {102, 103}),
    ([FUTEX, PPOLL, PPOLL, PPOLL], 1, True, set()),     # one too many to be sure
    ([FUTEX, PPOLL], 1, True, set()),                   # that is the monitors' own: the iothread was removed
    ([FUTEX, "running", PPOLL], 2, False, set()),
    ([FUTEX, "running", PPOLL], 1, False, set()),
    ([FUTEX, FUTEX, PPOLL], 1, False, set()),
    ([PPOLL, FUTEX], 1, False, set()),
    ([FUTEX, PPOLL, PPOLL], 0, False, set()),
])
def test_unnamed_iothreads_are_identified_by_their_order(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[str], declared: int, qmp: bool,
        expected: set[int]) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    fake = Fake(tmp_path, argv=[QEMU, *(["-qmp", "unix:fd=3,server=on"] if qmp else [])])
    for number in range(declared):
        fake.argv += ["-object", f"iothread,id=indep_iothread_{number}"]
    fake.thread(PID, call=PPOLL)
    for at, call in enumerate(calls):
        fake.thread(101 + at, call=call)
    fake.thread(105, call=kvm_run(12))
    fake.fd(12, "anon_inode:kvm-vcpu:0")
    fake.thread(120, call=PPOLL)
    found = fake.identify()
    assert {tid for tid, (role, _) in found.roles.items() if role is ThreadRole.IOTHREAD} == expected


def test_iothreads_whose_name_is_too_long_are_identified_beside_named_ones(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    fake = Fake(tmp_path, argv=[QEMU, "-object", "iothread,id=indep_iothread_0", "-object", "iothread,id=io1"])
    fake.thread(PID, call=PPOLL)
    for tid, comm, call in ((101, UNNAMED, FUTEX), (102, UNNAMED, PPOLL), (103, "IO io1", PPOLL),
                            (104, "IO mon_iothread", PPOLL), (105, "CPU 0/KVM", FUTEX)):
        fake.thread(tid, comm, call)
    for known in ((), (ThreadId(103, 7),), (ThreadId(102, 7), ThreadId(103, 7))):
        roles = fake.identify(iothreads=known).roles
        assert [tid for tid in roles if roles[tid][0] is ThreadRole.IOTHREAD] == [102, 103]


SOCKET = ["-qmp", "unix:/x,server=on"]


@pytest.mark.parametrize(("vcpus", "iothreads", "argv", "wanted"), [
    (False, False, [QEMU, *SOCKET], True),
    (False, False, [QEMU, "-qmp", "unix:fd=3,server=on"], False),
    (True, False, [QEMU, *SOCKET], False),
    (True, False, [QEMU, *SOCKET, "-object", "iothread,id=a"], True),
    (True, True, [QEMU, *SOCKET, "-object", "iothread,id=a"], False),
])
def test_qmp_is_wanted_only_for_what_is_unknown(vcpus: bool, iothreads: bool, argv: list[str], wanted: bool) -> None:
    assert wants_qmp(qemu.QEMU, argv, vcpus, iothreads) is wanted
