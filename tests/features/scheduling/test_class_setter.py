"""Classes of this process's own threads: set, repaired, left to another program, given back, and kept in the file."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from need import need_tool
from own_threads import CPU, OTHER, SHOP, OwnThread, need_real_time, own_threads, rt, thread_id
from waiting import wait

from vmpin.domain.contention import ContentionRules, OnContention
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.features.common import sealed_file
from vmpin.features.scheduling import class_setter
from vmpin.features.scheduling.class_file import ClassFile
from vmpin.features.scheduling.class_plan import ClassRecord, LoneVcpu
from vmpin.features.scheduling.class_setter import NOT_PERMITTED, RESTING, ClassSetter
from vmpin.features.scheduling.sched_class import SchedClass
from vmpin.features.scheduling.thread_class import class_of, set_class
from vmpin.host.procfs import Procfs

pytestmark = pytest.mark.root
FIFO, RR = rt("fifo:1"), rt("rr:2")


class Kept:
    """A setter with its file, and two threads. `start` is a new watcher."""

    def __init__(self, directory: Path, threads: list[OwnThread]) -> None:
        self.path, self.threads, self.clock = directory / "scheduling.json", threads, 0.0
        self.start()

    def start(self, boot: str = "boot") -> None:
        self.setter = ClassSetter(Procfs(), ClassFile(self.path, boot),
                                  ContentionRules(OnContention.REST, repairs=2), lambda: self.clock)

    def settle(self, *texts: str) -> None:
        """:param texts: the classes that the threads should have, "" for none."""
        wanted = {thread.id: thread.lone(text, number) for number, (thread, text) in
                  enumerate(zip(self.threads, texts, strict=False)) if text}
        self.clock += 1.0
        self.setter.settle(wanted, wanted)

    @property
    def shown(self) -> list[SchedClass | None]:
        return [thread.shown for thread in self.threads]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    need_real_time()
    with own_threads(2) as threads:
        yield Kept(tmp_path, threads)


def test_classes_follow_what_is_wanted_and_the_file_has_the_originals_meanwhile(kept: Kept) -> None:
    kept.threads[1].chrt(os.SCHED_BATCH)
    kept.settle("fifo:1", "rr:2")
    assert kept.shown == [FIFO, RR]
    assert ClassFile(kept.path, "boot").load() == {
        kept.threads[0].id: ClassRecord(SHOP, kept.threads[0].main, OTHER, (FIFO,)),
        kept.threads[1].id: ClassRecord(SHOP, kept.threads[1].main, SchedClass(3), (RR,))}
    kept.settle("rr:2")
    assert kept.shown == [RR, SchedClass(3)]
    kept.settle()
    assert kept.shown == [OTHER, SchedClass(3)]
    assert not kept.path.exists()


def test_the_original_is_kept_before_a_class_is_set(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(class_setter, "set_class", lambda *_: seen.append(ClassFile(kept.path, "boot").load()))
    kept.settle("fifo:1")
    assert [list(records or ()) for records in seen] == [[kept.threads[0].id]]


@pytest.mark.parametrize("steps", range(3))
def test_a_watcher_that_was_killed_at_any_step_is_followed_by_one_that_converges(
        kept: Kept, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    made: list[ThreadId] = []

    def killed(proc: Procfs, thread: ThreadId, wanted: SchedClass) -> None:
        if len(made) == steps:
            raise KeyboardInterrupt
        set_class(proc, thread, wanted)
        made.append(thread)

    with monkeypatch.context() as patch:
        patch.setattr(class_setter, "set_class", killed)
        with contextlib.suppress(KeyboardInterrupt):
            kept.settle("fifo:1", "rr:2")
    assert len(made) == steps
    kept.start()
    kept.settle("", "rr:2")
    assert kept.shown == [OTHER, RR]
    kept.start()
    assert kept.setter.give_back()
    assert kept.shown == [OTHER, OTHER]
    assert not kept.path.exists()


def test_drift_is_repaired_until_another_program_contends_and_then_again(
        kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    kept.settle("fifo:1")
    for policy in (os.SCHED_OTHER, os.SCHED_FIFO):  # as FIFO 1 that new threads inherit
        kept.threads[0].chrt(policy, int(policy == os.SCHED_FIFO))
        kept.settle("fifo:1")
        assert kept.shown[0] == FIFO
    assert "class repaired sandbox=shop vcpus=0 class=fifo:1 was=fifo:1, which its new threads inherit" in caplog.text
    kept.threads[0].chrt(os.SCHED_OTHER)
    for _ in range(2):
        kept.settle("fifo:1")
    assert kept.shown[0] == OTHER
    assert kept.setter.why == {kept.threads[0].id: RESTING}
    assert caplog.text.count("contention: ") == 1
    kept.clock += 300.0
    kept.settle("fifo:1")
    assert (kept.shown[0], kept.setter.why) == (FIFO, {})


def test_a_rest_ends_at_repin(kept: Kept) -> None:
    kept.settle("fifo:1")
    for _ in range(3):
        kept.threads[0].chrt(os.SCHED_OTHER)
        kept.settle("fifo:1")
    assert kept.shown[0] == OTHER
    kept.setter.retry_now()
    kept.settle("fifo:1")
    assert kept.shown[0] == FIFO


def test_another_programs_class_stays_when_the_vcpu_floats(kept: Kept) -> None:
    kept.settle("fifo:1")
    kept.threads[0].chrt(os.SCHED_RR, 9)
    kept.settle()
    assert kept.shown[0] == SchedClass(2, 9)
    assert not kept.path.exists()


def test_a_thread_that_may_run_elsewhere_has_no_class(kept: Kept) -> None:
    kept.settle("fifo:1")
    os.sched_setaffinity(kept.threads[0].tid, os.sched_getaffinity(0))
    if len(os.sched_getaffinity(0)) > 1:
        kept.settle("fifo:1")
        assert kept.shown[0] == OTHER
        assert kept.setter.why == {kept.threads[0].id: f"its mask is not CPU {CPU} alone"}


def test_a_process_that_the_kernel_would_end_is_left_alone(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_setter, "run_time_limit", lambda *_: "5000")
    kept.settle("fifo:1")
    assert kept.shown[0] == OTHER
    assert "5000 us" in kept.setter.why[kept.threads[0].id]


def test_a_refused_class_is_reported_once_and_tried_again(
        kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(class_setter, "set_class", refuse)
        for _ in range(3):
            kept.settle("fifo:1", "fifo:1")
    assert set(kept.setter.why.values()) == {NOT_PERMITTED}
    assert caplog.text.count("RestrictRealtime=yes") == 1
    kept.settle("fifo:1", "fifo:1")
    assert kept.shown == [FIFO, FIFO]
    with monkeypatch.context() as patch:
        patch.setattr(class_setter, "set_class", refuse)
        assert not kept.setter.give_back()
    assert kept.setter.give_back()
    assert kept.shown == [OTHER, OTHER]


def test_a_thread_whose_class_cannot_be_read_keeps_no_other_from_its_class(
        kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    first = kept.threads[0].id
    kept.settle("fifo:1", "fifo:1")

    def forbidden(tid: int) -> SchedClass | None:
        if tid == first.tid:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return class_of(tid)

    with monkeypatch.context() as patch:
        patch.setattr(class_setter, "class_of", forbidden)
        for texts in (("fifo:1", ""), ("", "rr:2")):
            kept.settle(*texts)
            assert kept.setter.why == {first: "its class cannot be read: Operation not permitted"}
            assert kept.shown == [FIFO, RR if texts[1] else OTHER]
            assert first in kept.setter.records
        assert kept.setter.planned({}, lambda *_: False).backs[0].thread == kept.threads[1].id
        assert not kept.setter.give_back()
        assert kept.shown == [FIFO, OTHER]
    assert caplog.text.count("its class cannot be read") == 1
    assert kept.setter.give_back()
    assert kept.shown == [OTHER, OTHER]


def test_what_is_not_done_as_the_thread_has_ended_is_not_in_the_log(
        kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def ended(*_: object) -> None:
        raise ProcessLookupError

    kept.settle("", "fifo:1")
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(class_setter, "set_class", ended)
    kept.settle("fifo:1")
    assert (kept.setter.why, caplog.messages) == ({}, [])
    assert list(kept.setter.records) == [kept.threads[0].id]


def test_without_room_for_the_originals_no_class_is_set_and_others_are_given_back(
        kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.settle("fifo:1")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(sealed_file, "replace", fail)
        with pytest.raises(OSError, match="No space left"):
            kept.settle("", "fifo:1")
        assert kept.shown == [OTHER, OTHER]
    kept.settle("", "fifo:1")
    assert kept.shown == [OTHER, FIFO]


def test_the_threads_of_chosen_sandboxes_alone_are_given_back(kept: Kept) -> None:
    kept.settle("fifo:1")
    assert kept.setter.give_back(lambda sandbox: sandbox == "db")
    assert kept.shown[0] == FIFO
    assert kept.setter.give_back(lambda sandbox: sandbox == "shop")
    assert kept.shown[0] == OTHER


def test_threads_of_sandboxes_that_keep_what_they_have_are_not_given_back(kept: Kept) -> None:
    kept.settle("fifo:1")
    kept.setter.settle({}, (), lambda *_: True)
    assert kept.shown[0] == FIFO
    assert kept.path.exists()


def test_the_number_of_a_thread_that_has_ended_gets_nothing(kept: Kept) -> None:
    """Its record names a thread whose number another one, with the same class, has now."""
    kept.threads[0].chrt(os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, 1)
    old = ThreadId(kept.threads[0].tid, kept.threads[0].id.starttime - 1)
    ClassFile(kept.path, "boot").save({old: ClassRecord(SandboxId("db"), kept.threads[0].main, OTHER, (FIFO,))})
    kept.start()
    assert kept.setter.give_back()
    assert kept.shown[0] == FIFO
    assert not kept.path.exists()


class Vmm:
    """A process with a thread on one CPU, as a VMM with a vCPU, in which the thread executes `sleep`."""

    _SCRIPT = """
import os, threading
def vcpu():
    os.sched_setaffinity(0, {%d})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    print(threading.get_native_id(), flush=True)
    input()
    os.execvp("sleep", ["sleep", "1000"])
threading.Thread(target=vcpu).start()
"""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", self._SCRIPT % CPU], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        pid, tid = self._process.pid, int(self._process.stdout.readline())
        self.main, self.vcpu = thread_id(pid, pid), thread_id(pid, tid)

    def execute(self) -> None:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        wait(lambda: Path(f"/proc/{self.main.tid}/comm").read_text() == "sleep\n",
             "the thread executes a program")
        assert class_of(self.vcpu.tid) is None
        assert thread_id(self.main.tid, self.main.tid) == self.main, "the kernel keeps the id and start time"

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def vmm() -> Iterator[Vmm]:
    vmm = Vmm()
    try:
        yield vmm
    finally:
        vmm.end()


@pytest.mark.parametrize("by", ["settle", "still wanted", "restart", "give_back"])
def test_a_vcpu_that_executes_a_program_gets_its_class_back_as_the_main_thread(
        kept: Kept, vmm: Vmm, by: str) -> None:
    wanted = {vmm.vcpu: LoneVcpu(SHOP, vmm.main, 0, CPU, FIFO)}
    kept.setter.settle(wanted, wanted)
    vmm.execute()
    assert class_of(vmm.main.tid) == FIFO
    if by == "restart":
        kept.start()
    if by == "give_back":
        assert kept.setter.give_back(lambda sandbox: sandbox == "db")
        assert class_of(vmm.main.tid) == FIFO
        assert kept.setter.give_back()
    elif by == "still wanted":
        kept.setter.settle(wanted, wanted)
    else:
        kept.settle()
    assert class_of(vmm.main.tid) == SchedClass(3)
    assert not kept.path.exists()


def test_a_refused_class_of_a_vcpu_that_executed_a_program_is_tried_again(
        kept: Kept, vmm: Vmm, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    wanted = {vmm.vcpu: LoneVcpu(SHOP, vmm.main, 0, CPU, FIFO)}
    kept.setter.settle(wanted, wanted)
    vmm.execute()
    for function in ("set_class", "class_of"):
        with monkeypatch.context() as patch:
            patch.setattr(class_setter, function, refuse)
            assert not kept.setter.give_back()
            kept.settle()
    assert class_of(vmm.main.tid) == FIFO
    kept.settle()
    assert class_of(vmm.main.tid) == SchedClass(3)
    assert not kept.path.exists()


def test_a_file_of_another_boot_counts_for_nothing_and_a_damaged_one_stays_aside(kept: Kept, tmp_path: Path) -> None:
    kept.settle("fifo:1")
    kept.start("another")
    assert kept.setter.records == {}
    kept.path.write_bytes(kept.path.read_bytes().replace(b"shop", b"shod"))
    kept.start()
    for _ in range(2):
        assert not kept.setter.give_back()
    (tmp_path / "scheduling.json.bad").unlink()
    assert kept.setter.give_back()


def test_without_the_capability_the_reason_is_in_the_status(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from own_threads import own_threads
from vmpin.domain.contention import ContentionRules
from vmpin.features.scheduling.class_file import ClassFile
from vmpin.features.scheduling.class_setter import ClassSetter
from vmpin.host.procfs import Procfs
with own_threads(1) as (thread,):
    setter = ClassSetter(Procfs(), ClassFile(Path(sys.argv[1]), "boot"), ContentionRules())
    setter.settle({thread.id: thread.lone()}, [thread.id])
    print(setter.why[thread.id])
"""
    done = subprocess.run([need_tool("setpriv"), "--bounding-set=-sys_nice", sys.executable, "-c", script,
                           str(tmp_path / "file")], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.stdout.strip() == NOT_PERMITTED, done.stderr
