"""Visits to the processes of the node that find which of them ran on exclusive CPUs of others, by name.

A visit is made in slices. It costs one system call for each process; where foreign time was found since the last one,
also the files of the threads of those processes that ran meanwhile. Reads only. What stays out: when a visit is made
(isolation_observer), and how much foreign time there is, which needs no visit (cpu_intervals).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping

from vmpin.domain.model import ContainerId, SandboxId, ThreadId
from vmpin.domain.terminal import excerpt, pod_name, short_id
from vmpin.host.procfs import Stat, read_file, seconds_since_boot
from vmpin.host.schedstat import Schedstat, process_ran
from vmpin.reconcile.view import NodeView
from vmpin.reports.isolation.isolation_advice import ThiefKind
from vmpin.reports.isolation.isolation_books import Theft, Thief
from vmpin.reports.residency.usage import container_of

#: What ran less since the last visit is not looked at (ns).
_LEAST = 1_000_000
#: Threads of one visit that are looked at: a process may have made very many.
_MOST_THREADS = 20_000
_MAX_NAME, _MAX_WHERE = 32, 128


class _Met:
    """A process at the last visit: its total run time, and those of its threads that were found on such CPUs."""

    __slots__ = ("clock", "threads")

    def __init__(self, clock: int) -> None:
        self.clock = clock
        self.threads: dict[ThreadId, int] = {}


class ThiefVisits:
    """Of one node, again and again: each visit compares with the one before it."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._host = Schedstat(view.proc)
        self._known: dict[int, _Met] = {}
        #: When the last visit began and this one did (CLOCK_BOOTTIME, seconds); 0: there was none.
        self._last = self._now = 0.0
        self._steps: Iterator[None] | None = None
        self._threads = 0
        self.found: list[tuple[SandboxId, Theft]] = []
        #: CPU seconds of the last visit.
        self.cost = self._spent = 0.0

    @property
    def under_way(self) -> bool:
        return self._steps is not None

    def start(self, hot: Mapping[int, SandboxId], own_cgroups: Mapping[SandboxId, frozenset[str]]) -> None:
        """Begin a visit. :param hot: the CPUs on which foreign time was found, with their owners.
        :param own_cgroups: the usage files of owners' containers, for owners that are no VMs."""
        self._last, self._now = self._now, time.clock_gettime(time.CLOCK_BOOTTIME)
        self._threads, self._spent, self.found = 0, 0.0, []
        self._steps = self._visit(dict(hot), own_cgroups)

    def step(self, budget: float) -> bool:
        """Go on with the visit for some seconds. :returns: True when it is over: `found` has all."""
        if self._steps is None:
            return True
        began, cost = time.perf_counter(), time.thread_time()
        over = False
        while not over and time.perf_counter() - began < budget:
            over = next(self._steps, self) is self
        self._spent += time.thread_time() - cost
        if over:
            self._steps, self.cost = None, self._spent
        return over

    def _visit(self, hot: Mapping[int, SandboxId], own: Mapping[SandboxId, frozenset[str]]) -> Iterator[None]:
        vms = {process.pid: vm.sandbox for vm in self._view.vms.values() for process in vm.processes()}
        vms |= {thread.pid: vm.sandbox for vm in self._view.vms.values() for thread in vm.kernel_threads}
        known: dict[int, _Met] = {}
        for name in self._view.proc.pids():
            pid = int(name)
            clock = process_ran(pid)
            if clock is None:
                continue
            met = self._known.get(pid)
            if met is None or met.clock > clock:  # new, or another process with its pid
                met, spent = _Met(clock), clock if self._last else 0
            else:
                met.clock, spent = clock, clock - met.clock
            known[pid] = met
            if hot and spent >= _LEAST and self._threads < _MOST_THREADS:
                self._inspect(pid, met, spent, hot, vms.get(pid), own)
            yield
        self._known = known

    def _inspect(self, pid: int, met: _Met, spent: int, hot: Mapping[int, SandboxId], vm: SandboxId | None,
                 own: Mapping[SandboxId, frozenset[str]]) -> None:
        """Look for threads of a process that were last on one of the CPUs. :param spent: what all its threads ran."""
        tids = [int(tid) for tid in self._view.proc.tids(pid)]
        self._threads += len(tids)
        threads: dict[ThreadId, int] = {}
        for tid, stat in self._view.proc.task_stats(pid, tids).items():
            owner = hot.get(stat.processor)
            if owner is None or owner == vm or self._owns(owner, pid, own):
                continue
            now = self._host.ran(pid, tid)
            if now is None:
                continue
            thread = ThreadId(tid, stat.starttime)
            threads[thread] = now.ran
            had = self._had(thread, met, now.ran, spent, len(tids) == 1)
            if had >= _LEAST:
                theft = Theft(self._thief(pid, stat, vm), stat.processor, had)
                self.found.append((owner, theft))
        met.threads = threads

    def _had(self, thread: ThreadId, met: _Met, ran: int, spent: int, alone: bool) -> int:
        """What a thread ran since the last visit. Of an older one that was not met then it is not known, unless it is
        `alone` in its process: the next visit has it."""
        before = met.threads.get(thread)
        if before is not None:
            return max(0, ran - before)
        if self._last and seconds_since_boot(thread.starttime) >= self._last:
            return ran
        return min(ran, spent) if self._last and alone else 0

    def _owns(self, owner: SandboxId, pid: int, own: Mapping[SandboxId, frozenset[str]]) -> bool:
        """Whether a process is in a cgroup of the owner's containers, or below one."""
        files = own.get(owner)
        if not files:
            return False
        path = self._view.cgroups.usage_file(pid)
        return path is not None and any(path.startswith(f"{os.path.dirname(file)}/") for file in files)

    def _thief(self, pid: int, stat: Stat, vm: SandboxId | None) -> Thief:
        name = excerpt(stat.comm, _MAX_NAME)
        if vm is not None:
            state = self._view.sandboxes.get(vm)
            pod = None if state is None or state.pod is None else state.pod._asdict()
            return Thief(ThiefKind.VM, name, excerpt(pod_name(pod, short_id(vm)), _MAX_WHERE))
        if stat.kernel_thread:
            return Thief(ThiefKind.KERNEL, name, "")
        container, unit = home(read_file(f"{self._view.proc.root}/{pid}/cgroup") or b"")
        if container is None and not self._view.proc.nested(pid):
            return Thief(ThiefKind.HOST, name, excerpt(unit, _MAX_WHERE))
        where = self._container(container) if container else unit
        return Thief(ThiefKind.CONTAINER, name, excerpt(where, _MAX_WHERE))

    def _container(self, container: str) -> str:
        """`namespace/pod/container` of a known container or sandbox, else the first digits of the id."""
        for state in self._view.sandboxes.values():
            if container == state.id or container in state.containers:
                record = state.containers.get(ContainerId(container))
                pod = pod_name(None if state.pod is None else state.pod._asdict(), short_id(state.id))
                return f"{pod}/{record.container.name}" if record is not None and record.container.name else pod
        return short_id(container)


def home(raw: bytes) -> tuple[str | None, str]:
    """From /proc/PID/cgroup, a process's container (None for none), and its systemd unit or last cgroup."""
    unit, container = "", None
    for line in os.fsdecode(raw).split("\n"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        container = container or container_of(path)
        last = path.rpartition("/")[2]
        if last and (controllers in ("", "name=systemd") or not unit):
            unit = last
    return container, unit
