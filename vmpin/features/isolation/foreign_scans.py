"""Scans of the node's processes for those that ran on exclusive CPUs of others, by name.

A scan is made in slices. It costs one system call for each process; where foreign time was found since the last one,
also the files of the threads of those processes that ran meanwhile, some hundred at a time. Reads only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from vmpin.domain.model import ContainerId, SandboxId, ThreadId
from vmpin.domain.terminal import excerpt, pod_name, short_id
from vmpin.features.isolation.isolation_books import ForeignProgram, ForeignRun, ProgramKind
from vmpin.host.cpu_times import Schedstat, process_ran
from vmpin.host.procfs import Stat, read_file, seconds_since_boot
from vmpin.reconcile.view import NodeView
from vmpin.residency.usage import container_of

#: What ran less since the last scan is not looked at (ns).
_LEAST = 1_000_000
#: Threads that are looked at at once, in about a millisecond.
_CHUNK = 256
_MAX_NAME, _MAX_WHERE = 32, 128


class HotCpu(NamedTuple):
    """An exclusive CPU on which foreign time was found: how much (ns) since the last scan began."""

    owner: SandboxId
    foreign: int


class _Scanned:
    """A process at the last scan: its total run time, and those of its threads that were found on such CPUs. `stale`
    when it has run since these were noted, without its threads having been looked at."""

    __slots__ = ("clock", "stale", "threads")

    def __init__(self, clock: int) -> None:
        self.clock = clock
        self.stale = False
        self.threads: dict[ThreadId, int] = {}


class _Process:
    """A process whose threads are looked at, and what is read of it once. `vm` is the VM that it is of, or None."""

    def __init__(self, pid: int, before: _Scanned, spent: int, vm: SandboxId | None) -> None:
        self.pid, self.before, self.spent, self.vm = pid, before, spent, vm
        self.alone = False
        self.threads: dict[ThreadId, int] = {}
        self.owned: dict[SandboxId, bool] = {}
        self.home: tuple[ProgramKind, str] | None = None


class ForeignScans:
    """The scans of one node, again and again: each scan compares with the one before it.
    :param most: threads of one scan that are looked at: a process may have made very many."""

    def __init__(self, view: NodeView, most: int = 20_000) -> None:
        self._view, self._most = view, most
        self._host = Schedstat(view.proc)
        self._known: dict[int, _Scanned] = {}
        #: When the last scan began and this one did (CLOCK_BOOTTIME, seconds); 0: there was none.
        self._last = self._now = 0.0
        self._steps: Iterator[None] | None = None
        self._threads = 0
        self._hot: Mapping[int, HotCpu] = {}
        self._own: Mapping[SandboxId, frozenset[str]] = {}
        #: What a program may have had of a CPU, beyond what was found already (ns).
        self._left: dict[tuple[int, ForeignProgram], int] = {}
        #: What was found since the last `taken`.
        self._found: list[tuple[SandboxId, ForeignRun]] = []
        #: CPU seconds of the last scan.
        self.cost = self._spent = 0.0

    @property
    def under_way(self) -> bool:
        return self._steps is not None

    def start(self, hot: Mapping[int, HotCpu], own_cgroups: Mapping[SandboxId, frozenset[str]]) -> None:
        """Begin a scan. :param hot: the CPUs on which foreign time was found: no program had more of one than that.
        :param own_cgroups: the usage files of owners' containers, for owners that are no VMs."""
        self._last, self._now = self._now, time.clock_gettime(time.CLOCK_BOOTTIME)
        self._threads, self._spent, self._found, self._left = 0, 0.0, [], {}
        self._hot, self._own = dict(hot), own_cgroups
        self._steps = self._scan()

    def step(self, budget: float) -> bool:
        """Go on with the scan for some seconds, and at least for a step. :returns: True when it is over."""
        if self._steps is None:
            return True
        began, cost = time.perf_counter(), time.thread_time()
        while not (over := next(self._steps, self) is self) and time.perf_counter() - began < budget:
            pass
        self._spent += time.thread_time() - cost
        if over:
            self._steps, self.cost = None, self._spent
        return over

    def taken(self) -> dict[SandboxId, list[ForeignRun]]:
        """Take what was found since the last call, by owner of the CPU."""
        found: dict[SandboxId, list[ForeignRun]] = {}
        for owner, run in self._found:
            found.setdefault(owner, []).append(run)
        self._found = []
        return found

    def _scan(self) -> Iterator[None]:
        vms = {process.pid: vm.sandbox for vm in self._view.vms.values() for process in vm.processes()}
        vms |= {thread.pid: vm.sandbox for vm in self._view.vms.values() for thread in vm.kernel_threads}
        alive: dict[int, _Scanned] = {}
        for name in self._view.proc.pids():
            pid = int(name)
            clock = process_ran(pid)
            if clock is None:
                continue
            before = self._known.get(pid)
            if before is None or before.clock > clock:  # new, or another process with its pid
                before, spent = _Scanned(clock), clock if self._last else 0
            else:
                before.clock, spent = clock, clock - before.clock
            alive[pid] = before
            if self._hot and spent >= _LEAST:
                yield from self._inspect(_Process(pid, before, spent, vms.get(pid)))
            elif spent:
                before.stale = True
            yield
        self._known = alive

    def _inspect(self, process: _Process) -> Iterator[None]:
        """Look for threads of a process that were last on one of the CPUs, some at a time."""
        with contextlib.closing(self._view.proc.iter_tids(process.pid)) as listed:
            before = self._threads
            while tids := [int(tid) for tid in islice(listed, min(_CHUNK, self._most - self._threads))]:
                process.alone = before == self._threads and len(tids) == 1
                self._threads += len(tids)
                for tid, stat in self._view.proc.task_stats(process.pid, tids).items():
                    self._judge(process, tid, stat)
                yield
        process.before.threads, process.before.stale = process.threads, False

    def _judge(self, process: _Process, tid: int, stat: Stat) -> None:
        """Book the time that a thread on a hot CPU ran there, if that CPU is not its own."""
        hot = self._hot.get(stat.processor)
        if hot is None or hot.owner == process.vm or self._owns(hot.owner, process):
            return
        now = self._host.ran(process.pid, tid)
        if now is None:
            return
        thread = ThreadId(tid, stat.starttime)
        had = self._had(thread, process, now.ran)
        process.threads[thread] = now.ran
        if had < _LEAST:
            return
        program = self._program(process, stat)
        left = self._left.get((stat.processor, program), hot.foreign)
        booked = min(had, left)
        self._left[stat.processor, program] = left - booked
        # The CPU was read when the scan began: what the thread may have run since is the next scan's.
        since = int((time.clock_gettime(time.CLOCK_BOOTTIME) - self._now) * 1e9)
        process.threads[thread] -= min(had - booked, max(0, since))
        if booked > 0:
            self._found.append((hot.owner, ForeignRun(program, stat.processor, booked)))

    def _had(self, thread: ThreadId, process: _Process, ran: int) -> int:
        """Return the time that a thread ran since the last scan. For an older one that the last scan did not
        find it is unknown, and 0, unless it is `alone` in its process: the next scan has it."""
        before = process.before.threads.get(thread)
        if before is not None:
            since = max(0, ran - before)
            return min(since, process.spent) if process.before.stale else since
        if self._last and seconds_since_boot(thread.starttime) >= self._last:
            return ran
        return min(ran, process.spent) if self._last and process.alone else 0

    def _owns(self, owner: SandboxId, process: _Process) -> bool:
        """Whether a process is in a cgroup of the owner's containers, or below one."""
        found = process.owned.get(owner)
        if found is None:
            files = self._own.get(owner)
            path = self._view.cgroups.usage_file(process.pid) if files else None
            found = process.owned[owner] = path is not None and any(
                path.startswith(f"{os.path.dirname(file)}/") for file in files or ())
        return found

    def _program(self, process: _Process, stat: Stat) -> ForeignProgram:
        if process.home is None:
            process.home = self._home(process, stat)
        kind, where = process.home
        return ForeignProgram(kind, excerpt(stat.comm, _MAX_NAME), where)

    def _home(self, process: _Process, stat: Stat) -> tuple[ProgramKind, str]:
        """Return the home of a process, which all its threads have."""
        if process.vm is not None:
            state = self._view.sandboxes.get(process.vm)
            pod = None if state is None or state.pod is None else state.pod._asdict()
            return ProgramKind.VM, excerpt(pod_name(pod, short_id(process.vm)), _MAX_WHERE)
        if stat.kernel_thread:
            return ProgramKind.KERNEL, ""
        container, unit = home(read_file(f"{self._view.proc.root}/{process.pid}/cgroup") or b"")
        if container is None and not self._view.proc.nested(process.pid):
            return ProgramKind.HOST, excerpt(unit, _MAX_WHERE)
        return ProgramKind.CONTAINER, excerpt(self._container(container) if container else unit, _MAX_WHERE)

    def _container(self, container: str) -> str:
        """`namespace/pod/container` of a known container or sandbox, else the first digits of the id."""
        for state in self._view.sandboxes.values():
            if container == state.id or container in state.containers:
                record = state.containers.get(ContainerId(container))
                pod = pod_name(None if state.pod is None else state.pod._asdict(), short_id(state.id))
                return f"{pod}/{record.container.name}" if record is not None and record.container.name else pod
        return short_id(container)


def home(raw: bytes) -> tuple[str | None, str]:
    """Read from /proc/PID/cgroup the container (None for none), and the systemd unit or last cgroup."""
    unit, container = "", None
    for line in os.fsdecode(raw).split("\n"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        container = container or container_of(path)
        last = path.rpartition("/")[2]
        if last and (controllers in ("", "name=systemd") or not unit):
            unit = last
    return container, unit
