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

from vmpin.domain.model import ContainerId, SandboxId, ThreadId
from vmpin.domain.terminal import excerpt, pod_name, short_id
from vmpin.features.common.cpu_times import Schedstat, process_ran
from vmpin.features.isolation.isolation_books import ForeignProgram, ForeignRun, ProgramKind
from vmpin.features.isolation.usage import container_of
from vmpin.host.procfs import Stat, read_file, seconds_since_boot
from vmpin.named_tuple import NamedTuple
from vmpin.reconcile.view import NodeView

#: Processes and threads that ran less since the last scan are left out (ns).
_LEAST = 1_000_000
#: Threads that are read at once, in about a millisecond.
_CHUNK = 256
_MAX_NAME, _MAX_WHERE = 32, 128


class HotCpu(NamedTuple):
    """An exclusive CPU on which foreign time was found: how much (ns) since the last scan began."""

    owner: SandboxId
    foreign: int


class _KnownProcess:
    """A process at the last scan: its total run time (`clock`), and those of its threads that were on hot CPUs.
    `stale` when it has run since these were noted, without its threads having been read."""

    __slots__ = ("clock", "stale", "threads")

    def __init__(self, clock: int) -> None:
        self.clock = clock
        self.stale = False
        self.threads: dict[ThreadId, int] = {}


class _Inspection:
    """A process whose threads are read, and what is read of it once. It ran for `spent` ns since the last scan, all
    threads together; `vm` is the VM that it is of, or None; `alone`: it has one thread."""

    def __init__(self, pid: int, known: _KnownProcess, spent: int, vm: SandboxId | None) -> None:
        self.pid, self.known, self.spent, self.vm = pid, known, spent, vm
        self.alone = False
        self.threads: dict[ThreadId, int] = {}
        self.owned_by: dict[SandboxId, bool] = {}
        self.home: tuple[ProgramKind, str] | None = None


class ForeignScans:
    """The scans of one node, one after the other: each compares with the one before it.
    :param most: threads that one scan reads: a process may have made very many."""

    def __init__(self, view: NodeView, most: int = 20_000) -> None:
        self._view, self._most = view, most
        self._host = Schedstat(view.proc)
        self._known: dict[int, _KnownProcess] = {}
        #: When the last scan began and this one did (CLOCK_BOOTTIME, seconds); 0: there was none.
        self._last = self._now = 0.0
        self._steps: Iterator[None] | None = None
        self._threads_read = 0
        self._hot: Mapping[int, HotCpu] = {}
        self._own_files: Mapping[SandboxId, frozenset[str]] = {}
        #: The foreign time (ns) of a CPU that a program may still have had, by CPU and program.
        self._room: dict[tuple[int, ForeignProgram], int] = {}
        #: What was found since the last `take`, by owner of the CPU.
        self._runs: dict[SandboxId, list[ForeignRun]] = {}
        #: CPU seconds of the last scan.
        self.cost = self._spent = 0.0

    @property
    def under_way(self) -> bool:
        return self._steps is not None

    def start(self, hot: Mapping[int, HotCpu], own_files: Mapping[SandboxId, frozenset[str]]) -> None:
        """Begin a scan. :param hot: by CPU, those on which foreign time was found: no program had more of one.
        :param own_files: the usage files of owners' containers, for owners that are no VMs."""
        self._last, self._now = self._now, time.clock_gettime(time.CLOCK_BOOTTIME)
        self._threads_read, self._spent, self._runs, self._room = 0, 0.0, {}, {}
        self._hot, self._own_files = dict(hot), own_files
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

    def take(self) -> dict[SandboxId, list[ForeignRun]]:
        """Take what was found since the last call, by owner of the CPU."""
        runs, self._runs = self._runs, {}
        return runs

    def _scan(self) -> Iterator[None]:
        vms = {process.pid: vm.sandbox for vm in self._view.vms.values() for process in vm.processes()}
        vms |= {thread.pid: vm.sandbox for vm in self._view.vms.values() for thread in vm.kernel_threads}
        alive: dict[int, _KnownProcess] = {}
        for name in self._view.proc.pids():
            pid = int(name)
            clock = process_ran(pid)
            if clock is None:
                continue
            known = self._known.get(pid)
            if known is None or known.clock > clock:  # new, or another process with its pid
                known, spent = _KnownProcess(clock), clock if self._last else 0
            else:
                known.clock, spent = clock, clock - known.clock
            alive[pid] = known
            if self._hot and spent >= _LEAST:
                yield from self._inspect(_Inspection(pid, known, spent, vms.get(pid)))
            elif spent:
                known.stale = True
            yield
        self._known = alive

    def _inspect(self, process: _Inspection) -> Iterator[None]:
        """Read the threads of a process, some at a time, for those that were last on a hot CPU."""
        with contextlib.closing(self._view.proc.iter_tids(process.pid)) as tids:
            before = self._threads_read
            while chunk := [int(tid) for tid in islice(tids, min(_CHUNK, self._most - self._threads_read))]:
                process.alone = before == self._threads_read and len(chunk) == 1
                self._threads_read += len(chunk)
                for tid, stat in self._view.proc.task_stats(process.pid, chunk).items():
                    self._book(process, tid, stat)
                yield
        process.known.threads, process.known.stale = process.threads, False

    def _book(self, process: _Inspection, tid: int, stat: Stat) -> None:
        """Book the run time of a thread that was last on a hot CPU, if that CPU is not its own."""
        hot = self._hot.get(stat.processor)
        if hot is None or hot.owner == process.vm or self._owns(hot.owner, process):
            return
        now = self._host.ran(process.pid, tid)
        if now is None:
            return
        thread = ThreadId(tid, stat.starttime)
        spent = self._ran_since(thread, process, now.ran)
        process.threads[thread] = now.ran
        if spent < _LEAST:
            return
        program = self._program(process, stat)
        room = self._room.get((stat.processor, program), hot.foreign)
        booked = min(spent, room)
        self._room[stat.processor, program] = room - booked
        # The CPU was read when the scan began: what the thread may have run since is the next scan's.
        later = int((time.clock_gettime(time.CLOCK_BOOTTIME) - self._now) * 1e9)
        process.threads[thread] -= min(spent - booked, max(0, later))
        if booked > 0:
            self._runs.setdefault(hot.owner, []).append(ForeignRun(program, stat.processor, booked))

    def _ran_since(self, thread: ThreadId, process: _Inspection, ran: int) -> int:
        """The time (ns) that a thread ran since the last scan. For an older thread that the last scan did not note it
        is unknown, and 0, unless it is `alone` in its process: the next scan has it."""
        before = process.known.threads.get(thread)
        if before is not None:
            since = max(0, ran - before)
            return min(since, process.spent) if process.known.stale else since
        if self._last and seconds_since_boot(thread.starttime) >= self._last:
            return ran
        return min(ran, process.spent) if self._last and process.alone else 0

    def _owns(self, owner: SandboxId, process: _Inspection) -> bool:
        """Whether a process is in a cgroup of the owner's containers, or below one."""
        owned = process.owned_by.get(owner)
        if owned is None:
            files = self._own_files.get(owner)
            path = self._view.cgroups.usage_file(process.pid) if files else None
            owned = process.owned_by[owner] = path is not None and any(
                path.startswith(f"{os.path.dirname(file)}/") for file in files or ())
        return owned

    def _program(self, process: _Inspection, stat: Stat) -> ForeignProgram:
        if process.home is None:
            process.home = self._home(process, stat)
        kind, where = process.home
        return ForeignProgram(kind, excerpt(stat.comm, _MAX_NAME), where)

    def _home(self, process: _Inspection, stat: Stat) -> tuple[ProgramKind, str]:
        """Where a process with all its threads belongs: its kind; and its pod, container or unit, "" for none."""
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
