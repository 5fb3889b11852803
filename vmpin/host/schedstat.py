"""Scheduler statistics of threads: run time, wait time, last CPU, number of migrations. Read only.

They are in three files per thread of increasing cost; most samples need only the first. A process's CPU clock shows
whether any of its threads ran at all.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from vmpin.host.procfs import Procfs, read_file, split_stat

_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MIGRATIONS = b"\nse.nr_migrations"


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
    return LastRun(int(fields[19]), int(fields[36]), (int(fields[11]) + int(fields[12])) * _TICK)


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

    def ran(self, pid: int | str, tid: int | str) -> Ran | None:
        """Run and wait times; None if the thread has ended."""
        if self.precise:
            return _schedstat(read_file(f"{self.proc.root}/{pid}/task/{tid}/schedstat", 128))
        where = self.where(pid, tid)
        return None if where is None else Ran(where.ran, 0)

    def where(self, pid: int | str, tid: int | str) -> LastRun | None:
        raw = read_file(f"{self.proc.root}/{pid}/task/{tid}/stat", 2048)
        return None if raw is None else parse_stat(raw)

    def migrations(self, pid: int | str, tid: int | str) -> int | None:
        if not self.counts_migrations:
            return None
        raw = read_file(f"{self.proc.root}/{pid}/task/{tid}/sched", 4096)
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
    return Ran(int(ran), int(waited))
