"""What machine this is, and how much of it other programs take."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from peers.figures import Conditions
from vmpin.features.demo.worth import DISTURBED

#: Percent of the CPUs' time that others may take, as in `make worth`.
BUSY = DISTURBED
_TICKS = os.sysconf("SC_CLK_TCK")
_KTHREADD = "2"
#: Columns of /proc/stat that are idle time: idle and iowait.
_IDLE = (3, 4)


def machine() -> dict[str, str | float]:
    return {"processor": _processor(), "CPUs": float(len(os.sched_getaffinity(0))),
            "kernel": platform.release().split("-")[0], "Python": platform.python_version(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat()}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


class Meter:
    """Measures the conditions of what runs in its `with`, which waits for every process that it starts. Kernel threads
    are not counted: they work for the benchmark, too."""

    def __enter__(self) -> Meter:
        self._load, self._begin, self._at_begin = os.getloadavg()[0], time.monotonic(), _used()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        (busy, total), seconds = _used(), time.monotonic() - self._begin
        others = 100 * (busy - self._at_begin[0]) / max(total - self._at_begin[1], 1 / _TICKS)
        self.conditions = Conditions(round(self._load, 2), round(min(100.0, max(0.0, others)), 2), round(seconds, 1))


def _used() -> tuple[float, float]:
    """CPU seconds of others so far, and of all CPUs, idle ones too."""
    with open("/proc/stat", encoding="ascii") as file:
        # The two columns after these, the time of guests, are in the first two.
        columns = [int(column) / _TICKS for column in file.readline().split()[1:9]]
    busy = sum(columns) - sum(columns[at] for at in _IDLE)
    own = os.times()
    return busy - sum(own[:4]) - sum(_kernel_threads()), sum(columns)


def _kernel_threads() -> Iterator[float]:
    for path in Path("/proc").glob("[1-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == _KTHREADD:
            yield (int(fields[11]) + int(fields[12])) / _TICKS
