"""A sandbox's virtual machine: its processes, their threads, and how far its vCPUs are identified.

Plain data with states. Only `inventory` changes it, except for two marks that proc events set
(`Process.mark_outdated`, `Process.young`) and QEMU's answer (`Vm.qmp`).
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, Vcpu, VcpuId, VcpuState, VmThread
from vmpin.host.procfs import Stat
from vmpin.vmm.vmm_type import VmmType


class Reading(enum.Enum):
    """Whether data that was read is up to date: a process's task directory, the roles of a VM's threads."""

    #: No thread was created since the listing, if fork events are complete; the identified threads are unchanged.
    CURRENT = enum.auto()
    #: A thread was, or may have been, created since; the threads have changed since their identification.
    OUTDATED = enum.auto()


class QmpAnswer(NamedTuple):
    """QEMU's answer: the cpu-index of each vCPU thread, and the iothreads, by tid."""

    vcpus: Mapping[int, VcpuId]
    iothreads: frozenset[int]


class QmpNeed(enum.Enum):
    """Whether QMP is needed to identify threads."""

    #: Not determined since the roles were identified.
    UNDECIDED = enum.auto()
    NEEDED = enum.auto()
    NOT_NEEDED = enum.auto()


class Refresh(enum.Enum):
    """The result of reading the threads of a process or a VM."""

    UNCHANGED = enum.auto()
    CHANGED = enum.auto()
    #: The process has ended; another process may have its pid by now.
    ENDED = enum.auto()


class Process:
    """A process whose threads are followed. `tasks` is the last listing of its task directory."""

    def __init__(self, pid: int, id: ThreadId, role: ThreadRole, argv: list[str],
                 threads: dict[int, VmThread] | None = None) -> None:
        self.pid, self.id, self.role, self.argv = pid, id, role, argv
        self.tasks: list[str] = []
        self.stats: dict[int, Stat] = {}
        self.threads = {} if threads is None else threads
        #: Threads first read in the last pass: their names may not have been set yet (a clone has its creator's name).
        self.young: set[int] = set()
        self.listing = Reading.OUTDATED

    def mark_outdated(self) -> None:
        """Make the next refresh list the threads, because one was created."""
        self.listing = Reading.OUTDATED

    def has(self, thread: ThreadId) -> bool:
        """Whether a thread was among those read last."""
        stat = self.stats.get(thread.tid)
        return stat is not None and stat.starttime == thread.starttime


class Vm:
    """A sandbox's virtual machine."""

    def __init__(self, sandbox: SandboxId, type: VmmType, vmm: Process, identified: bool = False,
                 vcpus: tuple[Vcpu, ...] = ()) -> None:
        self.sandbox, self.type, self.vmm = sandbox, type, vmm
        self.helpers: list[Process] = []
        #: Kernel threads of the VM (vhost before Linux 6.4, kvm-pit).
        self.kernel_threads: list[VmThread] = []
        #: The last strategy that identified a vCPU (threads.Identified).
        self.found_by = "none"
        self.vcpu_state = VcpuState.IDENTIFIED if identified else VcpuState.UNIDENTIFIED
        #: When all vCPUs were last identified, or the VMM started (CLOCK_BOOTTIME, s); None before the first pass.
        self.unidentified_since: float | None = None
        self.vcpus = vcpus
        #: The identified vCPU threads.
        self.vcpu_threads: dict[ThreadId, VcpuId] = {}
        #: vCPUs whose threads have ended.
        self.ended_vcpus: set[VcpuId] = set()
        self.iothreads: set[ThreadId] = set()
        #: QEMU's answer until the next refresh uses it.
        self.qmp: QmpAnswer | None = None
        #: The thread set for which QMP was last queried; each set is queried once.
        self.qmp_asked: frozenset[int] = frozenset()
        self.qmp_need = QmpNeed.UNDECIDED
        self.roles = Reading.OUTDATED
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
