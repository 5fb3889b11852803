"""A sandbox's virtual machine: its processes, their threads, and how far its vCPUs are identified.

Only `inventory` changes it, except for two marks that proc events set (`Process.mark_outdated`, `Process.young`) and
QEMU's answer (`Vm.qmp`).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence

from vmpin.domain.model import NearNic, SandboxId, ThreadId, ThreadRole, Vcpu, VcpuId, VcpuState, VmThread
from vmpin.host.procfs import Procfs, Stat
from vmpin.named_tuple import NamedTuple
from vmpin.vmm.vmm_type import VmmType


class QmpAnswer(NamedTuple):
    """QEMU's answer: the cpu-index of each vCPU thread, and the iothreads, by tid."""

    vcpus: Mapping[int, VcpuId]
    iothreads: frozenset[int]


class Refresh(enum.Enum):
    """The result of reading the threads of a process or a VM."""

    UNCHANGED = enum.auto()
    CHANGED = enum.auto()
    #: The process has ended; another process may have its pid by now.
    ENDED = enum.auto()


class Process:
    """A process whose threads are followed."""

    def __init__(self, pid: int, id: ThreadId, role: ThreadRole, argv: list[str]) -> None:
        self.pid, self.id, self.role, self.argv = pid, id, role, argv
        self.tasks: list[str] = []  #: The last listing of its task directory.
        self.stats: dict[int, Stat] = {}
        self.threads: dict[int, VmThread] = {}
        #: Threads first read in the last pass: their names may not have been set yet (a clone has its creator's name).
        self.young: set[int] = set()
        #: Whether a thread was, or may have been, created since the last listing; and whether one may have been named.
        self._outdated, self._renamed = True, False

    def mark_outdated(self, names: bool = False) -> None:
        """Make the next refresh list the threads, because one was created. :param names: also read the names of all
        again, because events of them may have been lost."""
        self._outdated = True
        self._renamed = self._renamed or names

    def has(self, thread: ThreadId) -> bool:
        """Whether a thread was among those read last."""
        stat = self.stats.get(thread.tid)
        return stat is not None and stat.starttime == thread.starttime

    def read_threads(self, proc: Procfs, reread: bool, forks_reported: bool = False) -> Refresh:
        """Read the threads from /proc, at little cost if nothing changed.
        :param reread: whether to read all threads, not only new and young ones.
        :param forks_reported: whether every fork event calls `mark_outdated`. Then a process that is not outdated and
            has an unchanged number of threads is not listed."""
        reread = reread or self._renamed
        same = not self.young and not reread
        if (same and forks_reported and not self._outdated
                and proc.thread_count(self.pid) == len(self.tasks)):
            return Refresh.UNCHANGED
        tasks = proc.tids(self.pid)
        if same and tasks == self.tasks:
            self._outdated = False
            return Refresh.UNCHANGED
        if not tasks:
            self.stats.clear()
            self.threads.clear()
            self.tasks = tasks
            return Refresh.ENDED
        tids = list(map(int, tasks))
        again = (dict.fromkeys(tids) if reread or not self.stats else
                 {self.pid, *self.young, *(set(tids) - self.stats.keys())})
        fresh = proc.task_stats(self.pid, again)
        main = fresh.get(self.pid)
        if main is None or main.starttime != self.id.starttime or main.state in "ZX":
            self.threads.clear()
            return Refresh.ENDED
        stats, young = _merged(self.stats, tids, again, fresh)
        changed = stats != self.stats
        self.tasks, self.stats, self.young = tasks, stats, young
        self._outdated = self._renamed = False
        if changed and self.role is not ThreadRole.EMULATOR:
            self.threads = {tid: VmThread(ThreadId(tid, stat.starttime), self.role, stat.comm, self.pid)
                            for tid, stat in stats.items()}
        return Refresh.CHANGED if changed else Refresh.UNCHANGED


def _merged(before: Mapping[int, Stat], tids: Sequence[int], again: Collection[int],
            fresh: dict[int, Stat]) -> tuple[dict[int, Stat], set[int]]:
    """Merge newly read stats into earlier ones; an unchanged thread keeps its earlier stat.
    :param again: the threads that were read again. :param fresh: their stats.
    :returns: the stats of `tids`, and the threads that are new or have another name."""
    if not before:
        return fresh, set(fresh)
    stats: dict[int, Stat] = {}
    young = set()
    for tid in tids:
        old = before.get(tid)
        stat = fresh.get(tid) if tid in again else old
        if stat is None:
            continue
        if old is not None and (old.comm, old.starttime) == (stat.comm, stat.starttime):
            stats[tid] = old
        else:
            young.add(tid)
            stats[tid] = stat
    return stats, young


class Vm:
    """A sandbox's virtual machine."""

    def __init__(self, sandbox: SandboxId, type: VmmType, vmm: Process) -> None:
        self.sandbox, self.type, self.vmm = sandbox, type, vmm
        self.helpers: list[Process] = []
        #: Kernel threads of the VM (vhost before Linux 6.4, kvm-pit).
        self.kernel_threads: list[VmThread] = []
        #: The last strategy that identified a vCPU (threads.Identified).
        self.found_by = "none"
        self.vcpu_state = VcpuState.UNIDENTIFIED
        #: When all vCPUs were last identified, or the VMM started (CLOCK_BOOTTIME, s); None before the first pass.
        self.unidentified_since: float | None = None
        self.vcpus: tuple[Vcpu, ...] = ()
        #: The identified vCPU threads.
        self.vcpu_threads: dict[ThreadId, VcpuId] = {}
        #: vCPUs whose threads have ended.
        self.ended_vcpus: set[VcpuId] = set()
        self.iothreads: set[ThreadId] = set()
        #: Its NIC, with policy.vhost: near; None with any other policy, and before it is read.
        self.nic: NearNic | None = None
        #: QEMU's answer until the next refresh uses it.
        self.qmp: QmpAnswer | None = None
        #: The thread set for which QMP was last queried; each set is queried once.
        self.qmp_queried: frozenset[int] = frozenset()
        #: Whether QMP is needed to identify threads; None: not determined since they were last identified.
        self.needs_qmp: bool | None = None
        #: Whether the threads have changed since their roles were identified.
        self.roles_outdated = True
        #: How often roles were identified again since the last change of threads.
        self.attempts = 0

    @property
    def vcpus_identified(self) -> bool:
        """Whether every vCPU's thread is identified."""
        return self.vcpu_state is VcpuState.IDENTIFIED

    def processes(self) -> Iterator[Process]:
        yield self.vmm
        yield from self.helpers

    def threads(self) -> Iterator[VmThread]:
        for process in self.processes():
            yield from process.threads.values()
        yield from self.kernel_threads

    def guest_vcpus(self, ids: Sequence[VcpuId]) -> tuple[Vcpu, ...]:
        """The guest's view of these vCPUs: cores and NUMA nodes."""
        return self.type.guest_vcpus(self.vmm.argv, ids)

    def main_of(self, thread: VmThread) -> ThreadId:
        """The main thread of a thread's process; a kernel thread is its own."""
        for process in self.processes():
            if process.pid == thread.pid:
                return process.id
        return thread.id
