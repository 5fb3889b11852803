"""How long CPUs, threads and processes ran, by the kernel's counters. Read only.

Of each CPU (/proc/stat): idle, interrupts, steal (the hypervisor's). Idle time is exact where the tick stops on idle
CPUs, but is printed in steps of 10 ms. Interrupt time is exact with CONFIG_IRQ_TIME_ACCOUNTING, and counted by ticks
otherwise.

Of each thread: run time, wait time, last CPU, number of migrations, in three files of increasing cost; most samples
need only the first. A process's CPU clock shows whether any of its threads ran at all.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import named
from vmpin.host.procfs import Procfs, read_file, split_stat
from vmpin.host.sysfs import cpu_list
from vmpin.named_tuple import NamedTuple

#: A clock tick (ns): the steps of /proc/stat and of run times in stat files.
STEP = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
#: The kernel's estimate of the length of a CPU's line (fs/proc/stat.c: stat_open). The rest of the file is not used.
_LINE = 160
_MIGRATIONS = b"\nse.nr_migrations"


class CpuLines:
    """A snapshot of /proc/stat, taken at `at` (CLOCK_MONOTONIC, ns). A line is parsed only when its CPU is queried."""

    def __init__(self, proc: Procfs, most: int) -> None:
        """Read the lines of all CPUs from /proc/stat. :param most: the highest possible CPU number.
        :raises OSError: /proc/stat cannot be read."""
        path = f"{proc.root}/stat"
        raw = read_file(path, _LINE * (most + 2)) or b""
        if raw and os.stat(path).st_dev != os.stat(proc.root).st_dev:
            raw = b""  # a file of lxcfs, mounted there, has made-up times of a container's CPUs (src/proc_cpuview.c)
        self.at = time.monotonic_ns()
        self._lines = {line.partition(b" ")[0]: line for line in raw.split(b"\n")[:-1] if line.startswith(b"cpu")}

    def cpus(self) -> list[int]:
        """Return the CPUs that were online."""
        return [int(name[3:]) for name in self._lines if name != b"cpu"]

    def of(self, cpus: Iterable[int]) -> dict[int, tuple[int, int, int]]:
        """Return (idle, interrupts, steal) in ns for each of these CPUs that is online."""
        times = {}
        for cpu in cpus:
            fields = self._lines.get(b"cpu%d" % cpu, b"").split()
            if len(fields) > 8:
                idle, iowait, irq, softirq, steal = map(int, fields[4:9])
                times[cpu] = (idle + iowait) * STEP, (irq + softirq) * STEP, steal * STEP
        return times


def tickless(sys: str | os.PathLike[str]) -> CpuSet:
    """The nohz_full CPUs. Their tick stops while a single thread runs, so its run time may be up to a second old."""
    return cpu_list(f"{os.fspath(sys)}/devices/system/cpu/nohz_full") or EMPTY


class Ran(NamedTuple):
    """Nanoseconds since the thread's creation: running (`ran`), and runnable but waiting for a CPU (`waited`). While a
    thread runs, `ran` is updated at each tick only (up to a second ago on a nohz_full CPU)."""

    ran: int
    waited: int


class LastRun(NamedTuple):
    """`starttime` as in model.ThreadId; `cpu`: the last CPU; `ran`: run time in ns, in steps of a clock tick."""

    starttime: int
    cpu: int
    ran: int


def parse_stat(raw: bytes) -> LastRun | None:
    """Parse a thread's run time from its stat line; None if the text is no stat line."""
    parts = split_stat(raw)
    if parts is None:
        return None
    _, fields = parts
    return named(LastRun, (int(fields[19]), int(fields[36]), (int(fields[11]) + int(fields[12])) * STEP))


def parse_migrations(raw: bytes) -> int | None:
    """se.nr_migrations of /proc/TID/sched (kernel/sched/debug.c), shown since Linux 4.7 without schedstats, too."""
    at = raw.find(_MIGRATIONS)
    if at < 0:
        return None
    return int(raw[raw.index(b":", at) + 1 : raw.index(b"\n", at + 1)])


class Schedstat:
    """Statistics of the threads below `proc`. Without CONFIG_SCHED_INFO there is no schedstat file; where it needs
    delay accounting and that is off, all its values are 0. Then run times come in clock ticks (`precise` is False) and
    wait times are unknown. Without CONFIG_SCHED_DEBUG (always set since Linux 6.15) the number of migrations is
    unknown (`counts_migrations` is False)."""

    def __init__(self, proc: Procfs | None = None) -> None:
        self.proc = proc or Procfs()
        own = f"{self.proc.root}/{os.getpid()}"
        sample = _schedstat(read_file(f"{own}/schedstat", 128))
        self.precise = sample is not None and sample.ran > 0
        self.counts_migrations = parse_migrations(read_file(f"{own}/sched", 4096) or b"") is not None
        #: The process whose directory of threads is open, and its descriptor.
        self._tasks: tuple[int | str, int] | None = None

    @contextlib.contextmanager
    def tasks_of(self, pid: int | str) -> Iterator[None]:
        """While entered, files of this process's threads are opened relative to their directory, which takes a sixth
        less time."""
        try:
            fd = os.open(f"{self.proc.root}/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            yield  # it has ended, as each read then shows
            return
        self._tasks = pid, fd
        try:
            yield
        finally:
            self._tasks = None
            os.close(fd)

    def _read(self, pid: int | str, tid: int | str, name: str, limit: int) -> bytes | None:
        if self._tasks is not None and self._tasks[0] == pid:
            return read_file(f"{tid}/{name}", limit, self._tasks[1])
        return read_file(f"{self.proc.root}/{pid}/task/{tid}/{name}", limit)

    def ran(self, pid: int | str, tid: int | str) -> Ran | None:
        """Run and wait times; None if the thread has ended."""
        if self.precise:
            return _schedstat(self._read(pid, tid, "schedstat", 128))
        where = self.where(pid, tid)
        return None if where is None else Ran(where.ran, 0)

    def where(self, pid: int | str, tid: int | str) -> LastRun | None:
        raw = self._read(pid, tid, "stat", 2048)
        return None if raw is None else parse_stat(raw)

    def migrations(self, pid: int | str, tid: int | str) -> int | None:
        if not self.counts_migrations:
            return None
        raw = self._read(pid, tid, "sched", 4096)
        return None if raw is None else parse_migrations(raw)


def process_ran(pid: int) -> int | None:
    """CPU time in ns of all threads of a process, including ended ones; None if it cannot be read. This needs no file,
    and unlike a thread's clock it can be read of any process."""
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
    except OSError:
        return None


def _schedstat(raw: bytes | None) -> Ran | None:
    if not raw:
        return None
    ran, waited, _ = raw.split(b" ", 2)
    return named(Ran, (int(ran), int(waited)))
