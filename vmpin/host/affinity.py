"""Affinity masks: the only place that sets one.

A mask is set on a number, and the number may be another thread's by the time the system call runs. So the thread's own
stat file is held open around it: an open file of /proc stays bound to the very task it was opened on, and once that
task is dead reads fail with ESRCH, whichever thread has the number then. It is read before the mask is set, and again
after it unless both took less than SOON. A mask may come out smaller than was asked for: the cpuset cgroup trims it
without an error.
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
#: Seconds in which no number becomes another thread's. The kernel gives numbers out in turn (kernel/pid.c,
#: idr_alloc_cyclic): before one is used again all others have been, 32,768 at least by default, each by a fork of
#: 10 us and more. After a longer time, as when this process was stopped, the file is read again: a third of the cost.
SOON = 0.001
#: A zombie (Z, or X for a moment) keeps its number and start time until it is reaped, but never runs again.
_ENDED = frozenset(b"ZX")


def get(tid: int) -> frozenset[int] | None:
    """The thread's mask as the kernel shows it, None when there is no such thread. The mask can be *empty*: Linux 6.1
    shows that for a sleeping thread whose only CPU went offline."""
    if tid <= 0:
        return None  # to the system call 0 is the caller
    try:
        return frozenset(os.sched_getaffinity(tid))
    except ProcessLookupError:
        return None


def pin_seen(proc: Procfs, thread: VmThread, cpus: CpuSet) -> tuple[CpuSet, bytes]:
    """Set the thread's mask. :returns: what the kernel shows then, which may be less than was asked, and the thread's
    stat line from before: with the new mask the CPU in it is lost. A stat file that a pass has kept open is read
    again, as the pass may have classified its thread long before: a number is not set by what was so then.
    :raises ThreadGone: the thread has ended, before or meanwhile. A thread that got its number meanwhile has its mask
        back.
    :raises CpuNotAllowed: no CPU of `cpus` is online and in the thread's cpuset cgroup, or a kernel thread that is
        bound to its CPU.
    :raises NotPermitted: and for every other errno, AffinityError."""
    tid, starttime = thread.id
    fd = proc.take_stat_file(thread.id)
    kept = fd is not None  # the file of that very thread: its start time was read from it
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
            # An error about the thread that took over the number is not reported.
            if not _lives(fd):
                raise ThreadGone(tid, cpus) from None
            raise _translated(err, tid, cpus) from err
        if time.monotonic() - begin > SOON and not _lives(fd):
            _put_back(tid, before)
            raise ThreadGone(tid, cpus)
    finally:
        os.close(fd)
    return (cpus if now == wanted else CpuSet(now)), stat


def _lives(fd: int) -> bool:
    """Whether the task behind an open stat file has not ended: the file stays with the thread it was opened for."""
    try:
        stat = os.pread(fd, _UP_TO_STATE, 0)
    except ProcessLookupError:
        return False
    return stat[stat.rfind(b")") + 2] not in _ENDED


def _put_back(tid: int, mask: set[int]) -> None:
    """Give the thread that took over a number the mask that was read of that number before: nothing better is known of
    it. An error changes nothing: the thread has ended too, or may not be touched, as the first call was refused then.
    """
    if mask:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(tid, mask)


def _translated(err: OSError, tid: int, cpus: CpuSet) -> AffinityError:
    kinds = {errno.ESRCH: ThreadGone, errno.EPERM: NotPermitted, errno.EACCES: NotPermitted,
             errno.EINVAL: CpuNotAllowed}
    kind = kinds.get(err.errno or 0)
    return AffinityError(tid, cpus, f"{err.strerror}") if kind is None else kind(tid, cpus)
