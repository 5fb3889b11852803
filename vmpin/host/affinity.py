"""Affinity masks: the only module that sets one.

sched_setaffinity() takes a tid, and the kernel may have reused the tid by the time the call runs. So it is checked
before and after the call that the tid is the thread's. The file or directory for that is held open: an open file of
/proc stays bound to the task that it was opened on, even if another one has its tid or pid by then.

One thread is checked by its stat file; reads fail with ESRCH once the thread is dead. Of several threads of a process
the first one is checked so, and the others by the process's task directory, which lists the tids of its threads: that
takes a fifth of the time. A tid that passed to a new thread of the same process is not noticed, and does no harm: the
new thread is placed again when its creation is reported.

The kernel may set a smaller mask than requested, without an error: the cpuset cgroup trims it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence

from vmpin.cpuset import CpuSet
from vmpin.domain.model import VmThread
from vmpin.errors import AffinityError, CpuNotAllowed, NotPermitted, ThreadBound, ThreadGone
from vmpin.host.procfs import PF_NO_SETAFFINITY, Procfs

#: A stat line is about 300 bytes; the 52 fields of 20 digits each that it could be at worst fit as well.
_STAT_SIZE = 2048
#: Up to the state: a tid, and a name of at most 63 bytes (fs/proc/array.c, proc_task_name) in parentheses.
_UP_TO_STATE = 128
#: From this number on, threads of a process are checked together.
_SEVERAL = 4
_READ = os.O_RDONLY | os.O_CLOEXEC
_NO_SUCH = (FileNotFoundError, ProcessLookupError, NotADirectoryError)
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


def pin_threads(proc: Procfs, masks: Sequence[tuple[VmThread, CpuSet]]) -> list[CpuSet | AffinityError]:
    """Set the masks of threads of one process, in this order. :returns: for each the mask that the kernel shows
    afterwards, which may be smaller than requested; or why there is none:
    ThreadGone: the thread has ended. If another thread took over its tid meanwhile, that thread's mask is put back.
    CpuNotAllowed: no CPU of those is online and in the thread's cpuset cgroup.
    ThreadBound: the kernel lets no program set this thread's mask.
    NotPermitted: EPERM or EACCES. AffinityError: any other errno."""
    if len(masks) >= _SEVERAL:
        with contextlib.suppress(OSError):  # for instance no descriptor is free, or the process has ended
            return _pin_together(proc, masks)
    return [_pin(proc, thread, cpus) for thread, cpus in masks]


def _pin(proc: Procfs, thread: VmThread, cpus: CpuSet) -> CpuSet | AffinityError:
    """Set a thread's mask. :returns: as an item of `pin_threads`."""
    tid = thread.id.tid
    try:
        fd = os.open(f"{proc.root}/{thread.pid}/task/{tid}/stat", _READ)
    except _NO_SUCH:
        return ThreadGone(tid, cpus)
    except OSError as err:
        return AffinityError(tid, cpus, f"cannot read its start time: {err.strerror}")
    try:
        if not _is_of(fd, thread):
            return ThreadGone(tid, cpus)
        before, outcome = _set(proc, tid, cpus)
        if lives(fd):
            return outcome
        _put_back(tid, before)
        return ThreadGone(tid, cpus)
    finally:
        os.close(fd)


def _pin_together(proc: Procfs, masks: Sequence[tuple[VmThread, CpuSet]]) -> list[CpuSet | AffinityError]:
    """Set masks as `pin_threads` does.
    :raises OSError: the threads cannot be listed; the masks are as before."""
    results: list[CpuSet | AffinityError] = []
    changed: list[tuple[int, str, VmThread, set[int]]] = []
    listed = set[str]()
    tasks = os.open(f"{proc.root}/{masks[0][0].pid}/task", _READ | os.O_DIRECTORY)
    try:
        for thread, cpus in masks:
            # Without a listing, and where it lacks the thread, the thread's own file decides: a listing may lack a
            # thread that lives, if another one exits while it is made (fs/proc/base.c: proc_task_readdir).
            name = str(thread.id.tid)
            if name in listed or _is_in(tasks, thread):
                listed = listed or set(os.listdir(tasks))
                before, outcome = _set(proc, thread.id.tid, cpus)
                changed.append((len(results), name, thread, before))
                results.append(outcome)
            else:
                results.append(ThreadGone(thread.id.tid, cpus))
        listed = set(os.listdir(tasks)) if changed else listed
        for at, name, thread, before in changed:
            if name not in listed and not _is_in(tasks, thread):
                _put_back(thread.id.tid, before)
                results[at] = ThreadGone(thread.id.tid, masks[at][1])
    except OSError:
        for _, _, thread, before in changed:
            _put_back(thread.id.tid, before)
        raise
    finally:
        os.close(tasks)
    return results


def _set(proc: Procfs, tid: int, cpus: CpuSet) -> tuple[set[int], CpuSet | AffinityError]:
    """Set a mask. :returns: the mask before, empty if it was not changed; and the mask that the kernel shows now."""
    wanted = cpus.frozen()
    try:
        before = os.sched_getaffinity(tid)
        os.sched_setaffinity(tid, wanted)
    except OSError as err:
        return set(), _translated(proc, err, tid, cpus)
    try:
        now = os.sched_getaffinity(tid)
    except OSError as err:
        return before, _translated(proc, err, tid, cpus)
    return before, cpus if now == wanted else CpuSet(now)


def _is_in(tasks: int, thread: VmThread) -> bool:
    """Whether a thread is one of a process's. :param tasks: the process's open task directory."""
    try:
        fd = os.open(f"{thread.id.tid}/stat", _READ, dir_fd=tasks)
    except _NO_SUCH:
        return False
    try:
        return _is_of(fd, thread)
    finally:
        os.close(fd)


def _is_of(fd: int, thread: VmThread) -> bool:
    """Whether an open stat file is this thread's, and the thread is alive."""
    try:
        stat = os.pread(fd, _STAT_SIZE, 0)
    except ProcessLookupError:
        return False
    # The name before the last `)` may hold anything. Behind it the first field is the state, and the 20th the start
    # time. Not procfs.parse_stat: every new thread comes here.
    at = stat.rfind(b")") + 2
    return stat[at] not in _ENDED and int(stat[at:].split(b" ", 20)[19]) == thread.id.starttime


def lives(fd: int) -> bool:
    """Whether the task that a stat file was opened on is still alive."""
    try:
        stat = os.pread(fd, _UP_TO_STATE, 0)
    except ProcessLookupError:
        return False
    return stat[stat.rfind(b")") + 2] not in _ENDED


def _put_back(tid: int, mask: set[int]) -> None:
    """Restore the mask of a thread that took over a tid while it was being pinned: the mask read just before is the
    best guess, empty if it was not changed. Errors are ignored: that thread has ended as well, or the first call was
    refused, too."""
    if mask:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(tid, mask)


def _translated(proc: Procfs, err: OSError, tid: int, cpus: CpuSet) -> AffinityError:
    kinds = {errno.ESRCH: ThreadGone, errno.EPERM: NotPermitted, errno.EACCES: NotPermitted,
             errno.EINVAL: CpuNotAllowed}
    kind = kinds.get(err.errno or 0)
    if kind is CpuNotAllowed and _is_bound(proc, tid):
        return ThreadBound(tid, cpus)
    return AffinityError(tid, cpus, f"{err.strerror}") if kind is None else kind(tid, cpus)


def _is_bound(proc: Procfs, tid: int) -> bool:
    """Whether the kernel refuses any mask for a thread (kernel/sched/syscalls.c: sched_setaffinity), as for its
    per-CPU threads and, from Linux 5.12 to 6.2, for the io_uring workers of a VMM (io_uring/io-wq.c:
    io_init_new_worker)."""
    with contextlib.suppress(OSError):
        stat = proc.stat(tid)
        return stat is not None and bool(stat.flags & PF_NO_SETAFFINITY)
    return False
