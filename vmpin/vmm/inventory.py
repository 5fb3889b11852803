"""The VM inventory: each sandbox's VMM and helper processes with all their threads.

It is kept between passes, so that a pass without changes only lists the task directories. A process is assigned to a
sandbox by its command line, or by a claim (Kata's state, a hook) that its command line confirms. A pid alone is never
trusted.
"""

import logging
import time
from collections.abc import Container, Mapping, Sequence
from fnmatch import fnmatchcase

from vmpin.domain.events import VmmClaim
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VcpuState, VcpuThreads, VmThread, named
from vmpin.host.procfs import Procfs, seconds_since_boot
from vmpin.vmm import threads as vmm_threads
from vmpin.vmm.process_table import ROUNDS, SELDOM, ProcessTable
from vmpin.vmm.recognition import Recognized, VmmProcess, evidence_strength, named_by_kata
from vmpin.vmm.virtual_machine import Process, Refresh, Vm

logger = logging.getLogger(__name__)

#: Consecutive passes that identify the threads of an unchanged VM again: while vCPUs are missing, and where only
#: system calls show which threads are vCPUs.
ATTEMPTS, ATTEMPTS_BY_CALLS = 5, 3
#: Seconds for which placement waits for unidentified vCPU threads: each vCPU has to run once, which takes some 20 s in
#: a guest that boots under nested virtualization on a busy node.
PATIENCE = 60.0


class VmInventory:
    """The VMs among the processes below `proc`. :param only: a pattern; sandboxes whose ids do not match are ignored.
    :param vcpus: the vCPU threads identified by an earlier process, from the state file."""

    def __init__(self, proc: Procfs, sys_root: str = "/sys", only: str = "*",
                 vcpus: Mapping[SandboxId, VcpuThreads] | None = None) -> None:
        self.proc, self.sys_root, self.only = proc, sys_root, only
        self.vms: dict[SandboxId, Vm] = {}
        #: The identified vCPU threads, for the state file: busy vCPU threads cannot be identified again after a
        #: restart.
        self.vcpus: dict[SandboxId, VcpuThreads] = dict(vcpus or {})
        #: Whether `vcpus` has changed since this was last set to False.
        self.unsaved = False
        #: Whether every fork marks its process outdated, and every program is inspected when it is executed: then an
        #: unchanged thread count means unchanged threads, and a VMM needs no search among all processes.
        self.forks_reported = False
        self.process_table = ProcessTable(proc)
        #: By sandbox, the pids of VMMs with equally strong evidence for it; the first one is placed.
        self.contested: dict[SandboxId, tuple[int, ...]] = {}
        self._duplicates: set[tuple[SandboxId, int]] = set()
        #: By kernel thread, the process that it works for: kept, because its creator may end before it.
        self._workers: dict[ThreadId, int] = {}
        self._followed: dict[int, tuple[Vm, Process]] | None = None

    def scan(self, claims: Mapping[SandboxId, VmmClaim], full: bool = False) -> set[SandboxId]:
        """List the processes and assign them to sandboxes.
        :param full: whether to read every process again.
        :returns: the sandboxes whose VM appeared, ended or was replaced."""
        if full:
            for _, process in self.followed.values():
                process.mark_outdated(names=True)
        self.process_table.scan(claims, full, self.forks_reported)
        return self.assign(claims)

    def inspect(self, pid: int) -> Recognized | None:
        """Read one process that was just created or executed a program. If it was a VMM and executed another program,
        its VM is dropped. :returns: (main thread, classification, argv); None if it belongs to no sandbox."""
        vm, process = self.followed.get(pid, (None, None))
        recognized = self.process_table.inspect(pid)
        if vm is not None and process is vm.vmm and (recognized is None or recognized[2] != process.argv):
            del self.vms[vm.sandbox]  # an exec keeps pid and start time
            self.unsaved = self.vcpus.pop(vm.sandbox, None) is not None or self.unsaved
            self._followed = None
        return recognized

    @property
    def followed(self) -> Mapping[int, tuple[Vm, Process]]:
        """The processes whose threads are followed, by pid."""
        if self._followed is None:
            self._followed = {process.pid: (vm, process) for vm in self.vms.values() for process in vm.processes()}
        return self._followed

    def helpers(self, sandbox: SandboxId) -> list[Process]:
        """Return a sandbox's helper processes with their current threads, whether or not the sandbox has a VM."""
        processes = [Process(pid, identity, helper.role, argv)
                     for pid, (identity, helper, argv) in self.process_table.helpers.items()
                     if helper.sandbox == sandbox]
        return [process for process in processes if process.read_threads(self.proc, reread=True) is Refresh.CHANGED]

    def assign(self, claims: Mapping[SandboxId, VmmClaim]) -> set[SandboxId]:
        """Assign the processes listed last to sandboxes. :returns: the sandboxes whose VM appeared, ended or was
        replaced."""
        chosen = self._choose_vmms(claims)
        changed = self._assign_vmms(chosen) | self._assign_helpers()
        self._followed = None
        return changed

    def _choose_vmms(self, claims: Mapping[SandboxId, VmmClaim]) -> dict[SandboxId, int]:
        """Choose each sandbox's VMM: the claimed process if its command line confirms the claim, otherwise a running
        process that names the sandbox. Of several the one with the strongest evidence is chosen, among equals the
        eldest; the others are ignored. :returns: pids by sandbox."""
        vmms = self.process_table.vmms
        chosen: dict[SandboxId, int] = {}
        for sandbox, claim in claims.items():
            candidate = vmms.get(claim.pid)
            if candidate is not None and _confirms(sandbox, claim, *candidate):
                chosen[sandbox] = claim.pid
        claimed = set(chosen.values())
        rivals: dict[SandboxId, list[int]] = {}
        for pid, (_, vmm, _) in sorted(vmms.items(), key=lambda item: item[1][0].starttime):
            if vmm.sandbox is None or pid in claimed:
                continue
            if chosen.setdefault(vmm.sandbox, pid) != pid:
                rivals.setdefault(vmm.sandbox, [chosen[vmm.sandbox]]).append(pid)
        self.contested = {}
        for sandbox, pids in rivals.items():
            self._choose_among(sandbox, pids, claimed, chosen)
        self._duplicates = {duplicate for duplicate in self._duplicates if duplicate[1] in vmms}
        if self.only == "*":
            return chosen
        self.contested = {sandbox: pids for sandbox, pids in self.contested.items()
                          if fnmatchcase(sandbox, self.only)}
        return {sandbox: pid for sandbox, pid in chosen.items() if fnmatchcase(sandbox, self.only)}

    def _choose_among(self, sandbox: SandboxId, pids: Sequence[int], claimed: Container[int],
                      chosen: dict[SandboxId, int]) -> None:
        """Choose a sandbox's VMM among several processes that name it, eldest first. Those with equal evidence are
        recorded in `contested`."""
        vmms = self.process_table.vmms
        running = [pid for pid in pids if self.process_table.is_running(vmms[pid][0])] or [pids[-1]]
        if pids[0] in claimed and pids[0] in running:
            best = [pids[0]]
        elif len(running) == 1:
            best = running
        else:
            strength = {pid: evidence_strength(self.proc, pid, sandbox, running) for pid in running}
            most = max(strength.values())
            best = [pid for pid in running if strength[pid] == most]
        chosen[sandbox] = best[0]
        if len(best) > 1:
            self.contested[sandbox] = tuple(best)
        for pid in running:
            if pid != best[0] and (sandbox, pid) not in self._duplicates:
                self._duplicates.add((sandbox, pid))
                logger.warning("second VMM ignored sandbox=%s pid=%d: pid=%d is %s", sandbox, pid, best[0],
                               "the elder, and all other evidence is equal" if pid in best else "its VMM: uid, "
                               "shim, cgroup and network namespace, or Kata's state, show it")

    def _assign_vmms(self, chosen: Mapping[SandboxId, int]) -> set[SandboxId]:
        """Drop VMs without a VMM, and create a VM for each new VMM. :returns: the sandboxes of both."""
        changed = {sandbox for sandbox in self.vms if sandbox not in chosen}
        for sandbox in changed:
            del self.vms[sandbox]
        for sandbox, pid in chosen.items():
            identity, vmm, argv = self.process_table.vmms[pid]
            vm = self.vms.get(sandbox)
            if vm is None or vm.vmm.id != identity:
                vm = Vm(sandbox, vmm.type, Process(pid, identity, ThreadRole.EMULATOR, argv))
                saved = self.vcpus.get(sandbox)
                if saved is not None and saved.vmm == identity:
                    vm.vcpu_threads, vm.ended_vcpus, vm.found_by = dict(saved.threads), set(saved.gone), saved.found_by
                self.vms[sandbox] = vm
                changed.add(sandbox)
        return changed

    def _assign_helpers(self) -> set[SandboxId]:
        """Assign helpers and kernel threads to VMs. :returns: the sandboxes for which they have changed."""
        helpers: dict[SandboxId, list[Process]] = {}
        for pid, (identity, helper, argv) in self.process_table.helpers.items():
            vm = self.vms.get(helper.sandbox) if helper.sandbox is not None else None
            if vm is None:
                continue
            old = next((process for process in vm.helpers
                        if process.id == identity and process.role is helper.role), None)
            helpers.setdefault(vm.sandbox, []).append(old or Process(pid, identity, helper.role, argv))
        kernel: dict[int, list[VmThread]] = {}
        before, self._workers = self._workers, {}
        for creator, thread in self.process_table.kernel.values():
            owner = before[thread.id] if thread.id in before else self._process_of(creator, thread)
            self._workers[thread.id] = owner
            kernel.setdefault(owner, []).append(thread)
        changed = set()
        for sandbox, vm in self.vms.items():
            own, threads = helpers.get(sandbox, []), kernel.get(vm.vmm.pid, [])
            if own != vm.helpers or threads != vm.kernel_threads:
                vm.helpers, vm.kernel_threads = own, threads
                changed.add(sandbox)
        return changed

    def _process_of(self, creator: int, worker: VmThread) -> int:
        """The process of the thread that created a kernel thread, whose name has that thread's number, not the
        process's: Dragonball starts vhost on a vCPU thread, Cloud Hypervisor creates the VM on a thread named vmm.
        0 if the thread has ended. (drivers/vhost/vhost.c before 6.4: vhost_dev_set_owner; virt/kvm/kvm_main.c before
        6.13: kvm_vm_create_worker_thread)"""
        if creator in self.process_table.vmms:
            return creator
        stat = self.proc.stat(creator)
        old = stat is not None and stat.starttime <= worker.id.starttime
        return (self.proc.tgid(creator) or 0) if old else 0

    def refresh(self, vm: Vm) -> Refresh:
        """Read a VM's threads, and identify them again if the result may have changed. A VM whose VMM has ended is
        dropped."""
        changed = False
        table = self.process_table
        turn = table.is_turn(vm.vmm.pid, ROUNDS)
        reread = table.is_turn(vm.vmm.pid, SELDOM) if self.forks_reported else turn
        for process in vm.processes():
            outcome = process.read_threads(self.proc, reread, self.forks_reported)
            if outcome is Refresh.ENDED and process is vm.vmm:
                self._drop(vm)
                return Refresh.ENDED
            if outcome is not Refresh.UNCHANGED:
                changed = True
                vm.roles_outdated = True  # at once: reading the next process may fail
        if vm.roles_outdated or vm.qmp is not None or self._may_identify_more(vm, turn):
            vm.attempts = 0 if changed else vm.attempts + 1
            changed = self._identify(vm) or changed
            vm.roles_outdated = False
        changed = _renew_vcpu_state(vm) or changed
        return Refresh.CHANGED if changed else Refresh.UNCHANGED

    @staticmethod
    def _may_identify_more(vm: Vm, turn: bool) -> bool:
        """Whether unchanged threads are identified again. Sampling system calls costs milliseconds, so it is done in a
        few consecutive passes, and then in one of ROUNDS passes (`turn`). If names do not identify vCPUs, all vCPUs
        may seem identified although a vCPU that was just plugged in has not entered KVM_RUN yet, when a vCPU with its
        number was unplugged before."""
        if not vm.vcpus_identified:
            return turn or vm.attempts < ATTEMPTS
        return vm.found_by in ("kvm_run", "debugfs") and (turn or vm.attempts < ATTEMPTS_BY_CALLS)

    def _drop(self, vm: Vm) -> None:
        """Drop a VM whose VMM has ended."""
        del self.vms[vm.sandbox]
        self.process_table.forget(vm.vmm.pid)
        self._followed = None

    def _identify(self, vm: Vm) -> bool:
        """Identify the roles of the VMM's threads. :returns: whether roles, threads or vCPUs have changed."""
        process = vm.vmm
        vm.ended_vcpus.update(vcpu for thread, vcpu in vm.vcpu_threads.items() if not process.has(thread))
        identified = vmm_threads.identify(vm, self.proc, f"{self.sys_root}/kernel/debug")
        vm.qmp = None  # it was about an older thread set; what it identified is kept
        threads, vm.vcpu_threads, vm.iothreads, pid = {}, {}, set(), process.pid
        iothread = ThreadRole.IOTHREAD  # an enum lookup is a function call
        for tid, stat in process.stats.items():
            identity, (role, vcpu) = named(ThreadId, (tid, stat.starttime)), identified.roles[tid]
            threads[tid] = named(VmThread, (identity, role, stat.comm, pid, vcpu))
            if vcpu is not None:
                vm.vcpu_threads[identity] = vcpu
            elif role is iothread:
                vm.iothreads.add(identity)
        vm.ended_vcpus.difference_update(vm.vcpu_threads.values())
        vcpus = vm.guest_vcpus(sorted(vm.vcpu_threads.values()))
        changed = (threads, identified.complete, vcpus) != (process.threads, vm.vcpus_identified, vm.vcpus)
        process.threads, vm.vcpus, vm.needs_qmp = threads, vcpus, None
        if identified.complete:
            vm.vcpu_state = VcpuState.IDENTIFIED
        elif vm.vcpus_identified:
            vm.vcpu_state = VcpuState.UNIDENTIFIED
        if identified.found_by != "learned":
            vm.found_by = identified.found_by
        if vm.found_by not in ("names", "none"):
            self._save_vcpus(vm)
        return changed

    def _save_vcpus(self, vm: Vm) -> None:
        saved = VcpuThreads(vm.vmm.id, vm.vcpu_threads, frozenset(vm.ended_vcpus), vm.found_by)
        if self.vcpus.get(vm.sandbox) != saved:
            self.vcpus[vm.sandbox] = saved
            self.unsaved = True

    def needing_qmp(self) -> list[Vm]:
        """Return the VMs whose threads only QMP can identify, and whose current thread set was not queried yet."""
        needing = []
        for vm in self.vms.values():
            if vm.type.qmp_sockets is None or not vm.vmm.stats:
                continue
            if vm.needs_qmp is None:  # parsing hundreds of command lines costs as much as a pass
                vm.needs_qmp = vmm_threads.wants_qmp(vm.type, vm.vmm.argv, vm.vcpus_identified, bool(vm.iothreads))
            if vm.needs_qmp and vm.qmp_queried != frozenset(vm.vmm.stats):
                needing.append(vm)
        return needing


def _renew_vcpu_state(vm: Vm) -> bool:
    """Update whether placement waits for unidentified vCPUs. :returns: whether this has changed."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    if vm.vcpus_identified:
        vm.unidentified_since = now
        return False
    if vm.unidentified_since is None:
        vm.unidentified_since = seconds_since_boot(vm.vmm.id.starttime)
    state = VcpuState.AWAITED if now - vm.unidentified_since < PATIENCE else VcpuState.UNIDENTIFIED
    changed, vm.vcpu_state = state is not vm.vcpu_state, state
    return changed


def _confirms(sandbox: SandboxId, claim: VmmClaim, identity: ThreadId, vmm: VmmProcess, argv: list[str]) -> bool:
    """Whether a process's command line confirms a claim about its pid, which may have been reused."""
    if vmm.sandbox == sandbox:
        return True
    if claim.identity is not None:
        return claim.identity == identity and vmm.sandbox is None
    return named_by_kata(vmm, argv, sandbox, claim.uuid)
