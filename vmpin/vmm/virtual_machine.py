"""A sandbox's virtual machine: its processes, their threads, and how far its vCPUs are identified.

Plain data with states; `inventory` alone changes it, but for two marks that proc events set (`Process.mark_outdated`,
`Process.young`) and QEMU's answer (`Vm.qmp`). What stays out: reading any of it (inventory), which thread is which
(threads), and the masks (pinning).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, Vcpu, VcpuId, VmmType, VmThread
from vmpin.host.procfs import Stat
from vmpin.vmm.qemu_cmdline import GuestTopology

if TYPE_CHECKING:
    from vmpin.vmm.qmp import QmpAnswer


class Listing(enum.Enum):
    """How `Process.tasks` relates to the process's task directory."""

    #: No thread was created since it was listed, as far as fork events are complete.
    CURRENT = enum.auto()
    #: A thread was created since, or may have been.
    OUTDATED = enum.auto()


class Roles(enum.Enum):
    """How a VM's thread roles relate to its threads."""

    #: The roles are those of the threads last read.
    CURRENT = enum.auto()
    #: The threads have changed since their roles were identified.
    OUTDATED = enum.auto()


class VcpuState(enum.Enum):
    """How far a VM's vCPU threads are identified."""

    #: Every vCPU's thread is identified.
    IDENTIFIED = enum.auto()
    #: Some are not yet, as in a VM that boots or has just got a vCPU: placing waits for them for a short time.
    AWAITED = enum.auto()
    #: Some are not, and placing waits for them no longer.
    UNIDENTIFIED = enum.auto()


class QmpNeed(enum.Enum):
    """Whether QMP could identify what nothing else does."""

    #: Not worked out since the roles were identified.
    UNDECIDED = enum.auto()
    NEEDED = enum.auto()
    NOT_NEEDED = enum.auto()


class Refresh(enum.Enum):
    """What reading the threads of a process, or of a VM, found."""

    UNCHANGED = enum.auto()
    CHANGED = enum.auto()
    #: The process has ended; or its pid is another process's by now.
    ENDED = enum.auto()


class Process:
    """A process whose threads are followed. `tasks` is its task directory as last listed."""

    def __init__(self, pid: int, id: ThreadId, role: ThreadRole, argv: list[str],
                 threads: dict[int, VmThread] | None = None) -> None:
        self.pid = pid
        self.id = id
        self.role = role
        self.argv = argv
        self.tasks: list[str] = []
        self.stats: dict[int, Stat] = {}
        self.threads = {} if threads is None else threads
        #: Threads first read in the last pass: their names may not have been set yet (a clone has its creator's name).
        self.young: set[int] = set()
        self.listing = Listing.OUTDATED

    def mark_outdated(self) -> None:
        """A thread was created: the next refresh lists the threads."""
        self.listing = Listing.OUTDATED

    def has(self, thread: ThreadId) -> bool:
        """Whether it is among the threads last read."""
        stat = self.stats.get(thread.tid)
        return stat is not None and stat.starttime == thread.starttime


class Vm:
    """A sandbox's virtual machine."""

    def __init__(self, sandbox: SandboxId, type: VmmType, vmm: Process, known: bool = False,
                 vcpus: tuple[Vcpu, ...] = ()) -> None:
        self.sandbox = sandbox
        self.type = type
        self.vmm = vmm
        self.helpers: list[Process] = []
        #: Kernel threads that work for it (vhost before Linux 6.4, kvm-pit).
        self.kernel: list[VmThread] = []
        #: The last strategy that identified a vCPU (threads.Identified).
        self.found_by = "none"
        self.vcpu_state = VcpuState.IDENTIFIED if known else VcpuState.UNIDENTIFIED
        #: When every vCPU was last identified, or the VMM began (CLOCK_BOOTTIME, seconds); None before the first pass.
        self.since: float | None = None
        self.vcpus = vcpus
        self.learned: dict[ThreadId, VcpuId] = {}
        #: vCPUs whose thread has ended.
        self.gone: set[VcpuId] = set()
        self.iothreads: set[ThreadId] = set()
        #: QEMU's answer, until the next refresh has used it.
        self.qmp: QmpAnswer | None = None
        #: The thread set for which QMP was asked; it is asked once for each.
        self.qmp_asked: frozenset[int] = frozenset()
        self.qmp_need = QmpNeed.UNDECIDED
        self.roles = Roles.OUTDATED
        #: How often its roles were identified again since its threads last changed.
        self.attempts = 0

    @property
    def known(self) -> bool:
        """Whether every vCPU's thread is identified."""
        return self.vcpu_state is VcpuState.IDENTIFIED

    @property
    def awaited(self) -> bool:
        """Whether placing waits for vCPUs that are not identified yet."""
        return self.vcpu_state is VcpuState.AWAITED

    def processes(self) -> Iterator[Process]:
        yield self.vmm
        yield from self.helpers

    def threads(self) -> Iterator[VmThread]:
        for process in self.processes():
            yield from process.threads.values()
        yield from self.kernel

    def guest_vcpus(self, ids: Sequence[VcpuId]) -> tuple[Vcpu, ...]:
        """vCPUs as the guest sees them."""
        if self.type is VmmType.QEMU:
            return self._topology.vcpus(ids)
        return tuple(Vcpu(number) for number in ids)

    @cached_property
    def _topology(self) -> GuestTopology:
        return GuestTopology(self.vmm.argv)

    def main_of(self, thread: VmThread) -> ThreadId:
        """The main thread of a thread's process: itself for a kernel thread."""
        for process in self.processes():
            if process.pid == thread.pid:
                return process.id
        return thread.id
