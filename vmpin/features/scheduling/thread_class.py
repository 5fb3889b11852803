"""The scheduling class of a thread in the kernel, read and set, and what limits real-time threads. A thread's identity
is checked before and after its class is set, as `vmpin.host.affinity` does for masks."""

from __future__ import annotations

import contextlib
import os

from vmpin.bounded import parse_whole
from vmpin.cpuset import MAX_CPU, CpuSet
from vmpin.domain.model import ThreadId
from vmpin.features.scheduling.sched_class import RESET_ON_FORK, SchedClass
from vmpin.host.affinity import lives
from vmpin.host.procfs import Procfs, linux, parse_stat, read_file
from vmpin.host.sysfs import numbered, text_of

_STAT_SIZE = 4096
_MICROSECONDS = 1 << 40


def class_of(tid: int) -> SchedClass | None:
    """The class that the kernel shows for a thread id; None without such a thread.
    :raises OSError: a security module forbids it."""
    try:
        policy = os.sched_getscheduler(tid)
        priority = os.sched_getparam(tid).sched_priority
    except ProcessLookupError:
        return None
    return SchedClass(policy & ~RESET_ON_FORK, priority, bool(policy & RESET_ON_FORK))


def set_class(proc: Procfs, thread: ThreadId, wanted: SchedClass) -> None:
    """Set a thread's class. Its nice value stays (kernel/sched/syscalls.c: _sched_setscheduler).
    :raises ProcessLookupError: the thread has ended. If another one took over its tid meanwhile, that one has its own
        class again. :raises OSError: the kernel refuses."""
    tid = thread.tid
    try:
        fd = os.open(f"{proc.root}/{tid}/task/{tid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise ProcessLookupError from None
    try:
        stat = parse_stat(os.pread(fd, _STAT_SIZE, 0))
        before = class_of(tid)
        if stat is None or stat.starttime != thread.starttime or before is None:
            raise ProcessLookupError
        _set(tid, wanted)
        if not lives(fd):
            with contextlib.suppress(OSError):
                _set(tid, before)
            raise ProcessLookupError
    finally:
        os.close(fd)


def _set(tid: int, wanted: SchedClass) -> None:
    os.sched_setscheduler(tid, wanted.policy | RESET_ON_FORK * wanted.reset, os.sched_param(wanted.priority))


def run_time_limit(proc: Procfs, pid: int) -> str:
    """The RLIMIT_RTTIME of a process in microseconds, by the id of any of its threads; "" for none, and where it
    cannot be read. The kernel ends a process whose real-time thread runs longer than that without blocking."""
    for line in (read_file(f"{proc.root}/{pid}/limits") or b"").decode("ascii", "replace").splitlines():
        if line.startswith("Max realtime timeout"):
            soft = line.split()[3]
            return "" if soft == "unlimited" else soft
    return ""


def kernel_release(proc: Procfs) -> str:
    """The kernel's release; "" if it cannot be read."""
    return (read_file(f"{proc.root}/sys/kernel/osrelease", 256) or b"").decode("ascii", "replace").strip()


def why_unlimited(proc: Procfs, sys: str | os.PathLike[str], release: str) -> str:
    """Why real-time threads might have all of a CPU's time, or none; "" if the kernel leaves other threads a part.
    :param release: the kernel's, of `kernel_release`; one without a version counts as old."""
    if (linux(release) or (0, 0)) >= (6, 12):
        return _without_fair_server(f"{os.fspath(sys)}/kernel/debug/sched/fair_server")
    runtime, period = (
        (read_file(f"{proc.root}/sys/kernel/sched_rt_{name}_us", 64) or b"").strip() for name in ("runtime", "period"))
    share, whole = parse_whole(runtime, _MICROSECONDS, 1), parse_whole(period, _MICROSECONDS, 1)
    if share is not None and whole is not None and share < whole:
        return ""
    text = runtime.decode("ascii", "replace") or "not readable"
    return f"kernel.sched_rt_runtime_us is {text}: it limits no real-time thread (scheduling.without_throttling)"


def _without_fair_server(directory: str) -> str:
    """Since Linux 6.12 the fair server leaves other threads a part of each CPU, whatever kernel.sched_rt_runtime_us
    is. Only debugfs shows and changes its run time, and 0 switches it off (kernel/sched/debug.c:
    sched_fair_server_write): where that cannot be read it is on."""
    off = CpuSet(cpu for cpu in numbered(directory, "cpu")
                 if cpu <= MAX_CPU and text_of(f"{directory}/cpu{cpu}/runtime") == "0")
    return (f"the fair server is off on CPUs {off} ({directory}): nothing limits real-time threads there "
            "(scheduling.without_throttling)") if off else ""
