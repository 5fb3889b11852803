"""Times of each CPU since boot (/proc/stat): idle, interrupts, steal (the hypervisor's). Read only.

Idle time is exact where the tick stops on idle CPUs, but is printed in steps of 10 ms. Interrupt time is exact with
CONFIG_IRQ_TIME_ACCOUNTING, and counted by ticks otherwise.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.host.procfs import Procfs, read_file

#: Steps in which /proc/stat is printed (ns).
STEP = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
#: The kernel's estimate of the length of a CPU's line (fs/proc/stat.c: stat_open). The rest of the file is not used.
_LINE = 160


class CpuLines:
    """A snapshot of /proc/stat, taken at `at` (CLOCK_MONOTONIC, ns). A line is parsed only when its CPU is queried."""

    def __init__(self, proc: Procfs, most: int) -> None:
        """Read the lines of all CPUs from /proc/stat. :param most: the highest possible CPU number.
        :raises OSError: /proc/stat cannot be read."""
        raw = read_file(f"{proc.root}/stat", _LINE * (most + 2)) or b""
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
    try:
        raw = read_file(f"{os.fspath(sys)}/devices/system/cpu/nohz_full", 4096) or b""
        return CpuSet.parse(raw.decode().strip())
    except (OSError, CpuSetError, UnicodeDecodeError):
        return CpuSet()
