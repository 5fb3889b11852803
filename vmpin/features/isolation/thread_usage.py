"""Samples every thread of the machine over some seconds: its mask, and the CPUs on which it ran.

The kernel has a thread's total run time and its last CPU, so the run time between two samples is booked to the CPU of
the second. Reads only.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from vmpin.cpuset import MAX_CPU, CpuSet
from vmpin.features.isolation.usage import SampledProcess, SampledThread
from vmpin.host import affinity
from vmpin.host.cgroup import Cgroups
from vmpin.host.cpu_times import CpuLines, Schedstat
from vmpin.host.procfs import Procfs

#: Sampling uses at most this share of one CPU: it runs beside the threads that it samples.
_SHARE = 0.1
_SHORTEST = 0.05
#: One object for equal masks: a machine has few different ones.
_cpu_set = lru_cache(maxsize=1024)(CpuSet)


@dataclass(slots=True)
class _Thread:
    """A sampled thread. `ran` is its total run time, `booked` the run time since the first sample, by CPU."""

    pid: str
    tid: str
    comm: str
    kernel: bool
    starttime: int
    cpus: CpuSet
    ran: int
    seen: int
    booked: dict[int, int] = field(default_factory=dict)


class ThreadUsageSampler:
    """Starts with the first sweep. `samples` is the number of sweeps, `seconds` the time between the first and the
    last, and `longest` the longest time between two."""

    def __init__(self, proc: Procfs | None = None, cgroups: Cgroups | None = None) -> None:
        self.proc = proc or Procfs()
        self.cgroups = cgroups or Cgroups(proc=self.proc)
        self.host = Schedstat(self.proc)
        self.samples = 0
        self.seconds = 0.0
        self.longest = 0.0
        #: CPU seconds of the last sweep that was not a full one.
        self._cost = 0.0
        self._begun = self._last = 0.0
        #: The first and the last idle times, each with the time of reading.
        self._idle: list[tuple[float, dict[int, int]]] = []
        self._threads: dict[str, _Thread] = {}
        #: Ended threads whose tid another thread got.
        self._replaced: list[_Thread] = []
        self._homes: dict[str, tuple[str, bool]] = {}

    def watch(self, seconds: float) -> None:
        """Sweep repeatedly until the time is over: at least twice, unless `seconds` is 0.

        :raises OSError: except for threads that end.
        """
        self.sweep(full=True)
        last = seconds <= 0
        while not last:
            left = max(0.0, self._begun + seconds - time.monotonic())
            pause = max(_SHORTEST, self._cost / _SHARE)
            last = left <= pause * 1.5
            time.sleep(left if last else pause)
            self.sweep(full=last)

    def sweep(self, full: bool) -> None:
        """One sample of every thread. Masks of known threads are read only in a full sweep."""
        began, cost = time.monotonic(), time.thread_time()
        if self.samples:
            self.longest = max(self.longest, began - self._last)
        else:
            self._begun = began
        self._last, self.seconds = began, began - self._begun
        self.samples += 1
        for pid in self.proc.pids():
            sampled = self._threads.get(pid)
            # A kernel thread is a process of one thread.
            for tid in [pid] if sampled is not None and sampled.kernel else self.proc.tids(pid):
                self._sample(pid, tid, full)
            if full and pid in self._homes:
                self._homes[pid] = self._home(pid)
        if full:
            self._idle = [*self._idle[:1], (time.monotonic(), idle_times(self.proc))]
        else:
            self._cost = time.thread_time() - cost

    @property
    def busy(self) -> dict[int, int] | None:
        """Nanoseconds each CPU was not idle between the first and the last sweep, None before a second full one.

        Idle time is exact where ticks stop when idle, user and system time are counted by ticks: so this is what
        is left of the time that passed. The kernel prints it in steps of 10 ms.
        """
        if len(self._idle) < 2:
            return None
        (began, first), (ended, last) = self._idle
        elapsed = round((ended - began) * 1e9)
        return {cpu: max(0, elapsed - (idle - first[cpu])) for cpu, idle in last.items() if cpu in first}

    @property
    def sees_kernel(self) -> bool:
        """True if kernel threads are visible: not in another PID namespace, which also hides other processes."""
        return any(thread.kernel for thread in self._threads.values())

    def processes(self) -> Iterator[SampledProcess]:
        """The sampled processes, including those that ended."""
        tasks: dict[str, list[SampledThread]] = {}
        heads: dict[str, _Thread] = {}
        for thread in [*self._replaced, *self._threads.values()]:
            alive = thread.seen == self.samples
            tasks.setdefault(thread.pid, []).append(
                SampledThread(int(thread.tid), thread.comm, thread.cpus, thread.booked, alive))
            if thread.tid == thread.pid or thread.pid not in heads:
                heads[thread.pid] = thread
        for pid, head in heads.items():
            cgroup, contained = self._homes.get(pid, ("", False))
            yield SampledProcess(int(pid), head.comm, head.kernel, cgroup, contained, tuple(tasks[pid]))

    def _sample(self, pid: str, tid: str, full: bool) -> None:
        sampled = self._threads.get(tid)
        if sampled is None:
            self._add(pid, tid)
            return
        now = self.host.ran(pid, tid)
        # Most threads of a node sleep. Reading a thread's CPU costs three times as much as its run time.
        if now is not None and now.ran == sampled.ran and not full:
            sampled.seen = self.samples
            return
        stat = self.proc.thread_stat(pid, tid)
        if stat is None:
            return
        if stat.starttime != sampled.starttime or pid != sampled.pid:
            self._replaced.append(sampled)
            del self._threads[tid]
            self._add(pid, tid)
            return
        sampled.comm = stat.comm
        if now is not None and now.ran > sampled.ran:
            sampled.booked[stat.processor] = sampled.booked.get(stat.processor, 0) + now.ran - sampled.ran
            sampled.ran = now.ran
        if full:
            mask = affinity.get(int(tid))
            if mask is None or stat.state in "ZX":
                return
            sampled.cpus = _cpu_set(mask)
        sampled.seen = self.samples

    def _add(self, pid: str, tid: str) -> None:
        """Add a new thread: after the first sweep, all its run time is within the sampled period."""
        stat = self.proc.thread_stat(pid, tid)
        if stat is None or stat.state in "ZX":
            return
        mask, now = affinity.get(int(tid)), self.host.ran(pid, tid)
        if mask is None or now is None:
            return
        thread = self._threads[tid] = _Thread(pid, tid, stat.comm, stat.kernel_thread, stat.starttime, _cpu_set(mask),
                                            now.ran, self.samples)
        if self.samples > 1 and now.ran:
            thread.booked[stat.processor] = now.ran
        if tid == pid or pid not in self._homes:
            self._homes[pid] = self._home(pid)

    def _home(self, pid: str) -> tuple[str, bool]:
        """(its cpuset cgroup, True if it is in a PID namespace of its own)."""
        sampled = self._threads.get(pid)
        if sampled is not None and sampled.kernel:
            return "", False
        before = self._homes.get(pid)
        path = self.cgroups.cpuset_path(int(pid))
        if path is None and before is not None:
            return before  # it has just ended
        cgroup = "" if path is None or self.cgroups.is_top(path) else str(path)
        return cgroup, bool(self.proc.nested(pid)) if before is None else before[1]


def idle_times(proc: Procfs) -> dict[int, int]:
    """Nanoseconds since boot that each online CPU was idle, or taken by the hypervisor, from /proc/stat."""
    lines = CpuLines(proc, MAX_CPU)
    return {cpu: idle + steal for cpu, (idle, _, steal) in lines.of(lines.cpus()).items()}
