"""What the kernel tells of new programs and threads, made true at once: ahead of the next pass over their VM.

A process that is to be a sandbox's VMM or virtiofsd is put where the sandbox belongs while it has one thread, so that
all others are born there; a thread of a process that is followed is looked at by itself. What cannot be told of a
single thread (which vCPU it is) is the pass's, for which the sandbox is named.

Kata's shim keeps its mask until its VMM runs: it sizes the VM by that mask. The Go shim refuses the annotations
default_vcpus and default_maxvcpus when they exceed runtime.NumCPU(), which Go reads when the process starts
(src/runtime/pkg/oci/utils.go, addHypervisorCPUOverrides); runtime-rs cuts every VM's maximum to num_cpus::get(), which
reads the calling thread's mask while the configuration is loaded (src/libs/kata-types/src/config/hypervisor/mod.rs,
CpuInfo::adjust_config). Both are done before the VMM is executed, or Dragonball's first vCPU thread is made; the pass
over the new VM then places the shim. What stays out: hearing it (births), and who may run where.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VcpuId, VmThread
from vmpin.host import affinity
from vmpin.host.procfs import PF_USER_WORKER, Stat
from vmpin.pinning.apply import Outcome
from vmpin.placement import newborn
from vmpin.placement.rules import Placement
from vmpin.procevents.latency import LatencyBook, Placed
from vmpin.reconcile.reconciler import PassReport, Reconciler
from vmpin.vmm.inventory import Process, Vm
from vmpin.vmm.processes import VmmProcess, is_shim, kernel_thread_owner
from vmpin.vmm.thread_names import read_names
from vmpin.vmm.threads import is_dragonball
from vmpin.wire.proc_events import KTHREADD, Comm, Event, Exec, Fork

logger = logging.getLogger(__name__)

#: How often a process that has just begun is asked for more threads, and how many processes that it forked are looked
#: at, theirs among them. Who makes more is no VMM.
_LOOKS, _CHILDREN = 4, 8
#: Of how many processes it is kept when they were looked at.
_REMEMBERED = 4096


@dataclass
class FollowUp:
    """What is left to do: passes over sandboxes, and over those again later whose threads cannot all be told yet."""

    reconcile: set[SandboxId] = field(default_factory=set)
    #: Passes that can wait a moment: what they are to do has been done ahead of them.
    done: set[SandboxId] = field(default_factory=set)
    #: New threads that may be the kernel's own in a VMM (vhost): all but those that named themselves meanwhile.
    nameless: dict[int, Vm] = field(default_factory=dict)
    begun: set[SandboxId] = field(default_factory=set)
    unnamed: set[SandboxId] = field(default_factory=set)
    #: New threads of the kernel, which have no name yet.
    kernel: set[int] = field(default_factory=set)
    #: Whether any event was of a process that is followed.
    ours: bool = False


class _Helper(NamedTuple):
    """A process that was placed when it began, and may have no VM yet."""

    sandbox: SandboxId
    role: ThreadRole
    id: ThreadId
    placement: Placement


class NewbornPlacer:
    """Takes events in. `passed` wants to hear of every pass."""

    def __init__(self, reconciler: Reconciler) -> None:
        self.reconciler = reconciler
        self.view = reconciler.view
        self.book = LatencyBook(reconciler)
        self._helpers: dict[int, _Helper] = {}
        #: The vCPU that each VM got last ahead of the pass that is to say so.
        self._ahead: dict[SandboxId, VcpuId] = {}
        #: When processes that executed something were last looked at (ns, as events have it).
        self._looked: dict[int, int] = {}

    def take(self, events: Iterable[Event]) -> FollowUp:
        """Do at once what can be done."""
        touched = FollowUp()
        if len(self._looked) > _REMEMBERED:
            self._looked.clear()
        early, view = self._helpers, self.view
        for event in events:
            if isinstance(event, Fork):
                if event.child != event.process:
                    if (known := view.followed.get(event.process)) is not None:
                        known[1].grown = True
                        self._born(event, *known, touched)
                    elif event.process in early:
                        self._born_early(event, early[event.process], touched)
                elif event.parent_process == KTHREADD:
                    touched.kernel.add(event.child)
            elif isinstance(event, Exec):
                # What executes again and again is looked at once for all that came before: the event comes when the
                # program is there (fs/exec.c: exec_binprm).
                if event.time > self._looked.get(event.process, 0):
                    self._looked[event.process] = time.monotonic_ns()
                    self._executed(event, touched)
            elif isinstance(event, Comm):
                if (known := view.followed.get(event.process)) is not None:
                    self._named(event, *known, touched)
                elif is_dragonball([event.name]) and event.process in view.helper_pids:
                    self._dragonball(event.process, touched)
        for tid, vm in touched.nameless.items():
            stat = self.view.proc.thread_stat(vm.vmm.pid, tid)
            if stat is not None and stat.flags & PF_USER_WORKER:
                touched.reconcile.add(vm.sandbox)  # the kernel has named it, and tells nobody
        return touched

    def passed(self, report: PassReport, everything: bool = False) -> None:
        """After a pass, over everything or over some sandboxes."""
        self.book.passed(report.results, everything)
        view = self.view
        if everything and self._ahead:
            self._ahead = {sandbox: vcpu for sandbox, vcpu in self._ahead.items() if sandbox in view.vms}
        if everything and self._helpers:
            helped = view.helped()
            self._helpers = {pid: helper for pid, helper in self._helpers.items()
                             if pid not in view.followed and helper.sandbox in helped
                             and fnmatchcase(helper.sandbox, view.config.watch.pattern)}

    # A process

    def _executed(self, event: Exec, touched: FollowUp) -> None:
        view, pid = self.view, event.process
        known = view.followed.get(pid)
        self._helpers.pop(pid, None)
        found = self.reconciler.inspect_process(pid)
        if found is None:
            if known is not None:  # what it was has ended
                touched.ours = True
                touched.reconcile |= {known[0].sandbox, *self.reconciler.assign_processes()}
            return
        main, what, argv = found
        if (what.sandbox is not None and fnmatchcase(what.sandbox, view.config.watch.pattern) and not is_shim(what)
                and not (isinstance(what, VmmProcess) and self._has_another(what.sandbox, pid))):
            touched.ours = True
            role = ThreadRole.EMULATOR if isinstance(what, VmmProcess) else what.role
            name = argv[0].rpartition("/")[2][:15]
            self._place_process(what.sandbox, VmThread(main, role, name, pid), event.time)
        elif is_shim(what):
            logger.debug("begins sandbox=%s role=shim pid=%d mask=kept", what.sandbox, pid)
        changed = self.reconciler.assign_processes()
        followed = view.followed.get(pid)
        if followed is not None:
            touched.reconcile |= {*changed, followed[0].sandbox}
            if isinstance(what, VmmProcess):
                touched.begun.add(followed[0].sandbox)

    def _has_another(self, sandbox: SandboxId, pid: int) -> bool:
        """Whether a sandbox has a VMM that runs: a second one is left alone, whatever it says of itself."""
        vm = self.view.vms.get(sandbox)
        return vm is not None and vm.vmm.pid != pid and self.view.runs(vm.vmm.id)

    def _place_process(self, sandbox: SandboxId, main: VmThread, born: int) -> None:
        """A process that has just begun, and what it may have made meanwhile."""
        view = self.view
        placement = view.placement_at_exec(sandbox)
        if placement is None:
            return
        # QEMU's -daemonize: the VM is a child's child, both of which may have been forked before the mask was set.
        argv, family = view.proc.cmdline(main.pid), [main]
        for process in family:  # which grows
            if not self._place_threads(placement, process, born):
                continue
            for child in view.proc.children(process.pid)[:_CHILDREN + 1 - len(family)]:
                stat = view.proc.thread_stat(child, child)
                if stat is not None and int(child) not in self._helpers and view.proc.cmdline(child) == argv:
                    family.append(VmThread(ThreadId(int(child), stat.starttime), main.role, stat.comm, int(child)))

    def _place_threads(self, placement: Placement, main: VmThread, born: int) -> bool:
        """All threads of a process, by its main thread. :returns: whether that has its mask."""
        view, sandbox = self.view, placement.sandbox
        self._helpers[main.pid] = _Helper(sandbox, main.role, main.id, placement)
        if (done := self._place(placement, main, born)) is None:
            return False
        self.book.placed(sandbox, born, done)
        logger.log(logging.INFO if main.role is ThreadRole.EMULATOR else logging.DEBUG,
                   "begins sandbox=%s role=%s pid=%d mask=%s", sandbox, main.role, main.pid, done.cpus)
        looked = {str(main.pid)}
        for _ in range(_LOOKS):
            more = set(view.proc.tids(main.pid)) - looked
            looked |= more
            for tid in more:
                if (stat := view.proc.thread_stat(main.pid, tid)) is not None:
                    thread = VmThread(ThreadId(int(tid), stat.starttime), main.role, stat.comm, main.pid)
                    if (done := self._place(placement, thread, born)) is not None:
                        self.book.placed(sandbox, born, done)
                        self.book.ahead(thread.id.tid, told=True)
        return True

    # A thread

    def _born(self, event: Fork, vm: Vm, process: Process, touched: FollowUp) -> None:
        touched.ours = True
        placement = self.view.placements.get(vm.sandbox)
        if placement is None:
            return
        done = self._place_newborn(placement, process.role, process.id, event)
        if done is None:
            return
        if process is not vm.vmm:
            self.book.placed(vm.sandbox, event.time, done)
            return
        self.book.awaits(vm.sandbox, event.child, event.time, done)
        if vm.found_by != "names":
            touched.unnamed.add(vm.sandbox)
        elif _kernels_own_elsewhere(placement):
            touched.nameless[event.child] = vm

    def _born_early(self, event: Fork, helper: _Helper, touched: FollowUp) -> None:
        """Of a process whose VM has not come."""
        touched.ours = True
        state = self.view.sandboxes.get(helper.sandbox)
        if state is not None and state.suspended:
            return
        done = self._place_newborn(helper.placement, helper.role, helper.id, event)
        if done is not None:
            self.book.placed(helper.sandbox, event.time, done)

    def _place_newborn(self, placement: Placement, role: ThreadRole, main: ThreadId, event: Fork) -> Placed | None:
        """Give a thread that was born a moment ago the mask of its process's others; None if it has ended."""
        wanted, mask = placement.cpus_for(role, None), affinity.get(event.child)
        if mask is not None and (wanted is None or mask == wanted.frozen()):
            return self._placed(placement, event.child, CpuSet(mask), wanted, event.time)
        stat = self.view.proc.thread_stat(main.tid, event.child)
        if mask is None or stat is None or not self._lives(main):
            self._ended(placement.sandbox, event.child, event.time)
            return None
        return self._place(placement, VmThread(ThreadId(event.child, stat.starttime), role, stat.comm, main.tid),
                           event.time)

    def _place(self, placement: Placement, thread: VmThread, born: int) -> Placed | None:
        """Give one thread the mask of its role; None if it has ended or was refused."""
        mask, wanted = affinity.get(thread.id.tid), placement.cpus_for(thread.role, None)
        if mask is not None:
            return self._placed(placement, thread.id.tid, CpuSet(mask), wanted, born, thread)
        self._ended(placement.sandbox, thread.id.tid, born)
        return None

    def _ended(self, sandbox: SandboxId, tid: int, born: int) -> None:
        """Before it could be looked at."""
        news = self.book.tells(sandbox, tid, born)
        self.book.account(sandbox).ended += news

    def _placed(self, placement: Placement, tid: int, cpus: CpuSet, wanted: CpuSet | None, born: int,
                thread: VmThread | None = None) -> Placed | None:
        """Set what is not as wanted (that takes `thread`), and keep how it was."""
        sandbox = placement.sandbox
        account = self.book.account(sandbox)
        self.book.meets(sandbox, tid, placement.mask)
        outside = newborn.leaves_sandbox(cpus, placement.mask, wanted)
        news = self.book.tells(sandbox, tid, born)
        account.born_inside += news and not outside
        if thread is not None and wanted is not None and cpus != wanted:
            result = self.reconciler.pin_newborn(sandbox, thread, wanted, cpus)
            # What waits for its cgroup to be rewritten was refused, or is trimmed to a part of its place.
            if result.got is None or result.outcome is Outcome.REFUSED or not result.got <= wanted:
                account.ended += news and result.outcome is Outcome.GONE
                self.reconciler.recheck(sandbox)  # the next pass says why
                return None
            logger.debug("born sandbox=%s thread=%d role=%s mask=%s was=%s", sandbox, tid, thread.role, result.got,
                         cpus)
            cpus = result.got
        now = time.monotonic_ns()
        loose = outside and wanted is None
        if outside and not loose and news:
            self.book.leaked(sandbox, (now - born) / 1e9)
        return Placed(now, cpus, loose, news)

    def _named(self, event: Comm, vm: Vm, process: Process, touched: FollowUp) -> None:
        """A thread has its name: if that says something, which vCPU it is, is for the pass to believe."""
        touched.ours = True
        touched.nameless.pop(event.thread, None)
        if process is not vm.vmm:
            return
        names = read_names(vm.type, process.pid, {event.thread: Stat(event.name, "", 0, 0, 0, 0)})
        if not names.vcpus and names.roles[event.thread][0] is ThreadRole.EMULATOR:
            self.book.settled(event.thread)
            return
        again = event.thread in process.young  # then the pass will do: a thread may rename itself all the time
        process.young.add(event.thread)
        if vm.found_by == "names" and not again:  # as it was of the others: the pass is not waited for
            for vcpu in names.vcpus.values():
                if self._place_vcpu(event.thread, vm, vcpu):
                    touched.done.add(vm.sandbox)
                    return
        touched.reconcile.add(vm.sandbox)

    def _place_vcpu(self, tid: int, vm: Vm, vcpu: VcpuId) -> bool:
        """:returns: whether it is in its place, and nothing follows from it for the VM's other threads."""
        view = self.view
        now, then = view.placements.get(vm.sandbox), view.placement_with_vcpu(vm, vcpu)
        wanted, mask = None if then is None else then.by_vcpu.get(vcpu), affinity.get(tid)
        if now is None or then is None or wanted is None or mask is None or not self._lives(vm.vmm.id):
            return False
        # Of two that come before the pass neither's place takes the other's into account.
        alone = then is now or (vm.known and then.without_vcpu(vcpu) == now.without_vcpu(vcpu)
                                and self._ahead.get(vm.sandbox, vcpu) in {vcpu, *now.by_vcpu})
        self._ahead[vm.sandbox] = vcpu
        if mask == wanted.frozen():
            return alone
        stat = view.proc.thread_stat(vm.vmm.pid, tid)
        if stat is None:
            return False
        thread = VmThread(ThreadId(tid, stat.starttime), ThreadRole.VCPU, stat.comm, vm.vmm.pid, vcpu)
        if not self._believable(vm, thread.id, vcpu):
            return False
        result = self.reconciler.pin_newborn(vm.sandbox, thread, wanted, CpuSet(mask))
        if result.got is None or result.outcome is Outcome.REFUSED or not result.got <= wanted:
            return False
        self.book.moved(tid, result.got)
        return alone

    def _believable(self, vm: Vm, thread: ThreadId, vcpu: VcpuId) -> bool:
        """Whether a pass may believe a name: it does not of a thread that is another vCPU, nor if another thread is
        that one, and would put back who was placed for it. (That of a vCPU that was unplugged has ended.)"""
        return vm.learned.get(thread, vcpu) == vcpu and not any(
            other != thread and number == vcpu and self._lives(other) for other, number in vm.learned.items())

    def _lives(self, thread: ThreadId) -> bool:
        """Whoever has the number of a VMM that has ended makes threads, too."""
        stat = self.view.proc.thread_stat(thread.tid, thread.tid)
        return stat is not None and stat.starttime == thread.starttime

    def _dragonball(self, pid: int, touched: FollowUp) -> None:
        """A shim whose VM is a library's: it is the VMM from its first vCPU's name on."""
        touched.ours = True
        self.reconciler.inspect_process(pid)
        changed = self.reconciler.assign_processes()
        touched.reconcile |= changed
        touched.begun |= changed

    def name(self, pids: Iterable[int]) -> set[SandboxId]:
        """New kernel threads, when they have their names. :returns: the sandboxes for which some work."""
        view = self.view
        found = False
        for pid in pids:
            stat = self.view.proc.stat(pid)
            owner = kernel_thread_owner(stat.comm) if stat is not None and stat.kernel_thread else None
            if owner is not None and owner[1] in view.followed:
                self.reconciler.inspect_process(pid)
                found = True
        return self.reconciler.assign_processes() if found else set()


def _kernels_own_elsewhere(placement: Placement) -> bool:
    """Whether the threads that the kernel makes in a VMM are to be elsewhere than the VMM's own."""
    others = placement.others
    return not others[ThreadRole.EMULATOR] == others[ThreadRole.VHOST] == others[ThreadRole.KVM]
