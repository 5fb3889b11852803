"""Identifies the roles of a VMM's threads: its vCPUs with their numbers, and its iothreads.

Strategies, tried in order until every vCPU is identified:

    names     the thread's name, which is in its stat file
    kvm_run   the thread is blocked in KVM_RUN on the descriptor of vCPU N
    debugfs   KVM's own list, which includes busy threads
    kvm_run   again, for threads that were on a CPU the first time
    qmp       QEMU's answer, fetched by the caller (qmp.py)

QMP would be the simplest way but comes last: QEMU serves one QMP client at a time, so vmpin could disturb Kata's shim.
Earlier results, the Vm's, are kept, because a busy vCPU cannot be identified again. The result of a strategy is
used as a whole or not at all, because names can be forged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from vmpin.bounded import parse_whole
from vmpin.domain.model import ThreadRole, VcpuId
from vmpin.host.procfs import PF_KTHREAD, PF_USER_WORKER, Procfs
from vmpin.named_tuple import NamedTuple
from vmpin.vmm.vmm_type import MAX_VCPUS, VmmType

if TYPE_CHECKING:
    from vmpin.vmm.virtual_machine import Vm

#: include/linux/sched.h; the io_uring workers before Linux 6.4, which have no PF_USER_WORKER.
_PF_IO_WORKER = 0x00000010
#: Kernel workers in the VMM's thread group. /proc shows them in the system call of the thread that created them:
#: kvm-nx-lpage-recovery in KVM_RUN.
_KERNELS_OWN = PF_USER_WORKER | PF_KTHREAD | _PF_IO_WORKER

#: The system calls in which an event loop waits, by machine (uname): poll, ppoll, epoll_wait, epoll_pwait,
#: io_uring_enter, epoll_pwait2. QEMU's other threads (RCU, thread pool, a paused vCPU) wait in futex.
_WAITS = {"x86_64": frozenset(("7", "271", "232", "281", "426", "441")),
          "aarch64": frozenset(("73", "22", "426", "441"))}

# Linux 6.4 and newer run vhost's workers and KVM's huge page recovery inside the VMM's own thread group.
_ANY = r"|(?P<vhost>vhost-[0-9]+$)|(?P<kvm>kvm-nx-lpage)|(?P<own>iou-)"

Role = tuple[ThreadRole, VcpuId | None]
EMULATOR: Role = (ThreadRole.EMULATOR, None)
IOTHREAD: Role = (ThreadRole.IOTHREAD, None)
ROLE_BY_GROUP: dict[str, Role] = {
    "io": IOTHREAD, "monitor": EMULATOR, "vhost": (ThreadRole.VHOST, None), "kvm": (ThreadRole.KVM, None),
    "own": EMULATOR}


@lru_cache(maxsize=1024)
def read_name(pattern: str, comm: str) -> tuple[str | None, str, VcpuId | None]:
    """Match a name. :returns: the group of the pattern that matches, its text, and the number in a vCPU's name.
    Cached: thousands of threads share a few names."""
    match = re.match(pattern + _ANY, comm)
    if match is None or match.lastgroup is None:
        return None, "", None
    text = match[match.lastgroup]
    if match.lastgroup != "vcpu":
        return match.lastgroup, text, None
    vcpu = parse_whole(text, MAX_VCPUS - 1)
    return (None, "", None) if vcpu is None else ("vcpu", text, VcpuId(vcpu))


class Identified(NamedTuple):
    """The roles of all threads.

    `found_by` is the last strategy that identified a vCPU: "names", "kvm_run", "debugfs" or "qmp"; "learned" if all
    were identified before, "none" if none is. `complete` is False if a vCPU may be missing: try again later."""

    roles: Mapping[int, Role]
    found_by: str
    complete: bool


def identify(vm: Vm, procfs: Procfs, debugfs: str = "/sys/kernel/debug") -> Identified:
    """Identify the threads of a VM's VMM that were read last: from what was identified earlier, as far as it is about
    these threads, and from QEMU's answer about them (`Vm.qmp`), if there is one."""
    threads = _Identification(vm, procfs, debugfs)
    found_by = "none"
    if threads.accept({thread.tid: vcpu for thread, vcpu in vm.vcpu_threads.items() if vm.vmm.has(thread)}):
        found_by = "learned"
    threads.iothreads |= {thread.tid for thread in vm.iothreads if vm.vmm.has(thread)}
    # Names always count, because a vCPU that was plugged in is not among those that must exist.
    if threads.accept(threads.named_vcpus):
        found_by = "names"
    complete = threads.is_complete()
    for name, strategy in _STRATEGIES:
        if complete:
            break
        if threads.accept(strategy(threads)):
            found_by = name
        complete = threads.is_complete()
    roles = threads.roles
    for tid in threads.iothreads | threads.iothreads_by_order():
        roles[tid] = IOTHREAD
    for tid, vcpu in threads.vcpus.items():
        roles[tid] = (ThreadRole.VCPU, vcpu)
    return Identified(roles, found_by, complete)


def wants_qmp(vmm: VmmType, argv: Sequence[str], vcpus_identified: bool, iothreads_identified: bool) -> bool:
    """Whether QMP is to be queried: threads are not identified, and there is a QMP socket that is not Kata's."""
    if vmm.qmp_sockets is None or (
            vcpus_identified and (iothreads_identified or not vmm.start(tuple(argv)).iothreads)):
        return False
    return bool(vmm.qmp_sockets(argv))


class _Identification:
    """The identification of one VMM's threads: the inputs, and the results so far."""

    def __init__(self, vm: Vm, procfs: Procfs, debugfs: str) -> None:
        self.pid, self.argv, self.stats, self.procfs = vm.vmm.pid, vm.vmm.argv, vm.vmm.stats, procfs
        self.debugfs, self.qmp = debugfs, vm.qmp
        self.vmm, self.start = vm.type, vm.type.start(tuple(vm.vmm.argv))
        #: All threads by name; EMULATOR unless the name has another role.
        self.roles: dict[int, Role] = {}
        #: Threads with the name of a vCPU; only reliable if no number occurs twice.
        self.named_vcpus: dict[int, VcpuId] = {}
        #: Threads with the process's name: a new thread inherits its creator's name, and QEMU sets none without
        #: debug-threads=on, or if it would be longer than 15 characters. And those with a name that has no role.
        self.unnamed: list[int] = []
        self.other: list[int] = []
        #: Whether a thread has the name of the VMM's monitors.
        self.named_monitors = False
        self.read_names()
        self.vcpus: dict[int, VcpuId] = {}
        self.iothreads = {tid for tid in self.qmp.iothreads if self.possible(tid)} if self.qmp else set[int]()
        #: Threads that were on a CPU when kvm_run sampled them.
        self.running: list[int] = []
        #: vCPUs without a thread any more: unplugged. Those identified earlier may have another thread since, so
        #: they are added only when no thread was found for them.
        self.ended, self.gone = vm.ended_vcpus, set[VcpuId]()

    def read_names(self) -> None:
        """Classify the threads by name."""
        pattern, pid, roles, vcpus = self.vmm.thread_names, self.pid, self.roles, self.named_vcpus
        process = self.stats[pid].comm if pid in self.stats else ""
        for tid, stat in self.stats.items():
            comm = stat.comm
            role = EMULATOR
            group, text, vcpu = read_name(pattern, comm)
            if vcpu is not None:
                vcpus[tid] = vcpu
            elif group is None:
                if tid != pid:
                    (self.unnamed if comm == process else self.other).append(tid)
            else:
                role = ROLE_BY_GROUP[group]
                if group == "monitor":
                    self.named_monitors = True
                    role = IOTHREAD if text in self.start.iothreads else EMULATOR
            roles[tid] = role

    def possible(self, tid: int) -> bool:
        """Whether a thread may have been created by the VMM itself."""
        stat = self.stats.get(tid)
        return stat is not None and not stat.flags & _KERNELS_OWN

    def accept(self, answer: Mapping[int, VcpuId]) -> bool:
        """Accept new results, unless two threads would be the same vCPU. A VMM may report any number, also one that
        the state file does not take. :returns: whether anything was new."""
        vcpus, possible = self.vcpus, self.possible
        new = {tid: vcpu for tid, vcpu in answer.items() if tid not in vcpus and possible(tid) and vcpu < MAX_VCPUS}
        ids = set(new.values())
        if len(ids) < len(new) or not ids.isdisjoint(vcpus.values()):
            return False
        vcpus.update(new)
        return bool(new)

    def suspects(self) -> list[int]:
        """Threads that may be vCPUs and are not identified yet."""
        unnamed = self.unnamed
        if not self.vcpus.keys() & self.named_vcpus.keys():
            unnamed = [*unnamed, *self.other, *self.named_vcpus]  # there are no names, or they were rejected
        return [tid for tid in unnamed
                if tid not in self.vcpus and tid not in self.iothreads and self.possible(tid)]

    def is_complete(self) -> bool:
        if not self.vcpus:
            return False
        if self.qmp is not None and self.qmp.vcpus and self.qmp.vcpus.keys() <= self.vcpus.keys():
            return True
        slots = self.start.slots
        if slots and sum(vcpu < slots for vcpu in self.vcpus.values()) == slots:
            return True
        if self.suspects():
            expected = set(self.by_index(self.fds).values())
            if expected:
                return expected - self.gone <= set(self.vcpus.values())
        return len(self.vcpus) >= self.start.vcpus

    @cached_property
    def fds(self) -> dict[int, int]:
        """KVM's vcpu ids by descriptor."""
        from vmpin.vmm import kvm  # in functions, as most VMs' threads are identified by their names
        return kvm.vcpu_fds(self.procfs, self.pid)

    def by_index(self, kvm_ids: Mapping[int, int]) -> dict[int, VcpuId]:
        """Convert KVM's vcpu ids to the VMM's vCPU numbers; the keys are kept."""
        vcpus = self.vmm.vcpus_of_kvm_ids(self.argv, kvm_ids.values())
        return {key: vcpus[number] for key, number in kvm_ids.items() if number in vcpus}

    def by_kvm_run(self) -> Mapping[int, VcpuId]:
        if not self.fds:
            return {}
        from vmpin.vmm import kvm
        indices, self.running = kvm.in_kvm_run(self.procfs, self.pid, self.suspects(), self.fds)
        return self.by_index(indices)

    def by_debugfs(self) -> Mapping[int, VcpuId]:
        from vmpin.vmm import kvm
        vcpus = self.by_index(kvm.from_debugfs(self.debugfs, self.pid))
        self.gone.update(vcpu for tid, vcpu in vcpus.items()
                         if tid not in self.stats and self.procfs.thread_stat(self.pid, tid) is None)
        return vcpus

    def by_kvm_run_again(self) -> Mapping[int, VcpuId]:
        waiting = [tid for tid in self.running if tid not in self.vcpus]
        from vmpin.vmm import kvm
        return self.by_index(kvm.in_kvm_run_later(self.procfs, self.pid, waiting, self.fds))

    def without_ended(self) -> Mapping[int, VcpuId]:
        self.gone.update(self.ended)
        return {}

    def by_qmp(self) -> Mapping[int, VcpuId]:
        return {} if self.qmp is None else self.qmp.vcpus

    def iothreads_by_order(self) -> frozenset[int]:
        """Identify the declared iothreads that neither names nor QMP identified, as under Kata, whose ids
        (`indep_iothread_0`, `iothread-…`) are too long for thread names, by their order of creation; none unless all
        conditions hold. At its start QEMU creates its RCU thread, then all iothreads, then the monitors' thread, then
        the vCPUs. All unnamed threads before the vCPUs except the first must wait in an event loop; otherwise the
        monitors' thread could be taken for a busy iothread."""
        named = {tid for tid, role in self.roles.items() if role is IOTHREAD}
        missing = len(self.start.iothreads) - len(named | self.iothreads)
        if missing < 1 or not self.vcpus or not (waits := _WAITS.get(os.uname().machine)):
            return frozenset()

        def age(tid: int) -> tuple[int, int]:
            return self.stats[tid].starttime, tid

        first_vcpu = min(map(age, self.vcpus))
        old = [tid for tid in sorted(self.suspects(), key=age) if age(tid) < first_vcpu]
        loops = [tid for tid in old if self.procfs.syscall(self.pid, tid).partition(" ")[0] in waits]
        monitors = 1 if self.start.monitor_thread and not self.named_monitors else 0  # unnamed as well
        if loops not in (old, old[1:]) or len(loops) != missing + monitors:
            return frozenset()
        return frozenset(loops[:missing])


#: In this order, after the names.
_STRATEGIES: tuple[tuple[str, Callable[[_Identification], Mapping[int, VcpuId]]], ...] = (
    ("kvm_run", _Identification.by_kvm_run), ("debugfs", _Identification.by_debugfs),
    ("kvm_run", _Identification.by_kvm_run_again), ("ended", _Identification.without_ended),
    ("qmp", _Identification.by_qmp))
