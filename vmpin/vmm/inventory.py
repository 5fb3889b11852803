"""The VMs of the node's sandboxes: whose each process is, and every thread of them.

Kept from pass to pass, so that a pass in which nothing changed lists each task directory and reads no more. Which
process is whose is decided from its command line, or from a claim (Kata's state, a hook) that its command line bears
out; a bare pid is never believed. What stays out: finding the processes (census), masks (affinity, plan) and what
should be.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from vmpin.domain.events import VmmClaim
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, Vcpu, VcpuId, VcpuThreads, VmmType, VmThread
from vmpin.host.procfs import Procfs, Stat
from vmpin.vmm import threads as vmm_threads
from vmpin.vmm.process_table import ROUNDS, Found, ProcessTable
from vmpin.vmm.processes import VmmProcess, named_by_kata
from vmpin.vmm.qemu_cmdline import GuestTopology

if TYPE_CHECKING:
    from vmpin.vmm.qmp import QmpAnswer

logger = logging.getLogger(__name__)

#: In how many passes a VM is asked again that does not tell its vCPUs; and one that tells them by their calls alone.
TRIES, AGAIN = 5, 3
#: So long (seconds) vCPU threads that cannot be identified are waited for: a vCPU has to run once, and a guest that
#: boots under nested virtualization on a busy node takes some 20 s for that.
PATIENCE = 60.0
_TICK = 1 / os.sysconf("SC_CLK_TCK")


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
        #: Threads met in the last pass: their names may not have been set yet (a clone has its creator's name).
        self.young: set[int] = set()
        #: A thread was born, or may have been, since `tasks` was listed.
        self.grown = True

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
        self.found_by = "none"
        #: Whether every vCPU is known for one.
        self.known = known
        #: Whether those that are not are waited for, and when (CLOCK_BOOTTIME, seconds) they were last known or it
        #: began.
        self.awaited = False
        self.since: float | None = None
        self.vcpus = vcpus
        self.learned: dict[ThreadId, VcpuId] = {}
        #: vCPUs whose thread has ended.
        self.gone: set[VcpuId] = set()
        self.iothreads: set[ThreadId] = set()
        self.qmp: QmpAnswer | None = None
        #: The thread set for which QMP was asked; it is asked once for each.
        self.qmp_asked: frozenset[int] = frozenset()
        #: Whether QMP could tell what is not known; None until somebody wants to know.
        self.wants_qmp: bool | None = None
        #: How often its vCPUs were looked for since its threads last changed.
        self.tries = 0
        #: Its threads have changed since they were last told apart.
        self.stale = True

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


class VmInventory:
    """Follows the processes below `proc`; of the sandboxes, those whose ids the pattern `only` matches.

    :param vcpus: what was found out of VMMs before, as a state file has it.
    """

    def __init__(self, proc: Procfs, sys_root: str = "/sys", only: str = "*",
                 vcpus: Mapping[SandboxId, VcpuThreads] | None = None) -> None:
        self.proc = proc
        self.sys_root = sys_root
        self.only = only
        self.vms: dict[SandboxId, Vm] = {}
        #: What is to outlive this process: a vCPU that is busy for ever shows nothing to the next one.
        self.vcpus: dict[SandboxId, VcpuThreads] = dict(vcpus or {})
        #: Whether `vcpus` is another than when this was last set to False.
        self.learned = False
        #: Whether of each thread that is born somebody sets `grown`: as many threads as there were are the same then.
        self.told = False
        self.process_table = ProcessTable(proc)
        self._doubles: set[tuple[SandboxId, int]] = set()
        self._followed: dict[int, tuple[Vm, Process]] | None = None

    def scan(self, claims: Mapping[SandboxId, VmmClaim], full: bool = False) -> set[SandboxId]:
        """Look for processes that came or went.

        :param full: look at every process again.
        :returns: the sandboxes whose VM came, went or became another.
        """
        if full:
            for _, process in self.followed.values():
                process.grown = True
        self.process_table.scan([claim.pid for claim in claims.values()], full)
        return self.assign(claims)

    def inspect(self, pid: int) -> Found | None:
        """Look at one process that has just executed a program, or come. :returns: who it is, and what to whom; None
        when it is nothing to us."""
        vm, process = self.followed.get(pid, (None, None))
        found = self.process_table.inspect(pid)
        if vm is not None and process is vm.vmm and (found is None or found[2] != process.argv):
            del self.vms[vm.sandbox]  # another program, if it has the same number and start time
            self.learned = self.vcpus.pop(vm.sandbox, None) is not None or self.learned
            self._followed = None
        return found

    @property
    def followed(self) -> Mapping[int, tuple[Vm, Process]]:
        """The processes whose threads are followed, by pid."""
        if self._followed is None:
            self._followed = {process.pid: (vm, process) for vm in self.vms.values() for process in vm.processes()}
        return self._followed

    def helpers(self, sandbox: SandboxId) -> list[Process]:
        """A sandbox's helpers, its VM there or not, with their threads as they are now."""
        found = [Process(pid, identity, helper.role, argv)
                 for pid, (identity, helper, argv) in self.process_table.helpers.items() if helper.sandbox == sandbox]
        return [process for process in found if self._refresh(process, reread=True)]

    def assign(self, claims: Mapping[SandboxId, VmmClaim]) -> set[SandboxId]:
        """Give each sandbox its VMM and helpers. :returns: the sandboxes whose VM came, went or became another."""
        vmms = self.process_table.vmms
        chosen: dict[SandboxId, int] = {}
        for sandbox, claim in claims.items():
            found = vmms.get(claim.pid)
            if found is not None and _borne_out(sandbox, claim, *found[:2]):
                chosen[sandbox] = claim.pid
        taken = set(chosen.values())
        for pid, (_, vmm, _) in sorted(vmms.items(), key=lambda item: item[1][0].starttime):
            if vmm.sandbox is None or pid in taken:
                continue
            other = chosen.setdefault(vmm.sandbox, pid)
            if other != pid and not self.process_table.is_running(vmms[other][0]):
                chosen[vmm.sandbox] = pid  # it follows one that has just ended
            elif other != pid and (vmm.sandbox, pid) not in self._doubles:
                self._doubles.add((vmm.sandbox, pid))
                logger.warning("sandbox=%s has a second VMM pid=%d, which is left alone; pid=%d is the elder",
                               vmm.sandbox, pid, other)
        self._doubles = {double for double in self._doubles if double[1] in vmms}
        if self.only != "*":
            chosen = {sandbox: pid for sandbox, pid in chosen.items() if fnmatchcase(sandbox, self.only)}
        changed = {sandbox for sandbox in self.vms if sandbox not in chosen}
        for sandbox in changed:
            del self.vms[sandbox]
        for sandbox, pid in chosen.items():
            identity, vmm, argv = vmms[pid]
            vm = self.vms.get(sandbox)
            if vm is None or vm.vmm.id != identity:
                vm = Vm(sandbox, vmm.type, Process(pid, identity, ThreadRole.EMULATOR, argv))
                had = self.vcpus.get(sandbox)
                if had is not None and had.vmm == identity:
                    vm.learned, vm.gone, vm.found_by = dict(had.threads), set(had.gone), had.found_by
                self.vms[sandbox] = vm
                changed.add(sandbox)
        changed |= self._assign_helpers()
        self._followed = None
        return changed

    def _assign_helpers(self) -> set[SandboxId]:
        helpers: dict[SandboxId, list[Process]] = {}
        for pid, (identity, found, argv) in self.process_table.helpers.items():
            vm = self.vms.get(found.sandbox) if found.sandbox is not None else None
            if vm is None:
                continue
            old = next((process for process in vm.helpers
                        if process.id == identity and process.role is found.role), None)
            helpers.setdefault(vm.sandbox, []).append(old or Process(pid, identity, found.role, argv))
        kernel: dict[int, list[VmThread]] = {}
        for owner, thread in self.process_table.kernel.values():
            kernel.setdefault(owner, []).append(thread)
        changed = set()
        for sandbox, vm in self.vms.items():
            mine, threads = helpers.get(sandbox, []), kernel.get(vm.vmm.pid, [])
            if mine != vm.helpers or threads != vm.kernel:
                vm.helpers, vm.kernel = mine, threads
                changed.add(sandbox)
        return changed

    def refresh(self, vm: Vm) -> bool | None:
        """Read a VM's threads again. True when they changed, None when its VMM has ended (or is another by now)."""
        changed = False
        turn = vm.vmm.pid % ROUNDS == self.process_table.round % ROUNDS
        for process in vm.processes():
            own = self._refresh(process, turn)
            if own is None and process is vm.vmm:
                self._lost(vm)
                return None
            changed = changed or own is not False
            vm.stale = vm.stale or changed  # at once: to read the next one may fail
        # Sampling system calls costs milliseconds: a VM that does not tell is asked again ever more seldom. And where
        # no name tells, all may seem to be known while a vCPU that was just plugged has not been in KVM_RUN yet, if
        # one of its number was unplugged before.
        tries = TRIES if not vm.known else AGAIN if vm.found_by in ("kvm_run", "debugfs") else 0
        if vm.stale or vm.qmp is not None or (tries and (vm.tries < tries or turn)):
            vm.tries = 0 if changed else vm.tries + 1
            changed = self._identify(vm) or changed
            vm.stale = False
        return self._wait(vm) or changed

    def _wait(self, vm: Vm) -> bool:
        """Set whether unknown vCPU threads are waited for; True when that is another answer than before."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if vm.known:
            vm.since = now
        elif vm.since is None:
            vm.since = vm.vmm.id.starttime * _TICK
        awaited = not vm.known and now - (vm.since or 0.0) < PATIENCE
        changed, vm.awaited = awaited != vm.awaited, awaited
        return changed

    def _lost(self, vm: Vm) -> None:
        """Its VMM has ended."""
        del self.vms[vm.sandbox]
        self.process_table.forget(vm.vmm.pid)
        self._followed = None

    def _refresh(self, process: Process, reread: bool) -> bool | None:
        same = not process.young and not reread
        if same and self.told and not process.grown and self.proc.thread_count(process.pid) == len(process.tasks):
            return False
        tasks = self.proc.tids(process.pid)
        if same and tasks == process.tasks:
            process.grown = False
            return False
        if not tasks:
            process.stats.clear()
            process.threads.clear()
            process.tasks = tasks
            return None
        stats: dict[int, Stat] = {}
        young = set()
        had, tids = process.stats, list(map(int, tasks))
        again = set(tids) if reread else {process.pid, *process.young, *(tid for tid in tids if tid not in had)}
        fresh = self.proc.task_stats(process.pid, again)
        for tid in tids:
            if tid not in again:
                stats[tid] = had[tid]
            elif tid in fresh:
                known, stat = had.get(tid), fresh[tid]
                if known is None or (known.comm, known.starttime) != (stat.comm, stat.starttime):
                    young.add(tid)
                    stats[tid] = stat
                elif stat.state in "ZX" and tid == process.pid:
                    return None  # killed and not yet reaped
                else:
                    stats[tid] = known
        main = stats.get(process.pid)
        if main is None or main.starttime != process.id.starttime or main.state in "ZX":
            process.threads.clear()
            return None
        changed = stats != process.stats
        process.tasks, process.stats, process.young, process.grown = tasks, stats, young, False
        if changed and process.role is not ThreadRole.EMULATOR:
            process.threads = {tid: VmThread(ThreadId(tid, stat.starttime), process.role, stat.comm, process.pid)
                               for tid, stat in stats.items()}
        return changed

    def _identify(self, vm: Vm) -> bool:
        """Tell which thread is which; True when the answer is another than before."""
        process = vm.vmm
        vm.gone.update(vcpu for thread, vcpu in vm.learned.items() if not process.has(thread))
        found = vmm_threads.identify(
            process.pid, vm.type, process.argv, process.stats.items(), self.proc, learned=vm.learned,
            gone=vm.gone, iothreads=vm.iothreads, qmp=vm.qmp, debugfs=f"{self.sys_root}/kernel/debug")
        vm.qmp = None  # it spoke of the threads as they were; what was learned of it is kept
        threads = {}
        for tid, stat in process.stats.items():
            role, vcpu = found.roles[tid]
            threads[tid] = VmThread(ThreadId(tid, stat.starttime), role, stat.comm, process.pid, vcpu)
        vm.learned = {thread.id: thread.vcpu for thread in threads.values() if thread.vcpu is not None}
        vm.gone.difference_update(vm.learned.values())
        vm.iothreads = {thread.id for thread in threads.values() if thread.role is ThreadRole.IOTHREAD}
        ids = sorted(vm.learned.values())
        known = found.complete
        vcpus = vm.guest_vcpus(ids)
        changed = (threads, known, vcpus) != (process.threads, vm.known, vm.vcpus)
        process.threads, vm.known, vm.vcpus, vm.wants_qmp = threads, known, vcpus, None
        if found.found_by != "learned":
            vm.found_by = found.found_by
        if vm.found_by not in ("names", "none"):
            self._keep(vm)
        return changed

    def _keep(self, vm: Vm) -> None:
        told = VcpuThreads(vm.vmm.id, vm.learned, frozenset(vm.gone), vm.found_by)
        if self.vcpus.get(vm.sandbox) != told:
            self.vcpus[vm.sandbox] = told
            self.learned = True

    def needing_qmp(self) -> list[Vm]:
        """VMs whose threads only QMP can tell apart and that were not asked yet as they are."""
        wanting = []
        for vm in self.vms.values():
            if vm.type is not VmmType.QEMU or not vm.vmm.stats:
                continue
            if vm.wants_qmp is None:  # reading hundreds of command lines at every resync costs as much as the pass
                vm.wants_qmp = vmm_threads.wants_qmp(_identified(vm), vm.vmm.argv)
            if vm.wants_qmp and vm.qmp_asked != frozenset(vm.vmm.stats):
                wanting.append(vm)
        return wanting


def _borne_out(sandbox: SandboxId, claim: VmmClaim, identity: ThreadId, vmm: VmmProcess) -> bool:
    """Whether a process is what somebody said: another may have its pid by now."""
    if vmm.sandbox == sandbox:
        return True
    if claim.identity is not None:
        return claim.identity == identity and vmm.sandbox is None
    return named_by_kata(vmm, sandbox, claim.uuid)


def _identified(vm: Vm) -> vmm_threads.Identified:
    roles = {tid: (thread.role, thread.vcpu) for tid, thread in vm.vmm.threads.items()}
    return vmm_threads.Identified(roles, vm.found_by, vm.known)

