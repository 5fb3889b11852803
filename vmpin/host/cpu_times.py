"""What the kernel counts of each CPU since boot (/proc/stat): idle time, interrupts, the hypervisor's share.

Idle time is exact where ticks stop when a CPU is idle, and is printed in steps of 10 ms. Time of interrupts is exact
with CONFIG_IRQ_TIME_ACCOUNTING, else counted by ticks. Read only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.host.procfs import Procfs, read_file

#: Steps in which /proc/stat is printed (ns).
STEP = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
#: The kernel's own estimate of a CPU's line (fs/proc/stat.c: stat_open). What follows the lines is longer, and unused.
_LINE = 160


class CpuLines:
    """/proc/stat as it was at one moment (`at`, CLOCK_MONOTONIC, ns). Of a node's many CPUs only those that are asked
    for are parsed."""

    def __init__(self, proc: Procfs, most: int) -> None:
        """Read the lines of all CPUs from /proc/stat. :param most: a number that no CPU exceeds.
        :raises OSError: /proc/stat cannot be read."""
        raw = read_file(f"{proc.root}/stat", _LINE * (most + 2)) or b""
        self.at = time.monotonic_ns()
        self._lines = {line.partition(b" ")[0]: line for line in raw.split(b"\n")[:-1] if line.startswith(b"cpu")}

    def cpus(self) -> list[int]:
        """Return the CPUs that were online."""
        return [int(name[3:]) for name in self._lines if name != b"cpu"]

    def of(self, cpus: Iterable[int]) -> dict[int, tuple[int, int, int]]:
        """(idle, interrupts, taken by the hypervisor) in ns of each CPU that is online."""
        times = {}
        for cpu in cpus:
            fields = self._lines.get(b"cpu%d" % cpu, b"").split()
            if len(fields) > 8:
                idle, iowait, irq, softirq, steal = map(int, fields[4:9])
                times[cpu] = (idle + iowait) * STEP, (irq + softirq) * STEP, steal * STEP
        return times


def tickless(sys: str | os.PathLike[str]) -> CpuSet:
    """The CPUs whose tick is stopped while a thread runs: its run time is then a second old at most."""
    try:
        raw = read_file(f"{os.fspath(sys)}/devices/system/cpu/nohz_full", 4096) or b""
        return CpuSet.parse(raw.decode().strip())
    except (OSError, CpuSetError, UnicodeDecodeError):
        return CpuSet()
