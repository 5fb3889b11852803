"""Samples the run times of all threads of the machine, and returns what ran since the sample before.

A process of which no thread ran costs one system call: its CPU clock has not moved. Of the others, each thread's
schedstat is read, and its stat if it ran. Nothing is kept of what has ended. Reads only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection

from vmpin.cpuset import MAX_CPU
from vmpin.features.common.cpu_times import CpuLines, Ran, Schedstat, process_ran
from vmpin.features.isolation.top.thread_intervals import ProcessInterval, ThreadInterval, UsageInterval
from vmpin.host import affinity
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs, Stat
from vmpin.named_tuple import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
#: Samples after which the cgroup of a process that runs is read again.
_CGROUP_AGE = 20


class _ThreadMeter(NamedTuple):
    """A thread at its last sample. `cpu` is -1 until its stat was read."""

    ran: int
    waited: int
    cpu: int = -1


class _Metered:
    """A process at its last sample. `clock`: as process_ran returns it."""

    __slots__ = ("cgroup", "clock", "comm", "kernel", "meters", "read", "seen")

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self.clock: int | None = None
        self.meters: dict[str, _ThreadMeter] = {}
        self.comm = ""
        self.kernel = False
        self.cgroup = ""
        #: The sample at which the cgroup was read, None before.
        self.read: int | None = None


class IntervalSampler:
    """:param clock: the run time of a process, None where it cannot be read: then each of its threads is."""

    def __init__(self, proc: Procfs | None = None, cgroups: Cgroups | None = None,
                 clock: Callable[[int], int | None] = process_ran) -> None:
        self.proc = proc or Procfs()
        self.cgroups = cgroups or Cgroups(proc=self.proc)
        self.host = Schedstat(self.proc)
        self._clock = clock
        daemon = self.proc.stat(2)  # kthreadd, the parent of all kernel threads
        self.kernel_seen = daemon is not None and daemon.kernel_thread
        self._processes: dict[str, _Metered] = {}
        self._samples = 0
        self._at = 0.0
        self._ticks = 0
        self._idle: dict[int, int] = {}

    def sample(self, watched: Collection[int] = (), described: Collection[int] = ()) -> UsageInterval | None:
        """Return what ran since the last call; None for the first.

        :param watched: CPUs. Of the threads that are on them, the mask is read.
        :param described: processes (pids) whose cgroup is of no use.
        """
        at, ticks = time.monotonic(), int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)
        idle = idle_times(self.proc)
        self._samples += 1
        processes, threads = [], 0
        for pid in self.proc.pids():
            process = self._processes.get(pid)
            clock = self._clock(int(pid))
            if process is not None and clock is not None and clock == process.clock:
                process.seen = self._samples
                threads += len(process.meters)
                continue
            if process is None:
                process = self._processes[pid] = _Metered(self._samples)
            process.clock, process.seen = clock, self._samples
            ran = self._threads(pid, process, watched)
            threads += len(process.meters)
            if ran:
                self._describe(pid, process, described)
                processes.append(ProcessInterval(int(pid), process.comm, process.kernel, process.cgroup, tuple(ran)))
        for pid in [pid for pid, process in self._processes.items() if process.seen != self._samples]:
            del self._processes[pid]
        elapsed = round((at - self._at) * 1e9)
        busy = {cpu: max(0, elapsed - (now - self._idle[cpu])) for cpu, now in idle.items() if cpu in self._idle}
        interval = None if self._samples == 1 else UsageInterval(
            at - self._at, tuple(processes), busy, threads, self.kernel_seen, self.host.precise)
        self._at, self._ticks, self._idle = at, ticks, idle
        return interval

    def _threads(self, pid: str, process: _Metered, watched: Collection[int]) -> list[ThreadInterval]:
        """The threads of a process that ran; its meters are brought up to date."""
        before, meters = process.meters, {}
        threads = []
        read = self.host.ran
        for tid in self.proc.tids(pid):
            now = read(pid, tid)
            if now is None:
                continue
            meter = before.get(tid)
            if self._samples == 1 or (meter is not None and meter.ran == now.ran):
                meters[tid] = meter or _ThreadMeter(*now)
                continue
            stat = self.proc.thread_stat(pid, tid)
            if stat is None:
                continue
            meters[tid] = _ThreadMeter(*now, stat.processor)
            if (interval := self._interval(int(tid), stat, now, meter, watched)) is not None:
                threads.append(interval)
            if tid == pid:
                process.comm, process.kernel = stat.comm, stat.kernel_thread
        process.meters = meters
        return threads

    def _interval(self, tid: int, stat: Stat, now: Ran, meter: _ThreadMeter | None,
                  watched: Collection[int]) -> ThreadInterval | None:
        """None for a thread that did not run, or of which the time before is unknown."""
        if stat.starttime >= self._ticks and (meter is None or stat.starttime > self._ticks):
            meter = _ThreadMeter(0, 0)  # created since the last sample: all of its run time counts
        if meter is None or now.ran <= meter.ran:
            return None
        bound = False
        if stat.processor in watched and meter.cpu in (stat.processor, -1):
            mask = affinity.get(tid)
            bound = mask is not None and len(mask) == 1
        return ThreadInterval(tid, stat.comm, now.ran - meter.ran, max(0, now.waited - meter.waited), stat.processor,
                              bound, stat.starttime)

    def _describe(self, pid: str, process: _Metered, described: Collection[int]) -> None:
        """Fill in its name, and its cgroup where that is of use."""
        if not process.comm and (stat := self.proc.stat(pid)) is not None:
            process.comm, process.kernel = stat.comm, stat.kernel_thread
        if process.kernel or int(pid) in described:
            return
        if process.read is None or self._samples - process.read >= _CGROUP_AGE:
            process.read = self._samples
            path = self.cgroups.cpuset_path(int(pid))
            if path is not None:  # else it has just ended
                process.cgroup = "" if self.cgroups.is_top(path) else str(path)


def idle_times(proc: Procfs) -> dict[int, int]:
    """Nanoseconds since boot that each online CPU was idle, or taken by the hypervisor, from /proc/stat."""
    lines = CpuLines(proc, MAX_CPU)
    return {cpu: idle + steal for cpu, (idle, _, steal) in lines.of(lines.cpus()).items()}
