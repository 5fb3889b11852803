"""Affinity masks: the only module that sets one.

sched_setaffinity() takes a tid, and the kernel may have reused the tid by the time the call runs. So the thread's stat
file is held open around the call: an open /proc file stays bound to the task it was opened on, and reads fail with
ESRCH once that task is dead, even if another thread has its tid by then. The file is read before the mask is set, and
again afterwards if more than SOON has passed. The kernel may set a smaller mask than requested, without an error: the
cpuset cgroup trims it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

from vmpin.cpuset import CpuSet
from vmpin.domain.model import VmThread
from vmpin.errors import AffinityError, CpuNotAllowed, NotPermitted, ThreadGone
from vmpin.host.procfs import Procfs

#: A stat line is about 300 bytes; the 52 fields of 20 digits each that it could be at worst fit as well.
_STAT_SIZE = 2048
#: Up to the state: a tid, and a name of at most 63 bytes (fs/proc/array.c, proc_task_name) in parentheses.
_UP_TO_STATE = 128
#: Seconds in which the kernel cannot reuse a tid. It allocates tids cyclically (kernel/pid.c, idr_alloc_cyclic), so
#: all others, at least 32,768 by default, are used first, and each takes a fork of 10 us or more. After a longer time,
#: for instance because this process was stopped, the file is read again, which is a third of the cost of a pin.
SOON = 0.001
#: A zombie (Z, or X for a moment) keeps its number and start time until it is reaped, but never runs again.
_ENDED = frozenset(b"ZX")


def get(tid: int) -> frozenset[int] | None:
    """The thread's mask as the kernel shows it, None when there is no such thread. The mask can be *empty*: Linux 6.1
    shows that for a sleeping thread whose only CPU went offline."""
    if tid <= 0:
        return None  # 0 means the calling thread to the system call
    try:
        return frozenset(os.sched_getaffinity(tid))
    except ProcessLookupError:
        return None


def pin_seen(proc: Procfs, thread: VmThread, cpus: CpuSet) -> tuple[CpuSet, bytes]:
    """Set a thread's mask. A stat file that the pass kept open is used, but read again: the pass may have classified
    the thread long ago.
    :returns: the mask that the kernel shows afterwards, which may be smaller than requested; and the thread's stat
        line from before, because the new mask may move the thread off the CPU that the line names.
    :raises ThreadGone: the thread has ended. If another thread took over its tid meanwhile, that thread's mask is put
        back.
    :raises CpuNotAllowed: no CPU of `cpus` is online and in the thread's cpuset cgroup, or the thread is a kernel
        thread that is bound to its CPU.
    :raises NotPermitted: EPERM or EACCES. :raises AffinityError: any other errno."""
    tid, starttime = thread.id
    fd = proc.take_stat_file(thread.id)
    kept = fd is not None  # the thread's start time was read from this file
    if fd is None:
        try:
            fd = os.open(f"{proc.root}/{thread.pid}/task/{tid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            raise ThreadGone(tid, cpus) from None
        except OSError as err:
            raise AffinityError(tid, cpus, f"cannot read its start time: {err.strerror}") from err
    try:
        begin = time.monotonic()
        try:
            stat = os.pread(fd, _STAT_SIZE, 0)
        except ProcessLookupError:
            raise ThreadGone(tid, cpus) from None
        # The name before the last `)` may hold anything. Behind it the first field is the state, and the 20th the
        # start time. Not procfs.parse_stat: every pin comes here.
        at = stat.rfind(b")") + 2
        if stat[at] in _ENDED or not (kept or int(stat[at:].split(b" ", 20)[19]) == starttime):
            raise ThreadGone(tid, cpus)
        wanted = cpus.frozen()
        try:
            before = os.sched_getaffinity(tid)
            os.sched_setaffinity(tid, wanted)
            now = os.sched_getaffinity(tid)
        except OSError as err:
            # An error about another thread that took over the tid is not reported.
            if not lives(fd):
                raise ThreadGone(tid, cpus) from None
            raise _translated(err, tid, cpus) from err
        if time.monotonic() - begin > SOON and not lives(fd):
            _put_back(tid, before)
            raise ThreadGone(tid, cpus)
    finally:
        os.close(fd)
    return (cpus if now == wanted else CpuSet(now)), stat


def lives(fd: int) -> bool:
    """Whether the task that a stat file was opened on is still alive."""
    try:
        stat = os.pread(fd, _UP_TO_STATE, 0)
    except ProcessLookupError:
        return False
    return stat[stat.rfind(b")") + 2] not in _ENDED


def _put_back(tid: int, mask: set[int]) -> None:
    """Restore the mask of a thread that took over a tid while it was being pinned: the mask read just before is the
    best guess. Errors are ignored: that thread has ended as well, or the first call was refused, too."""
    if mask:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(tid, mask)


def _translated(err: OSError, tid: int, cpus: CpuSet) -> AffinityError:
    kinds = {errno.ESRCH: ThreadGone, errno.EPERM: NotPermitted, errno.EACCES: NotPermitted,
             errno.EINVAL: CpuNotAllowed}
    kind = kinds.get(err.errno or 0)
    return AffinityError(tid, cpus, f"{err.strerror}") if kind is None else kind(tid, cpus)
