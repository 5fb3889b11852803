"""Places a VMM's thread that its name shows to be a vCPU, ahead of the pass that identifies it.

A thread chooses its own name, so a name moves a thread only where the pass will believe it, too.
"""

from collections.abc import Container

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VcpuId, VmThread
from vmpin.host import affinity
from vmpin.host.procfs import Stat
from vmpin.placement.rules import Placement
from vmpin.procevents.follow_up import FollowUp
from vmpin.procevents.latency import LatencyBook
from vmpin.reconcile.reconciler import Reconciler
from vmpin.vmm.thread_names import read_names
from vmpin.vmm.virtual_machine import Vm
from vmpin.wire.proc_events import Comm


class NamedVcpuPlacer:
    """Keeps, by sandbox, the vCPU that was placed last ahead of the pass that confirms it."""

    def __init__(self, reconciler: Reconciler, book: LatencyBook) -> None:
        self._reconciler, self._view = reconciler, reconciler.view
        self._runs = self._view.runs
        self._book = book
        self._last: dict[SandboxId, VcpuId] = {}

    def forget_all_but(self, sandboxes: Container[SandboxId]) -> None:
        """Forget VMs that have ended."""
        if self._last:
            self._last = {sandbox: vcpu for sandbox, vcpu in self._last.items() if sandbox in sandboxes}

    def place_named(self, event: Comm, vm: Vm, follow_up: FollowUp) -> None:
        """Place a thread of a VM's VMM that has just been named, and mark it as one whose name is new. A pass has to
        confirm it, unless the name is one of the VMM's own threads."""
        names = read_names(vm.type, vm.vmm.pid, {event.thread: Stat(event.name, "", 0, 0, 0, 0)})
        if not names.vcpus and names.roles[event.thread][0] is ThreadRole.EMULATOR:
            self._book.confirm(event.thread)
            return
        again = event.thread in vm.vmm.young  # then a pass will do: a thread may rename itself all the time
        vm.vmm.young.add(event.thread)
        vcpu = names.vcpus.get(event.thread)
        # Where the VM's other vCPUs were not identified by their names, a name is not acted upon.
        can_wait = vcpu is not None and vm.found_by == "names" and not again and self._place(event.thread, vm, vcpu)
        (follow_up.soon if can_wait else follow_up.now).add(vm.sandbox)

    def _place(self, tid: int, vm: Vm, vcpu: VcpuId) -> bool:
        """Give a thread the CPUs of a vCPU.
        :returns: whether the pass over its VM can wait: it is in place, and no other thread has to move for it."""
        now = self._view.placements.get(vm.sandbox)
        then, mask = self._view.placement_with_vcpu(vm, vcpu), affinity.get(tid)
        wanted = None if then is None else then.by_vcpu.get(vcpu)
        if now is None or then is None or wanted is None or mask is None or not self._runs(vm.vmm.id):
            return False
        can_wait = self._is_independent(vm, vcpu, now, then)
        self._last[vm.sandbox] = vcpu
        if mask == wanted.frozen():
            return can_wait
        stat = self._view.proc.thread_stat(vm.vmm.pid, tid)
        if stat is None:
            return False
        thread = VmThread(ThreadId(tid, stat.starttime), ThreadRole.VCPU, stat.comm, vm.vmm.pid, vcpu)
        if not self._is_plausible(vm, thread.id, vcpu):
            return False
        result = self._reconciler.pin_newborn(then, thread, CpuSet(mask))
        if result is None or result.placed is None:
            return False
        self._book.moved(tid, result.placed)
        return can_wait

    def _is_independent(self, vm: Vm, vcpu: VcpuId, now: Placement, then: Placement) -> bool:
        """Whether a vCPU that comes moves no other thread, and none has come since the last pass whose place did not
        take this one into account."""
        return then is now or (vm.vcpus_identified and then.without_vcpu(vcpu) == now.without_vcpu(vcpu)
                               and self._last.get(vm.sandbox, vcpu) in {vcpu, *now.by_vcpu})

    def _is_plausible(self, vm: Vm, thread: ThreadId, vcpu: VcpuId) -> bool:
        """Whether a pass will believe a name. It does not if the thread is another vCPU, or if another thread that has
        not ended is this vCPU; it would then move the thread back."""
        return vm.vcpu_threads.get(thread, vcpu) == vcpu and not any(
            other != thread and number == vcpu and self._runs(other) for other, number in vm.vcpu_threads.items())
