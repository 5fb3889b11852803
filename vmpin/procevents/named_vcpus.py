"""Places a VMM's thread whose new name is that of a vCPU, ahead of the pass that identifies it.

A thread can choose any name, so a name is acted on only if the following pass will accept it as well.
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
from vmpin.vmm.threads import read_names
from vmpin.vmm.virtual_machine import Vm
from vmpin.wire.proc_events import Comm


class NamedVcpuPlacer:
    """Places vCPU threads by name. `_last` has each sandbox's vCPU that was last placed ahead of a pass."""

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
        """Place a VMM's thread that just got a name, and mark its name as new. A pass must confirm it, unless the name
        is that of an emulator thread."""
        names = read_names(vm.type, vm.vmm.pid, {event.thread: Stat(event.name, "", 0, 0, 0, 0)})
        if not names.vcpus and names.roles[event.thread][0] is ThreadRole.EMULATOR:
            self._book.confirm(event.thread)
            return
        again = event.thread in vm.vmm.young  # a thread may rename itself all the time: leave it to the pass
        vm.vmm.young.add(event.thread)
        vcpu = names.vcpus.get(event.thread)
        # Names are ignored if the VM's other vCPUs were not identified by names.
        can_wait = vcpu is not None and vm.found_by == "names" and not again and self._place(event.thread, vm, vcpu)
        (follow_up.soon if can_wait else follow_up.now).add(vm.sandbox)

    def _place(self, tid: int, vm: Vm, vcpu: VcpuId) -> bool:
        """Set a thread's mask to the CPUs of a vCPU.
        :returns: whether the pass over its VM can wait: the thread is in place, and no other thread has to move."""
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
        """Whether a new vCPU moves no other thread, and no other new vCPU was placed since the last pass without
        regard to this one."""
        return then is now or (vm.vcpus_identified and then.without_vcpu(vcpu) == now.without_vcpu(vcpu)
                               and self._last.get(vm.sandbox, vcpu) in {vcpu, *now.by_vcpu})

    def _is_plausible(self, vm: Vm, thread: ThreadId, vcpu: VcpuId) -> bool:
        """Whether a pass will accept a name. It will not, and would move the thread back, if the thread is known as
        another vCPU, or if another running thread is this vCPU."""
        return vm.vcpu_threads.get(thread, vcpu) == vcpu and not any(
            other != thread and number == vcpu and self._runs(other) for other, number in vm.vcpu_threads.items())
