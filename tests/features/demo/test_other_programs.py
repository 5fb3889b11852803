"""Which other programs ran, from two readings of the run times of their threads."""

from __future__ import annotations

import os
import subprocess
import sys

from vmpin.cpuset import CpuSet
from vmpin.features.common.cpu_times import LastRun
from vmpin.features.demo.other_programs import Runs, runs, shares
from vmpin.host.procfs import Procfs

SECOND = 10**9


def test_run_time_counts_by_program_on_the_given_cpus() -> None:
    before = Runs(0, {("1", "1"): LastRun(5, 0, 3 * SECOND), ("2", "2"): LastRun(6, 0, 0),
                      ("3", "3"): LastRun(7, 9, 0), ("4", "4"): LastRun(8, 0, 9 * SECOND)})
    after = Runs(2 * SECOND, {
        ("1", "1"): LastRun(5, 0, 4 * SECOND), ("1", "11"): LastRun(9, 1, SECOND // 2),  # born meanwhile
        ("2", "2"): LastRun(6, 1, SECOND), ("3", "3"): LastRun(7, 9, SECOND),
        ("4", "4"): LastRun(99, 0, SECOND // 4),  # another thread by now
        ("5", "5"): LastRun(7, 0, SECOND // 100), ("6", "6"): LastRun(7, 0, SECOND)})
    names = {"1": "make", "2": "cc1plus", "3": "elsewhere", "4": "make", "5": "short", "6": ""}
    assert shares(before, after, CpuSet((0, 1)), names.__getitem__) == {"make": 43.8, "cc1plus": 25.0}


def test_own_processes_are_left_out_and_a_busy_one_is_read() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            pid = str(busy.pid)
            while (read := runs(Procfs(), [os.getpid()])).threads[pid, pid].ran == 0:
                pass
        finally:
            busy.kill()
    assert str(os.getpid()) not in {process for process, _ in read.threads}
