"""Affinity masks: the only place that sets one.

A mask is set on a number, and the number may be another thread's by the time the system call runs. So the thread's
own stat file is held open around it: an open file of /proc stays bound to the very task it was opened on, and once
that task is dead reads fail with ESRCH, whoever has the number then. What stays out: which mask, and what a mask
that came out smaller means (the cpuset cgroup trims it without a word).
"""

from __future__ import annotations

import errno
import os

from vmpin.cpuset import CpuSet
from vmpin.errors import AffinityError, CpuNotAllowed, NotPermitted, ThreadGone
from vmpin.host.procfs import Procfs
from vmpin.model import ThreadId, VmThread

#: A stat line is about 300 bytes; the 52 fields of 20 digits each that it could be at worst fit as well.
_STAT_SIZE = 2048


def get(tid: int) -> frozenset[int] | None:
    """The thread's mask as the kernel shows it, None when there is no such thread.

    The mask can be *empty*: Linux 6.1 shows that for a sleeping thread whose only CPU went offline.
    """
    if tid <= 0:
        return None  # to the system call 0 is the caller
    try:
        return frozenset(os.sched_getaffinity(tid))
    except ProcessLookupError:
        return None


def pin(proc: Procfs, thread: VmThread, cpus: CpuSet) -> CpuSet:
    """Set the thread's mask, and return what the kernel shows then: it may be less than was asked.

    :raises ThreadGone: the thread has ended, before or meanwhile. A thread that got its number meanwhile has its
        mask back.
    :raises CpuNotAllowed: no CPU of `cpus` is online and in the thread's cpuset cgroup, or a kernel thread that is
        bound to its CPU.
    :raises NotPermitted: and for what else the kernel may say, AffinityError.
    """
    tid = thread.id.tid
    try:
        fd = os.open(f"{proc.root}/{thread.pid}/task/{tid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        raise ThreadGone(tid, cpus) from None
    except OSError as err:
        raise AffinityError(tid, cpus, f"cannot read its start time: {err.strerror}") from err
    try:
        if not _lives(fd, thread.id):
            raise ThreadGone(tid, cpus)
        before = get(tid)
        try:
            os.sched_setaffinity(tid, cpus.frozen())
            now = os.sched_getaffinity(tid)
        except OSError as err:
            # What the kernel said of a thread that took over the number is nothing to report.
            if not _lives(fd, thread.id):
                raise ThreadGone(tid, cpus) from None
            raise _translated(err, tid, cpus) from err
        if not _lives(fd, thread.id):
            _put_back(tid, before)
            raise ThreadGone(tid, cpus)
    finally:
        os.close(fd)
    return cpus if now == cpus.frozen() else CpuSet(now)


def _lives(fd: int, thread: ThreadId) -> bool:
    """Whether the task behind an open stat file is that thread and has not ended.

    Not procfs.parse_stat: two of its fields, at a third of the cost, in the path that every pin takes twice.
    """
    try:
        raw = os.pread(fd, _STAT_SIZE, 0)
    except ProcessLookupError:
        return False
    # The name before the last `)` may hold anything; state is the first field behind it, starttime the 20th.
    fields = raw[raw.rfind(b")") + 2 :].split(b" ", 20)
    # A zombie (Z, or X for a moment) keeps its number and start time until it is reaped, but never runs again.
    return len(fields) > 19 and fields[0] not in (b"Z", b"X") and fields[19] == b"%d" % thread.starttime


def _put_back(tid: int, mask: frozenset[int] | None) -> None:
    """Give the thread that took over a number the mask that was read of that number before.

    Nothing better is known of it. Where that is none or empty, its own mask stays lost; and an error changes
    nothing: the thread has ended too, or may not be touched, as the first call was refused then.
    """
    if not mask:
        return
    try:
        os.sched_setaffinity(tid, mask)
    except OSError:
        return


def _translated(err: OSError, tid: int, cpus: CpuSet) -> AffinityError:
    if isinstance(err, ProcessLookupError):
        return ThreadGone(tid, cpus)
    if isinstance(err, PermissionError):
        return NotPermitted(tid, cpus)
    if err.errno == errno.EINVAL:
        return CpuNotAllowed(tid, cpus)
    return AffinityError(tid, cpus, f"{err.strerror}")
