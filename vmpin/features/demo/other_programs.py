"""Which other programs ran on some CPUs between two moments."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from vmpin.cpuset import CpuSet
from vmpin.features.common.cpu_times import LastRun, Schedstat
from vmpin.host.procfs import Procfs
from vmpin.named_tuple import NamedTuple

#: Programs below this percentage are not named: run times come in clock ticks.
_LEAST = 0.5


class Runs(NamedTuple):
    """Run times of threads, by process and thread, up to `at` (CLOCK_MONOTONIC, ns)."""

    at: int
    threads: Mapping[tuple[str, str], LastRun]


def runs(proc: Procfs, own: Collection[int]) -> Runs:
    """Read all threads but those of the `own` processes."""
    schedstat, left_out = Schedstat(proc), set(map(str, own))
    threads = {(pid, tid): last for pid in proc.pids() if pid not in left_out for tid in proc.tids(pid)
               if (last := schedstat.where(pid, tid)) is not None}
    return Runs(time.monotonic_ns(), threads)


def shares(before: Runs, after: Runs, cpus: CpuSet, name: Callable[[str], str]) -> dict[str, float]:
    """Percent of the CPUs' time by program, the largest first. A thread counts where it ran last. What ended between
    the two moments is missing.

    :param name: of a process, by its pid; empty if it is unknown."""
    programs: Counter[str] = Counter()
    for (pid, tid), last in after.threads.items():
        first = before.threads.get((pid, tid))
        begin = first.ran if first is not None and first.starttime == last.starttime else 0
        if last.cpu in cpus and last.ran > begin and (program := name(pid)):
            programs[program] += last.ran - begin
    time_of_cpus = len(cpus) * (after.at - before.at)
    percent = {program: 100 * ran / time_of_cpus for program, ran in programs.most_common()}
    return {program: round(share, 1) for program, share in percent.items() if share >= _LEAST}
