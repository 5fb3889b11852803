"""Masks of this test's own threads and children, set for real."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from need import need_root

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ThreadId, ThreadRole, VmThread
from vmpin.errors import AffinityError, CpuNotAllowed, NotPermitted, ThreadGone
from vmpin.host import affinity
from vmpin.host.procfs import Procfs, parse_stat

PROC = Procfs()
ALLOWED = CpuSet(os.sched_getaffinity(0))
ONE = CpuSet((ALLOWED.first,))
REST = ALLOWED - ONE
#: In no machine's reach, and in every CpuSet's.
NOWHERE = CpuSet((8191,))

pytestmark = pytest.mark.skipif(not REST, reason="needs two CPUs")


def pin(proc: Procfs, thread: VmThread, cpus: CpuSet) -> CpuSet:
    return affinity.pin_seen(proc, thread, cpus)[0]


def thread_of(pid: int, tid: int) -> VmThread:
    stat = PROC.thread_stat(pid, tid)
    assert stat is not None
    return VmThread(ThreadId(tid, stat.starttime), ThreadRole.EMULATOR, stat.comm, pid)


class Worker:
    """A thread of this process that waits until it is ended."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._end.wait)
        self._thread.start()
        assert self._thread.native_id is not None
        self.tid = self._thread.native_id

    @property
    def thread(self) -> VmThread:
        return thread_of(os.getpid(), self.tid)

    def end(self) -> None:
        """Returns when the kernel has forgotten it; join() returns a little before."""
        self._end.set()
        self._thread.join()
        while PROC.thread_stat(os.getpid(), self.tid) is not None:
            time.sleep(0.001)


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.end()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


class Meanwhile(CpuSet):
    """CPUs that let something happen when they are handed to the kernel: after the check before, before the set. It
    takes so long that a number may be another thread's then."""

    __slots__ = ("happens",)

    def __init__(self, cpus: CpuSet, happens: Callable[[], object]) -> None:
        super().__init__(cpus)
        object.__setattr__(self, "happens", happens)

    def frozen(self) -> frozenset[int]:
        self.happens()
        time.sleep(affinity.SOON)
        return super().frozen()

    happens: Callable[[], object]


def test_one_thread_is_pinned_and_no_other(worker: Worker) -> None:
    assert pin(PROC, worker.thread, ONE) == ONE
    assert affinity.get(worker.tid) == ONE.frozen()
    assert affinity.get(os.getpid()) == ALLOWED.frozen()
    assert pin(PROC, worker.thread, REST) == REST


def test_what_the_kernel_shows_is_returned_not_what_was_asked(worker: Worker) -> None:
    assert pin(PROC, worker.thread, ONE | NOWHERE) == ONE


@pytest.mark.parametrize("cpus", [NOWHERE, EMPTY])
def test_no_usable_cpu_is_cpu_not_allowed_and_changes_nothing(worker: Worker, cpus: CpuSet) -> None:
    with pytest.raises(CpuNotAllowed) as caught:
        pin(PROC, worker.thread, cpus)
    assert (caught.value.tid, caught.value.cpus) == (worker.tid, cpus)
    assert affinity.get(worker.tid) == ALLOWED.frozen()


def test_another_start_time_is_another_thread_and_is_left_alone(worker: Worker) -> None:
    known = worker.thread
    earlier = VmThread(ThreadId(known.id.tid, known.id.starttime - 1), known.role, known.name, known.pid)
    with pytest.raises(ThreadGone):
        pin(PROC, earlier, ONE)
    assert affinity.get(worker.tid) == ALLOWED.frozen()


def test_a_thread_of_another_process_is_left_alone(worker: Worker, child: subprocess.Popen[bytes]) -> None:
    known = worker.thread
    with pytest.raises(ThreadGone):
        pin(PROC, VmThread(known.id, known.role, known.name, child.pid), ONE)
    assert affinity.get(worker.tid) == ALLOWED.frozen()


def test_a_thread_that_has_ended_is_gone() -> None:
    worker = Worker()
    known = worker.thread
    worker.end()
    assert affinity.get(known.id.tid) is None
    with pytest.raises(ThreadGone):
        pin(PROC, known, ONE)


def test_a_thread_that_ends_after_the_check_is_gone() -> None:
    worker = Worker()
    with pytest.raises(ThreadGone):
        pin(PROC, worker.thread, Meanwhile(ONE, worker.end))


def test_a_zombie_that_is_not_reaped_is_gone(child: subprocess.Popen[bytes]) -> None:
    known = thread_of(child.pid, child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    stat = PROC.stat(child.pid)
    assert stat is not None
    assert stat.state == "Z"
    with pytest.raises(ThreadGone):
        pin(PROC, known, ONE)


def test_a_process_that_dies_after_the_check_and_is_not_reaped_is_gone(child: subprocess.Popen[bytes]) -> None:
    def die() -> None:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(ThreadGone):
        pin(PROC, thread_of(child.pid, child.pid), Meanwhile(ONE, die))


def test_a_kept_stat_file_serves_the_mask_of_its_thread_and_is_closed(worker: Worker) -> None:
    proc = Procfs()
    known = worker.thread
    with proc.keeping_stat_files():
        (stat,) = proc.task_stats(os.getpid(), [worker.tid]).values()
        assert (stat.comm, stat.starttime) == (known.name, known.id.starttime)
        before = open_stat_files()
        assert pin(proc, known, ONE) == ONE
        assert open_stat_files() == before - 1
    assert pin(proc, known, REST) == REST, "and without a kept one"


def test_the_cpu_that_a_thread_was_on_is_read_right_before() -> None:
    """The proof books by it the time that the thread ran elsewhere."""
    proc, other = Procfs(), REST.first
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as busy:
        try:
            os.sched_setaffinity(busy.pid, ONE)
            known = thread_of(busy.pid, busy.pid)
            with proc.keeping_stat_files():
                while proc.task_stats(busy.pid, [busy.pid])[busy.pid].processor != ONE.first:
                    pass
                os.sched_setaffinity(busy.pid, (other,))
                while getattr(proc.stat(busy.pid), "processor", None) != other:
                    pass
                got, stat = affinity.pin_seen(proc, known, ONE)
                assert got == ONE
                assert getattr(parse_stat(stat), "processor", None) == other
        finally:
            busy.kill()


def test_the_kept_stat_file_of_a_thread_that_has_ended_gives_no_mask_away() -> None:
    proc, worker = Procfs(), Worker()
    known = worker.thread
    with proc.keeping_stat_files():
        proc.task_stats(os.getpid(), [worker.tid])
        worker.end()
        with pytest.raises(ThreadGone):
            pin(proc, known, ONE)


def test_kept_stat_files_leave_half_of_the_free_descriptors_and_are_all_closed() -> None:
    workers = [Worker() for _ in range(12)]
    tids = [worker.tid for worker in workers]
    before, opened = open_stat_files(), len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 8, limits[1]))
        proc = Procfs()
        with proc.keeping_stat_files():
            assert proc.task_stats(os.getpid(), tids).keys() == set(tids)
            assert proc.task_stats(os.getpid(), tids).keys() == set(tids), "read again, and kept once"
            assert 0 < open_stat_files() - before <= 4
        assert open_stat_files() == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for worker in workers:
            worker.end()


def open_stat_files() -> int:
    """How many stat files this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").endswith("/stat")
    return found


@pytest.mark.root
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("cpus", [ONE, NOWHERE])
def test_a_stranger_that_takes_over_the_number_keeps_its_mask(child: subprocess.Popen[bytes], cpus: CpuSet,
                                                              kept: bool) -> None:
    """The number is given away between the check and the set: the start time may even be the same tick's."""
    need_root()
    proc = Procfs()

    def replace() -> None:
        if child.returncode is None:
            child.kill()
            child.wait()
            born(child.pid)

    try:
        with proc.keeping_stat_files():
            known = thread_of(child.pid, child.pid)
            if kept:
                proc.task_stats(child.pid, [child.pid])
            with pytest.raises(ThreadGone):
                pin(proc, known, Meanwhile(cpus, replace))
        assert affinity.get(child.pid) == ALLOWED.frozen()
    finally:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)


@pytest.mark.root
def test_a_stranger_that_has_the_number_since_the_pass_began_is_not_touched(child: subprocess.Popen[bytes]) -> None:
    need_root()
    proc, used = Procfs(), list[str]()
    with proc.keeping_stat_files():
        known = thread_of(child.pid, child.pid)
        proc.task_stats(child.pid, [child.pid])
        child.kill()
        child.wait()
        born(child.pid)
        try:
            with pytest.raises(ThreadGone):
                pin(proc, known, Meanwhile(ONE, lambda: used.append("the mask was taken to set it")))
        finally:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
    assert not used


def test_no_descriptor_is_left_open(worker: Worker) -> None:
    before = os.listdir("/proc/self/fd")
    known = worker.thread
    pin(PROC, known, ONE)
    for thread, cpus in ((known, NOWHERE), (VmThread(ThreadId(known.id.tid, 1), known.role, "", known.pid), ONE)):
        with pytest.raises(AffinityError):
            pin(PROC, thread, cpus)
    assert os.listdir("/proc/self/fd") == before


def test_threads_that_end_at_any_moment_are_pinned_or_gone() -> None:
    outcomes = []
    for _ in range(300):
        running = threading.Thread(target=time.sleep, args=(0.0003,))
        running.start()
        assert running.native_id is not None
        stat = PROC.thread_stat(os.getpid(), running.native_id)
        if stat is not None:
            thread = VmThread(ThreadId(running.native_id, stat.starttime), ThreadRole.VCPU, "", os.getpid())
            while True:
                try:
                    outcomes.append(pin(PROC, thread, ONE))
                except ThreadGone:
                    break
        running.join()
    assert set(outcomes) == {ONE}


@pytest.mark.root
def test_a_thread_of_another_user_is_not_permitted(child: subprocess.Popen[bytes]) -> None:
    need_root()
    known = thread_of(child.pid, child.pid)
    with as_unprivileged(), pytest.raises(NotPermitted, match="not permitted"):
        pin(PROC, known, ONE)
    assert affinity.get(child.pid) == ALLOWED.frozen()


@pytest.mark.root
def test_a_kernel_thread_is_found_as_its_own_process() -> None:
    need_root()
    for pid in map(int, PROC.pids()):
        stat = PROC.stat(pid)
        if stat is not None and stat.kernel_thread and stat.comm == "ksoftirqd/0":
            # It is bound to its CPU: the kernel refuses any mask.
            with pytest.raises(CpuNotAllowed):
                pin(PROC, thread_of(pid, pid), ALLOWED)
            return
    pytest.skip("kernel threads are not in this PID namespace")


def test_no_number_is_the_callers() -> None:
    assert affinity.get(0) is None
    assert affinity.get(-1) is None
    unprivileged = VmThread(ThreadId(0, 0), ThreadRole.EMULATOR, "", 0)
    with pytest.raises(ThreadGone):
        pin(PROC, unprivileged, ONE)


@contextmanager
def as_unprivileged() -> Iterator[None]:
    """This thread without root's rights. The system call itself: libc's seteuid changes every thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    setresuid = {"x86_64": 117, "aarch64": 147}[os.uname().machine]
    minus_one, unprivileged = ctypes.c_long(-1), ctypes.c_long(65534)
    assert libc.syscall(ctypes.c_long(setresuid), minus_one, unprivileged, minus_one) == 0
    try:
        yield
    finally:
        assert libc.syscall(ctypes.c_long(setresuid), minus_one, ctypes.c_long(0), minus_one) == 0


def born(pid: int) -> None:
    """A child of this process with just that process id, which clone3(2) gives to root."""
    wanted = (ctypes.c_int * 1)(pid)
    # struct clone_args (linux/sched.h): flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls,
    # set_tid, set_tid_size, cgroup
    args = (ctypes.c_uint64 * 11)(0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1, 0)
    # PyDLL keeps the interpreter's lock over the call, so that the child has it too.
    libc = ctypes.PyDLL(None, use_errno=True)
    made = libc.syscall(ctypes.c_long(435), ctypes.byref(args), ctypes.c_size_t(ctypes.sizeof(args)))
    if made == 0:
        while True:
            signal.pause()
    assert made == pid, os.strerror(ctypes.get_errno())
