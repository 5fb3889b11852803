"""Places new programs and threads on kernel events, ahead of the next pass over their VM.

A process that becomes a sandbox's VMM or virtiofsd gets the sandbox's CPUs while it has a single thread, so that its
later threads inherit them. A thread created in a followed process is compared individually. Masks are decided and set
as in a pass: the placement has the mask, `Reconciler.pin_newborn` sets it. What a single event cannot show, such as
which vCPU an unnamed thread is, is left to a pass over its sandbox.

Kata's shim keeps its mask until its VMM runs: it sizes the VM by that mask. The Go shim refuses the annotations
default_vcpus and default_maxvcpus when they exceed runtime.NumCPU(), which Go reads when the process starts
(src/runtime/pkg/oci/utils.go, addHypervisorCPUOverrides); runtime-rs cuts every VM's maximum to num_cpus::get(), which
reads the calling thread's mask while the configuration is loaded (src/libs/kata-types/src/config/hypervisor/mod.rs,
CpuInfo::adjust_config). Both happen before the VMM is executed, or Dragonball's first vCPU thread is created; the pass
over the new VM then places the shim.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VcpuId, VmThread
from vmpin.domain.sandbox_placement import Placement
from vmpin.host import affinity
from vmpin.host.procfs import PF_USER_WORKER, Stat
from vmpin.pinning.apply import Outcome
from vmpin.procevents.latency import LatencyBook, Newborn
from vmpin.reconcile.reconciler import PassReport, Reconciler
from vmpin.vmm.recognition import VmmProcess, is_shim, kernel_thread_owner
from vmpin.vmm.threads import EMULATOR, ROLE_BY_GROUP, read_name
from vmpin.vmm.virtual_machine import Process, Vm
from vmpin.vmm.vmms import library_with
from vmpin.wire.proc_events import KTHREADD, Comm, Event, Exec, Fork

logger = logging.getLogger(__name__)

#: How often a new process's threads are listed, and how many of its children are placed with it. A VMM needs no more.
_LISTINGS, _CHILDREN = 4, 8
#: The most processes whose last inspection time is kept.
_REMEMBERED = 4096


@dataclass
class FollowUp:
    """Sandboxes and threads that need a pass after some events."""

    #: Sandboxes to reconcile now, and a moment later because their new threads are in place already.
    now: set[SandboxId] = field(default_factory=set)
    soon: set[SandboxId] = field(default_factory=set)
    #: Sandboxes whose VMM has just started.
    started: set[SandboxId] = field(default_factory=set)
    #: Sandboxes with new threads whose names do not show their roles.
    unnamed: set[SandboxId] = field(default_factory=set)
    #: New kernel threads, which have no names yet.
    kernel_threads: set[int] = field(default_factory=set)
    #: New threads of VMMs that may be kernel workers (vhost): those without a COMM event since.
    maybe_workers: dict[int, Vm] = field(default_factory=dict)
    #: Whether the set of followed processes and helpers has changed.
    processes_changed: bool = False
    #: Whether any event was of a followed process.
    relevant: bool = False


class NewbornPlacer:
    """Handles events in order. `after_pass` must be called after every pass."""

    def __init__(self, reconciler: Reconciler) -> None:
        self.book = LatencyBook(reconciler)
        self._reconciler, self._view = reconciler, reconciler.view
        self._proc = self._view.proc
        #: The view's `followed`, cached for a batch because each event needs it.
        self._followed: Mapping[int, tuple[Vm, Process]] = {}
        #: Processes placed at exec that may not belong to a VM yet, by pid: their placements and main threads.
        self._early: dict[int, tuple[Placement, VmThread]] = {}
        #: Time of the last inspection of a process after an exec, by pid (CLOCK_MONOTONIC ns, as in events), since the
        #: last pass over everything.
        self._inspected: dict[int, int] = {}
        #: The vCPU of each sandbox that was last placed ahead of a pass.
        self._last_named: dict[SandboxId, VcpuId] = {}
        self._handlers: dict[type, Callable[[Any, FollowUp], None]] = {
            Fork: self._forked, Exec: self._executed, Comm: self._renamed}

    def handle(self, events: Iterable[Event]) -> FollowUp:
        """Place the reported programs and threads. :returns: the work that is left to passes."""
        follow_up = FollowUp()
        if len(self._inspected) > _REMEMBERED:
            self._inspected.clear()
        handlers = self._handlers
        self._followed = self._view.followed
        for event in events:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event, follow_up)
        for tid, vm in follow_up.maybe_workers.items():
            stat = self._proc.thread_stat(vm.vmm.pid, tid)
            if stat is not None and stat.flags & PF_USER_WORKER:
                follow_up.now.add(vm.sandbox)  # the kernel named it, which causes no event
        return follow_up

    @property
    def early(self) -> Set[int]:
        """The processes that were placed before their VMs were known."""
        return self._early.keys()

    def after_pass(self, report: PassReport, everything: bool = False) -> None:
        """Confirm early placements after a pass; after a pass over everything also forget ended processes."""
        self.book.after_pass(report.results, everything)
        if everything:
            view = self._view
            self._inspected.clear()
            self._last_named = {sandbox: vcpu for sandbox, vcpu in self._last_named.items() if sandbox in view.vms}
            helped = view.helped() if self._early else ()
            self._early = {pid: (placement, main) for pid, (placement, main) in self._early.items()
                           if pid not in view.followed and placement.sandbox in helped
                           and fnmatchcase(placement.sandbox, view.config.watch.pattern)}

    def place_kernel_threads(self, pids: Iterable[int]) -> set[SandboxId]:
        """Inspect new kernel threads once they have names. :returns: the sandboxes whose VMs changed."""
        changed = False
        for pid in pids:
            stat = self._proc.stat(pid)
            owner = kernel_thread_owner(stat.comm) if stat is not None and stat.kernel_thread else None
            if owner is not None and self._proc.tgid(owner[1]) in self._view.followed:
                self._reconciler.inspect_process(pid)
                changed = True
        return self._assign_processes() if changed else set()

    def _assign_processes(self) -> set[SandboxId]:
        """Assign the inspected processes to sandboxes. :returns: the sandboxes whose VM has changed."""
        changed = self._reconciler.assign_processes()
        self._followed = self._view.followed
        return changed

    # A process executes a program

    def _executed(self, event: Exec, follow_up: FollowUp) -> None:
        # The event comes after the program was loaded (fs/exec.c: exec_binprm), so one inspection covers all earlier
        # exec events of the process.
        pid = event.process
        if event.time <= self._inspected.get(pid, 0):
            return
        self._inspected[pid] = time.monotonic_ns()
        before = self._view.followed.get(pid)
        self._early.pop(pid, None)
        recognized = self._reconciler.inspect_process(pid)
        follow_up.processes_changed |= recognized is not None or before is not None
        if recognized is None:
            if before is not None:  # a followed program has been replaced by another
                follow_up.relevant = True
                vm, _ = before
                follow_up.now |= {vm.sandbox, *self._assign_processes()}
            return
        main, process, argv = recognized
        is_vmm = isinstance(process, VmmProcess)
        if is_shim(process):
            logger.debug("started sandbox=%s role=shim pid=%d mask=kept", process.sandbox, pid)
        elif process.sandbox is not None and self._is_to_be_placed(process.sandbox, pid, is_vmm):
            follow_up.relevant = True
            role = ThreadRole.EMULATOR if is_vmm else ThreadRole.VIRTIOFSD
            name = argv[0].rpartition("/")[2][:15]
            self._place_process(process.sandbox, VmThread(main, role, name, pid), event.time)
        changed = self._assign_processes()
        followed = self._view.followed.get(pid)
        if followed is not None:
            vm, _ = followed
            follow_up.now |= {*changed, vm.sandbox}
            if is_vmm:
                follow_up.started.add(vm.sandbox)

    def _is_to_be_placed(self, sandbox: SandboxId, pid: int, vmm: bool) -> bool:
        """Whether a new VMM or virtiofsd is to be placed. False for a sandbox that `watch.only` excludes, and for a
        second VMM beside a running one, because any user can run a program with such a command line."""
        view = self._view
        if not fnmatchcase(sandbox, view.config.watch.pattern):
            return False
        other = view.vms.get(sandbox) if vmm else None
        return other is None or other.vmm.pid == pid or not view.runs(other.vmm.id)

    def _place_process(self, sandbox: SandboxId, main: VmThread, born: int) -> None:
        """Place a process that executed a program, and the processes that it forked since. With QEMU's -daemonize the
        VM is a grandchild, which may have been forked before the mask was set."""
        placement = self._view.placement_at_exec(sandbox)
        if placement is None:
            return
        argv, family = self._proc.cmdline(main.pid), [main]
        for process in family:  # extended in the loop
            if self._place_threads(placement, process, born):
                family += self._forks_of(process, argv, _CHILDREN + 1 - len(family))

    def _forks_of(self, process: VmThread, argv: list[str], most: int) -> Iterator[VmThread]:
        """Yield the main threads of a process's children with the same command line that are not placed yet."""
        proc = self._proc
        for child in map(int, proc.children(process.pid)[:most]):
            stat = proc.thread_stat(child, child)
            if stat is not None and child not in self._early and proc.cmdline(child) == argv:
                yield VmThread(ThreadId(child, stat.starttime), process.role, stat.comm, child)

    def _place_threads(self, placement: Placement, main: VmThread, born: int) -> bool:
        """Place all threads of a process, the main thread first. :returns: whether the main thread is in place."""
        proc = self._proc
        self._early[main.pid] = placement, main
        done = self._place(placement, main, born)
        self.book.record(done)
        if done.mask is None:
            return False
        logger.log(logging.INFO if main.role is ThreadRole.EMULATOR else logging.DEBUG,
                   "started sandbox=%s role=%s pid=%d mask=%s", placement.sandbox, main.role, main.pid, done.mask)
        listed = {str(main.pid)}
        for _ in range(_LISTINGS):
            more = set(proc.tids(main.pid)) - listed
            listed |= more
            for tid in more:
                stat = proc.thread_stat(main.pid, tid)
                if stat is not None:
                    thread = VmThread(ThreadId(int(tid), stat.starttime), main.role, stat.comm, main.pid)
                    self.book.record(self._place(placement, thread, born), reported=False)
        return True

    # A thread is created

    def _forked(self, event: Fork, follow_up: FollowUp) -> None:
        if event.child == event.process:
            if event.parent_process == KTHREADD:
                follow_up.kernel_threads.add(event.child)
            return
        followed = self._followed.get(event.process)
        if followed is not None:
            follow_up.relevant = True
            vm, process = followed
            process.mark_outdated()
            self._place_followed(event, vm, process, follow_up)
        elif event.process in self._early:  # its VM is not known yet
            follow_up.relevant = True
            placement, main = self._early[event.process]
            state = self._view.sandboxes.get(placement.sandbox)
            if state is None or not state.suspended:
                self.book.record(self._place_created(placement, main.role, main.id, event)[0])

    def _place_followed(self, event: Fork, vm: Vm, process: Process, follow_up: FollowUp) -> None:
        """Place a new thread of a VM's process."""
        placement = self._view.placements.get(vm.sandbox)
        if placement is None:
            return
        listed = process.threads.get(event.child)
        if listed is not None and listed.role is not process.role and self._keep_identified(placement, listed, event):
            return
        new, stat = self._place_created(placement, process.role, process.id, event)
        if process is not vm.vmm:
            self.book.record(new)
            return
        self.book.record(new, provisional=True)
        if new.mask is None:
            return
        masks = placement.others
        if vm.found_by != "names":
            follow_up.unnamed.add(vm.sandbox)
        elif masks[ThreadRole.EMULATOR] == masks[ThreadRole.VHOST] == masks[ThreadRole.KVM]:
            return
        elif stat is None:
            follow_up.maybe_workers[event.child] = vm
        elif stat.flags & PF_USER_WORKER:
            follow_up.now.add(vm.sandbox)

    def _keep_identified(self, placement: Placement, thread: VmThread, event: Fork) -> bool:
        """Keep the mask of a thread whose event comes after the pass that identified it.
        :returns: False if its tid belongs to another thread by now."""
        stat, mask = self._proc.thread_stat(thread.pid, thread.id.tid), affinity.get(thread.id.tid)
        if stat is None or mask is None or stat.starttime != thread.id.starttime:
            return False
        cpus = CpuSet(mask)
        wanted = placement.cpus_for(thread.role, thread.vcpu)
        self.book.record(Newborn.of(placement, thread.id.tid, event.time, wanted, cpus, cpus), provisional=True)
        return True

    def _place_created(self, placement: Placement, role: ThreadRole, main: ThreadId,
                       event: Fork) -> tuple[Newborn, Stat | None]:
        """Set the mask of a newly created thread to that of its process's other threads. :returns: the thread, and its
        stat if that was read, which is only needed to set a mask."""
        tid, wanted, mask = event.child, placement.cpus_for(role, None), affinity.get(event.child)
        if mask is None:
            return Newborn.of(placement, tid, event.time, ended=True), None
        if wanted is None or mask == wanted.frozen():
            cpus = CpuSet(mask) if wanted is None else wanted
            return Newborn.of(placement, tid, event.time, wanted, cpus, cpus), None
        stat = self._proc.thread_stat(main.tid, tid)
        if stat is None or not self._view.runs(main):
            return Newborn.of(placement, tid, event.time, ended=True), stat
        thread = VmThread(ThreadId(tid, stat.starttime), role, stat.comm, main.tid)
        return self._set_mask(placement, thread, event.time, CpuSet(mask)), stat

    def _place(self, placement: Placement, thread: VmThread, born: int) -> Newborn:
        """Set a thread's mask to that of its role."""
        mask = affinity.get(thread.id.tid)
        if mask is None:
            return Newborn.of(placement, thread.id.tid, born, ended=True)
        return self._set_mask(placement, thread, born, CpuSet(mask))

    def _set_mask(self, placement: Placement, thread: VmThread, born: int, inherited: CpuSet) -> Newborn:
        """Set a thread's mask to that of its role, unless it has that. :param inherited: its mask now."""
        tid, wanted = thread.id.tid, placement.cpus_for(thread.role, None)
        result = self._reconciler.pin_newborn(placement, thread, inherited)
        if result is None:
            return Newborn.of(placement, tid, born, wanted, inherited, inherited)
        placed = result.placed
        if placed is not None:
            logger.debug("placed sandbox=%s thread=%d role=%s mask=%s was=%s", placement.sandbox, tid, thread.role,
                         placed, inherited)
        return Newborn.of(placement, tid, born, wanted, inherited, placed, result.outcome is Outcome.GONE)

    # A thread is named

    def _renamed(self, event: Comm, follow_up: FollowUp) -> None:
        followed = self._view.followed.get(event.process)
        if followed is not None:
            follow_up.relevant = True
            follow_up.maybe_workers.pop(event.thread, None)
            vm, process = followed
            if process is vm.vmm:
                self._place_named(event, vm, follow_up)
        elif library_with([event.name]) is not None and event.process in self._view.helper_pids:
            # A shim with a library VMM counts as the VMM from the naming of its first vCPU on.
            follow_up.relevant = True
            self._reconciler.inspect_process(event.process)
            changed = self._assign_processes()
            follow_up.now |= changed
            follow_up.started |= changed

    def _place_named(self, event: Comm, vm: Vm, follow_up: FollowUp) -> None:
        """Place a VMM's thread whose new name is that of a vCPU, ahead of the pass that identifies it, and mark its
        name as new. A pass must confirm it, unless the name is that of an emulator thread. A thread can set any name,
        so a name is acted on only if the following pass will accept it as well."""
        group, _, vcpu = read_name(vm.type.thread_names, event.name)
        if vcpu is None and (group is None or ROLE_BY_GROUP[group] is EMULATOR):
            self.book.confirm(event.thread)
            return
        again = event.thread in vm.vmm.young  # a thread may rename itself all the time: leave it to the pass
        vm.vmm.young.add(event.thread)
        # Names are ignored if the VM's other vCPUs were not identified by names.
        can_wait = vcpu is not None and vm.found_by == "names" and not again and (
            self._place_vcpu(event.thread, vm, vcpu))
        (follow_up.soon if can_wait else follow_up.now).add(vm.sandbox)

    def _place_vcpu(self, tid: int, vm: Vm, vcpu: VcpuId) -> bool:
        """Set a thread's mask to the CPUs of a vCPU.
        :returns: whether the pass over its VM can wait: the thread is in place, and no other thread has to move."""
        current = self._view.placements.get(vm.sandbox)
        planned, mask = self._view.placement_with_vcpu(vm, vcpu), affinity.get(tid)
        wanted = None if planned is None else planned.by_vcpu.get(vcpu)
        if current is None or planned is None or wanted is None or mask is None or not self._view.runs(vm.vmm.id):
            return False
        last, self._last_named[vm.sandbox] = self._last_named.get(vm.sandbox, vcpu), vcpu
        if mask != wanted.frozen():
            stat = self._proc.thread_stat(vm.vmm.pid, tid)
            if stat is None or not self._is_plausible(vm, ThreadId(tid, stat.starttime), vcpu):
                return False
            thread = VmThread(ThreadId(tid, stat.starttime), ThreadRole.VCPU, stat.comm, vm.vmm.pid, vcpu)
            result = self._reconciler.pin_newborn(planned, thread, CpuSet(mask))
            if result is None or result.placed is None:
                return False
            self.book.moved(tid, result.placed)
        # No other thread has to move, and no other new vCPU was placed since the last pass without regard to this one.
        return planned is current or (vm.vcpus_identified and last in {vcpu, *current.by_vcpu}
                                      and planned.without_vcpu(vcpu) == current.without_vcpu(vcpu))

    def _is_plausible(self, vm: Vm, thread: ThreadId, vcpu: VcpuId) -> bool:
        """Whether a pass will accept a name. It will not, and would move the thread back, if the thread is known as
        another vCPU, or if another running thread is this vCPU."""
        return vm.vcpu_threads.get(thread, vcpu) == vcpu and not any(
            number == vcpu and other != thread and self._view.runs(other) for other, number in vm.vcpu_threads.items())
