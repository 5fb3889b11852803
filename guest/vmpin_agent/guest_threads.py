"""Processes, threads and their masks. A thread is identified by (tid, start time), as a tid is reused."""

import os
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Set, Tuple

from vmpin.cpuset import CpuSet
from vmpin_agent import file_io

#: include/linux/sched.h: PF_KTHREAD.
_KERNEL_THREAD = 0x00200000

#: Thousands of threads have the same few masks.
_SETS: Dict[FrozenSet[int], CpuSet] = {}


class ThreadKey(NamedTuple):
    tid: int
    start: int


class ThreadStat(NamedTuple):
    start: int
    kernel: bool


def stat(path: str) -> Optional[ThreadStat]:
    """A thread's `stat` file; None if it has ended."""
    text = file_io.read(path)
    if text is None:
        return None
    # Parsed here, as the agent carries no adapter of the host's (vmpin.host.procfs).
    # The name before the last `)` may hold anything; state is the first field behind it, starttime the 20th.
    fields = text[text.rfind(")") + 2 :].split(" ")
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    try:
        return ThreadStat(int(fields[19]), bool(int(fields[6]) & _KERNEL_THREAD))
    except ValueError:
        return None


def key(proc: str, tid: int) -> Optional[ThreadKey]:
    """The thread that has this tid now; None if there is none."""
    fields = stat(f"{proc}/{tid}/stat")
    return None if fields is None else ThreadKey(tid, fields.start)


def mask(tid: int) -> Optional[CpuSet]:
    """The thread's mask as the kernel shows it; None if it has ended."""
    if tid <= 0:
        return None  # for the system call, 0 is the caller
    try:
        cpus = frozenset(os.sched_getaffinity(tid))
    except (OSError, OverflowError):
        return None
    cached = _SETS.get(cpus)
    if cached is None:
        if len(_SETS) > 500:
            _SETS.clear()
        cached = _SETS[cpus] = CpuSet(cpus)
    return cached


def pin(proc: str, thread: ThreadKey, cpus: CpuSet) -> str:
    """Set the thread's mask. :returns: the error, "" if it is done or the thread has ended."""
    before = mask(thread.tid)
    if before is None or key(proc, thread.tid) != thread:
        return ""
    try:
        os.sched_setaffinity(thread.tid, cpus)
    except ProcessLookupError:
        return ""
    except OSError as err:
        return f"thread {thread.tid}: {err.strerror}"
    if key(proc, thread.tid) != thread and before:
        try:  # it ended in between and the tid was reused: restore the other thread's mask
            os.sched_setaffinity(thread.tid, before)
        except OSError:
            return ""
    return ""


def of_process(proc: str, pid: int) -> List[int]:
    """The tids of a process; none if it has ended."""
    try:
        return [int(name) for name in os.listdir(f"{proc}/{pid}/task")]
    except (OSError, ValueError):
        return []


def processes(proc: str) -> List[int]:
    try:
        return [int(name) for name in os.listdir(proc) if name.isascii() and name.isdigit()]
    except OSError:
        return []


def newest(proc: str) -> Optional[Tuple[str, str]]:
    """A value that changes when a thread is created or ends: the last id given out, and the number of threads."""
    fields = (file_io.read(f"{proc}/loadavg") or "").split()
    return (fields[3].partition("/")[2], fields[4]) if len(fields) == 5 else None


class SystemProcesses:
    """The guest's own processes during one pass: all but containers' and kernel threads.
    :param inside: the pids of containers' processes."""

    def __init__(self, proc: str, inside: Set[int]) -> None:
        self._proc = proc
        self._inside = inside
        #: Pids of kernel threads, for one pass only: a pid may be reused in the next.
        self._kernel: Set[int] = set()

    def processes(self) -> List[int]:
        pids = []
        for pid in processes(self._proc):
            if pid in self._inside or pid in self._kernel:
                continue
            fields = stat(f"{self._proc}/{pid}/stat")
            if fields is not None and fields.kernel:
                self._kernel.add(pid)
            elif fields is not None:
                pids.append(pid)
        return pids

    def threads(self) -> List[int]:
        return [tid for pid in self.processes() for tid in of_process(self._proc, pid)]
