"""Samples every thread of the machine over some seconds: its mask, and the CPUs on which it ran.

The kernel has a thread's total run time and its last CPU, so the run time between two samples is booked to the CPU of
the second. Reads only.
"""

import time
from collections.abc import Iterator, Mapping
from functools import lru_cache

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.features.isolation.top.interval_sampler import IntervalSampler, idle_times
from vmpin.features.isolation.top.thread_intervals import ProcessInterval
from vmpin.features.isolation.usage import SampledProcess, SampledThread
from vmpin.host import affinity
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs, Stat

#: Sampling uses at most this share of one CPU: it runs beside the threads that it samples.
_SHARE = 0.1
_SHORTEST = 0.05
#: One object for equal masks: a machine has few different ones.
_cpu_set = lru_cache(maxsize=1024)(CpuSet)


class ThreadUsageSampler:
    """Starts with the first sweep. `samples` is the number of sweeps, `seconds` the time between the first and the
    last, and `longest` the longest time between two."""

    def __init__(self, proc: Procfs | None = None, cgroups: Cgroups | None = None) -> None:
        self.proc = proc or Procfs()
        self.cgroups = cgroups or Cgroups(proc=self.proc)
        self._intervals = IntervalSampler(self.proc, self.cgroups)
        self.host = self._intervals.host
        self.samples = 0
        self.seconds = 0.0
        self.longest = 0.0
        self._cost = 0.0  #: CPU seconds of the last sweep.
        self._begun = self._last = 0.0
        #: The first and the last idle times, each with the time of reading.
        self._idle: list[tuple[float, dict[int, int]]] = []
        #: What ran, by pid; of each thread (tid and start time) its name and run time (ns) by CPU.
        self._ran: dict[int, tuple[ProcessInterval, dict[tuple[int, int], tuple[str, dict[int, int]]]]] = {}
        self._homes: dict[int, tuple[str, bool]] = {}

    def watch(self, seconds: float) -> None:
        """Sweep repeatedly until the time is over: at least twice, unless `seconds` is 0.

        :raises OSError: except for threads that end.
        """
        self.sweep()
        last = seconds <= 0
        while not last:
            left = max(0.0, self._begun + seconds - time.monotonic())
            pause = max(_SHORTEST, self._cost / _SHARE)
            last = left <= pause * 1.5
            time.sleep(left if last else pause)
            self.sweep()

    def sweep(self) -> None:
        """One sample of every thread."""
        began, cost = time.monotonic(), time.thread_time()
        if self.samples:
            self.longest = max(self.longest, began - self._last)
        else:
            self._begun = began
        self._last, self.seconds = began, began - self._begun
        self.samples += 1
        interval = self._intervals.sample()
        for process in () if interval is None else interval.processes:
            _, threads = self._ran.setdefault(process.pid, (process, {}))
            for thread in process.threads:
                _, ran = threads.setdefault((thread.tid, thread.started), (thread.comm, {}))
                ran[thread.cpu] = ran.get(thread.cpu, 0) + thread.ran
            if process.pid not in self._homes:
                self._homes[process.pid] = self._home(process.pid, process.kernel)
        self._idle = [*self._idle[:1], (time.monotonic(), idle_times(self.proc))]
        self._cost = time.thread_time() - cost

    @property
    def busy(self) -> dict[int, int] | None:
        """Nanoseconds each CPU was not idle between the first and the last sweep, None before a second one.

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
        return self._intervals.kernel_seen

    def processes(self) -> Iterator[SampledProcess]:
        """The processes that there are, with the masks of now, and those that ran and have ended."""
        ended = dict(self._ran)
        for name in self.proc.pids():
            pid = int(name)
            ran = ended[pid][1] if pid in ended else {}
            stats = [(int(tid), stat) for tid in self.proc.tids(name)
                     if (stat := self.proc.thread_stat(name, tid)) is not None and stat.state not in "ZX"]
            tasks = [*self._tasks(stats, ran), *_ended(ran, {(tid, stat.starttime) for tid, stat in stats})]
            if stats:
                ended.pop(pid, None)
                head = dict(stats).get(pid, stats[0][1])
                yield SampledProcess(pid, head.comm, head.kernel_thread, *self._home(pid, head.kernel_thread),
                                     tuple(tasks))
        for pid, (process, ran) in ended.items():
            yield SampledProcess(pid, process.comm, process.kernel, *self._homes[pid], tuple(_ended(ran, set())))

    def _tasks(self, stats: list[tuple[int, Stat]],
               ran: Mapping[tuple[int, int], tuple[str, dict[int, int]]]) -> Iterator[SampledThread]:
        for tid, stat in stats:
            if (mask := affinity.get(tid)) is not None:
                yield SampledThread(tid, stat.comm, _cpu_set(mask), ran.get((tid, stat.starttime), ("", {}))[1])

    def _home(self, pid: int, kernel: bool) -> tuple[str, bool]:
        """(its cpuset cgroup, True if it is in a PID namespace of its own)."""
        if kernel:
            return "", False
        before = self._homes.get(pid)
        path = self.cgroups.cpuset_path(pid)
        if path is None and before is not None:
            return before  # it has just ended
        cgroup = "" if path is None or self.cgroups.is_top(path) else str(path)
        return cgroup, bool(self.proc.nested(pid)) if before is None else before[1]


def _ended(ran: Mapping[tuple[int, int], tuple[str, dict[int, int]]],
           alive: set[tuple[int, int]]) -> Iterator[SampledThread]:
    return (SampledThread(thread[0], comm, EMPTY, by_cpu, alive=False) for thread, (comm, by_cpu) in ran.items()
            if thread not in alive)
