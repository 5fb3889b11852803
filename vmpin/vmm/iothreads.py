"""QEMU's iothreads where neither a name nor QMP identifies them.

That is the rule under Kata: its ids (`indep_iothread_0`, `iothread-…`) are too long for a thread name, so the
threads stay unnamed, and QMP is Kata's own. What stays out: the named ones (thread_names), other VMMs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from vmpin.host.procfs import Procfs, Stat

#: The calls in which an event loop waits, by the machine's name for itself: poll, ppoll, epoll_wait, epoll_pwait,
#: io_uring_enter, epoll_pwait2. QEMU's other threads (RCU, thread pool, a paused vCPU) wait in futex.
_WAITS = {
    "x86_64": frozenset(("7", "271", "232", "281", "426", "441")),
    "aarch64": frozenset(("73", "22", "426", "441")),
}


def by_order(procfs: Procfs, pid: int, stats: Mapping[int, Stat], unnamed: Collection[int],
             vcpus: Collection[int], missing: int, monitors: int) -> frozenset[int]:
    """The `missing` declared iothreads among the unnamed threads, or nothing unless everything fits.

    While it starts, QEMU makes its RCU thread first, then the iothreads in one go, then the thread of its monitors
    (`monitors` is 1 if that is unnamed too), then the vCPUs. Of the unnamed ones before the vCPUs every one but the
    first must wait in an event loop: an iothread at work just now would leave its place to the monitors' thread.
    """
    waits = _WAITS.get(os.uname().machine)
    if not vcpus or not waits or missing < 1:
        return frozenset()

    def age(tid: int) -> tuple[int, int]:
        return stats[tid].starttime, tid

    first_vcpu = min(map(age, vcpus))
    old = [tid for tid in sorted(unnamed, key=age) if age(tid) < first_vcpu]
    loops = [tid for tid in old if procfs.syscall(pid, tid).partition(" ")[0] in waits]
    if loops not in (old, old[1:]) or len(loops) != missing + monitors:
        return frozenset()
    return frozenset(loops[:missing])
