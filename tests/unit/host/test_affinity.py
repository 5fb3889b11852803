"""Masks of this test's own threads and children, set for real."""

from __future__ import annotations

import ctypes
import errno
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
from vmpin.errors import AffinityError, CpuNotAllowed, NotPermitted, ThreadBound, ThreadGone
from vmpin.host import affinity
from vmpin.host.affinity import pin_threads
from vmpin.host.procfs import Procfs

PROC = Procfs()
ALLOWED = CpuSet(os.sched_getaffinity(0))
ONE = CpuSet((ALLOWED.first,))
REST = ALLOWED - ONE
#: In no machine's reach, and in every CpuSet's.
NOWHERE = CpuSet((8191,))

pytestmark = pytest.mark.skipif(not REST, reason="needs two CPUs")


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
    """CPUs that let something happen when they are handed to the kernel: after the check before, before the set."""

    __slots__ = ("happens",)

    def __init__(self, cpus: CpuSet, happens: Callable[[], object]) -> None:
        super().__init__(cpus)
        object.__setattr__(self, "happens", happens)

    def frozen(self) -> frozenset[int]:
        self.happens()
        return super().frozen()

    happens: Callable[[], object]


def pin(proc: Procfs, thread: VmThread, cpus: CpuSet) -> CpuSet:
    """:raises AffinityError: why it has not this mask."""
    [outcome] = pin_threads(proc, [(thread, cpus)])
    if isinstance(outcome, AffinityError):
        raise outcome
    return outcome


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


@pytest.mark.root
@pytest.mark.parametrize("cpus", [ONE, NOWHERE])
def test_a_stranger_that_takes_over_the_number_keeps_its_mask(child: subprocess.Popen[bytes], cpus: CpuSet) -> None:
    """The number is given away between the check and the set: the start time may even be the same tick's."""
    need_root()

    def replace() -> None:
        if child.returncode is None:
            child.kill()
            child.wait()
            born(child.pid)

    try:
        with pytest.raises(ThreadGone):
            pin(PROC, thread_of(child.pid, child.pid), Meanwhile(cpus, replace))
        assert affinity.get(child.pid) == ALLOWED.frozen()
    finally:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)


class Several:
    """Eight threads of this process, which are pinned together. `ids` are as they were at first."""

    def __init__(self) -> None:
        self.workers = [Worker() for _ in range(8)]
        self.ids = [worker.thread for worker in self.workers]
        self._alive = set(range(8))

    def end(self, *numbers: int) -> None:
        for number in self._alive & set(numbers):
            self.workers[number].end()
            self._alive.remove(number)

    def masks(self) -> list[frozenset[int] | None]:
        return [affinity.get(worker.tid) for worker in self.workers]


@pytest.fixture
def several() -> Iterator[Several]:
    made = Several()
    yield made
    made.end(*range(8))


def test_threads_of_a_process_get_a_mask_each(several: Several) -> None:
    wanted = [(thread, (ONE, REST, NOWHERE, ONE | NOWHERE)[at % 4]) for at, thread in enumerate(several.ids)]
    before = os.listdir("/proc/self/fd")
    one, rest, nowhere, trimmed, *_ = got = pin_threads(PROC, wanted)
    assert (one, rest, type(nowhere), trimmed) == (ONE, REST, CpuNotAllowed, ONE)
    assert len(got) == 8
    assert several.masks() == [ONE.frozen(), REST.frozen(), ALLOWED.frozen(), ONE.frozen()] * 2
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("ended", [(0,), (3,), (0, 1, 2), (7,), tuple(range(8))])
def test_threads_that_have_ended_are_gone_and_the_others_are_pinned(several: Several, ended: tuple[int, ...]) -> None:
    several.end(*ended)
    got = pin_threads(PROC, [(thread, ONE) for thread in several.ids])
    assert [at for at, outcome in enumerate(got) if isinstance(outcome, ThreadGone)] == list(ended)
    assert [outcome for outcome in got if not isinstance(outcome, ThreadGone)] == [ONE] * (8 - len(ended))


def test_threads_that_end_while_masks_are_set_are_gone(several: Several) -> None:
    ends = Meanwhile(ONE, lambda: several.end(1, 3, 5))
    got = pin_threads(PROC, [(thread, ends if at == 4 else ONE) for at, thread in enumerate(several.ids)])
    assert [at for at, outcome in enumerate(got) if isinstance(outcome, ThreadGone)] == [1, 3, 5]


def test_threads_of_another_process_are_left_alone(several: Several, child: subprocess.Popen[bytes]) -> None:
    """The pid is another process's by now."""
    got = pin_threads(PROC, [(thread._replace(pid=child.pid), ONE) for thread in several.ids])
    assert {type(outcome) for outcome in got} == {ThreadGone}
    assert several.masks() == [ALLOWED.frozen()] * 8


@pytest.mark.parametrize("incomplete", [1, 2])
def test_a_live_thread_that_a_listing_lacks_is_pinned_all_the_same(
        several: Several, monkeypatch: pytest.MonkeyPatch, incomplete: int) -> None:
    """As when another thread exits while the directory is read."""
    listings, listed = 0, os.listdir

    def lacking(directory: int) -> list[str]:
        nonlocal listings
        listings += 1
        return [name for name in listed(directory) if listings != incomplete or name != str(several.workers[5].tid)]

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lacking)
        assert pin_threads(PROC, [(thread, ONE) for thread in several.ids]) == [ONE] * 8
    assert listings == 2
    assert several.masks() == [ONE.frozen()] * 8


def test_masks_are_as_before_where_the_threads_cannot_be_listed_afterwards(
        several: Several, monkeypatch: pytest.MonkeyPatch) -> None:
    listings, listed = 0, os.listdir

    def failing(directory: int) -> list[str]:
        nonlocal listings
        listings += 1
        if listings == 2:
            raise OSError(errno.EMFILE, "none is free")
        return listed(directory)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", failing)
        patch.setattr(affinity, "_pin", lambda *_: ALLOWED)
        pin_threads(PROC, [(thread, ONE) for thread in several.ids])
    assert several.masks() == [ALLOWED.frozen()] * 8


@pytest.mark.root
@pytest.mark.parametrize("early", [True, False])
def test_a_stranger_with_the_number_of_one_of_several_keeps_its_mask(several: Several, early: bool) -> None:
    need_root()
    stranger, strangers = several.workers[5].tid, list[int]()

    def replace() -> None:
        several.end(5)
        born(stranger)
        strangers.append(stranger)

    try:
        changes = Meanwhile(ONE, replace)
        if early:
            replace()
            changes = Meanwhile(ONE, lambda: None)
        got = pin_threads(PROC, [(thread, changes if at == 5 - early else ONE)
                                 for at, thread in enumerate(several.ids)])
        assert [at for at, outcome in enumerate(got) if isinstance(outcome, ThreadGone)] == [5]
        assert affinity.get(stranger) == ALLOWED.frozen()
    finally:
        for pid in strangers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_without_a_free_descriptor_nothing_is_set_and_it_is_said(several: Several) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        got = pin_threads(PROC, [(thread, ONE) for thread in several.ids])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert {str(outcome) for outcome in got if "Too many open files" in str(outcome)} == set(map(str, got))
    assert several.masks() == [ALLOWED.frozen()] * 8


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
            # It is bound to its CPU: the kernel refuses any mask, which is no matter of CPUs or cgroups.
            with pytest.raises(ThreadBound, match=r"\(PF_NO_SETAFFINITY\)"):
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
    made = -1
    deadline = time.monotonic() + 60
    while made < 0 and time.monotonic() < deadline:
        # EEXIST for a moment: the kernel frees a tid a little after the thread has left /proc.
        made = libc.syscall(ctypes.c_long(435), ctypes.byref(args), ctypes.c_size_t(ctypes.sizeof(args)))
    if made == 0:
        while True:
            signal.pause()
    assert made == pid, os.strerror(ctypes.get_errno())
