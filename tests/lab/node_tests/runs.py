"""Where threads really ran, by the scheduler's own account."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Protocol

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.host.procfs import Procfs

_TRACING = Path("/sys/kernel/debug/tracing")
#: Of each CPU: a spell on a busy machine has more switches than the ring has room for by itself.
_RING_KB = 8192
_SWITCH = re.compile(r" \[([0-9]+)\] .* next_pid=([0-9]+) ")


class Threads(Protocol):
    """A VM, by its thread ids."""

    def all_threads(self) -> Iterable[int]:
        ...


class Runs:
    """Where threads run from the beginning of the `with` to its end: the CPU of each switch to one of them (traced),
    and the last CPU of those that used time (sampled), for one that runs all along is not switched to."""

    def __init__(self, *vms: Threads) -> None:
        self.cpus: dict[int, CpuSet] = {tid: EMPTY for vm in vms for tid in vm.all_threads()}
        #: Nanoseconds on a CPU.
        self.used: dict[int, int] = {}

    def __enter__(self) -> Runs:
        (_TRACING / "buffer_size_kb").write_text(str(_RING_KB))
        (_TRACING / "trace").write_text("")
        # Only these: the ring keeps no more of a busy node than a moment.
        (_TRACING / "set_event_pid").write_text(" ".join(map(str, self.cpus)))
        (_TRACING / "events/sched/sched_switch/enable").write_text("1")
        (_TRACING / "tracing_on").write_text("1")
        self.before = {tid: run_time(tid) for tid in self.cpus}
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.sample()
        (_TRACING / "tracing_on").write_text("0")
        (_TRACING / "events/sched/sched_switch/enable").write_text("0")
        try:
            self._read()
        finally:  # as it was: another test traces other events of other threads
            (_TRACING / "set_event_pid").write_text("")
            (_TRACING / "tracing_on").write_text("1")

    def _read(self) -> None:
        lost = [int(line.partition(":")[2]) for path in _TRACING.glob("per_cpu/cpu*/stats")
                for line in path.read_text().splitlines() if line.startswith(("overrun:", "dropped events:"))]
        assert set(lost) == {0}, "switches that were not kept"
        self.switches = 0
        for cpu, tid in _SWITCH.findall((_TRACING / "trace").read_text()):
            if int(tid) in self.cpus:
                self.cpus[int(tid)] |= CpuSet([int(cpu)])
                self.switches += 1

    def sample(self) -> None:
        procfs = Procfs()
        for tid in self.cpus:
            # In this order: where it was before it ran at all is not where it ran.
            used = run_time(tid) - self.before[tid]
            stat = procfs.stat(tid)
            if stat is not None and used > self.used.get(tid, 0):
                self.used[tid] = used
                self.cpus[tid] |= CpuSet([stat.processor])

    def of(self, vm: Threads) -> CpuSet:
        """Every CPU that a thread of a VM was on; those that it began later are not watched."""
        return union(self.cpus.get(tid, EMPTY) for tid in vm.all_threads())


def run_time(tid: int) -> int:
    """Nanoseconds that a thread was on a CPU (Documentation/scheduler/sched-stats.rst); 0 when it is gone."""
    try:
        return int(Path(f"/proc/{tid}/schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return 0
