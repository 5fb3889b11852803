"""Threads that debugfs or QMP identify, and iothreads, on /proc trees written here."""

from __future__ import annotations

from pathlib import Path

import pytest
import vmm_trees
from vmm_trees import CPU0, CPU1, FUTEX, IO, PID, PPOLL, QEMU, RCU, UNNAMED, Fake, by_thread, kvm_run

from vmpin.domain.model import ThreadId, ThreadRole, VcpuId
from vmpin.vmm import qemu
from vmpin.vmm.qmp import read_answer
from vmpin.vmm.threads import wants_qmp
from vmpin.vmm.virtual_machine import QmpAnswer

unnamed = vmm_trees.unnamed


def test_debugfs_identifies_busy_vcpus_without_waiting(unnamed: Fake) -> None:
    for tid in (CPU0, CPU1):
        unnamed.thread(tid, call="running")
    unnamed.debugfs(0, CPU0)
    unnamed.debugfs(1, CPU1)
    found = unnamed.identify()
    assert (found.found_by, by_thread(found), found.complete) == ("debugfs", {CPU0: 0, CPU1: 1}, True)
    assert not unnamed.slept


def test_debugfs_zero_is_a_vcpu_that_never_ran(unnamed: Fake) -> None:
    unnamed.thread(CPU1)
    unnamed.debugfs(0, CPU0)
    unnamed.debugfs(1, 0)
    found = unnamed.identify()
    assert (by_thread(found), found.complete) == ({CPU0: 0}, False)


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
    assert by_thread(unnamed.identify()) == {CPU0: 0}


def test_qmp_answer_identifies_vcpus_and_iothreads(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    for tid in (PID, RCU, IO, CPU0, CPU1):
        fake.thread(tid)
    found = fake.identify(qmp=QmpAnswer({CPU0: VcpuId(0), CPU1: VcpuId(1)}, frozenset((IO,))))
    assert (found.found_by, by_thread(found), found.complete) == ("qmp", {CPU0: 0, CPU1: 1}, True)
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
    assert (by_thread(found), found.complete) == ({CPU0: 0}, False)
    assert set(found.roles) == {PID, RCU, CPU0}
    found = fake.identify(qmp=QmpAnswer({CPU0: VcpuId(0), RCU: VcpuId(0)}, frozenset()))
    assert by_thread(found) == {}


def test_names_go_before_qmp_and_qmp_still_identifies_the_iothreads(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    for tid, comm in ((PID, UNNAMED), (IO, UNNAMED), (CPU0, "CPU 0/KVM"), (CPU1, "CPU 1/KVM")):
        fake.thread(tid, comm)
    found = fake.identify(qmp=QmpAnswer({CPU0: VcpuId(1), CPU1: VcpuId(0)}, frozenset((IO,))))
    assert (found.found_by, by_thread(found)) == ("names", {CPU0: 0, CPU1: 1})
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
