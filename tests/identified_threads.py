"""The threads of a VMM, identified as in a pass, without a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VcpuId
from vmpin.host.procfs import Procfs, Stat
from vmpin.vmm.threads import Identified, identify
from vmpin.vmm.virtual_machine import Process, QmpAnswer, Vm
from vmpin.vmm.vmm_type import VmmType


def identified(pid: int, vmm: VmmType, argv: Sequence[str], stats: Iterable[tuple[int, Stat]], proc: Procfs, *,
               learned: Mapping[ThreadId, VcpuId] | None = None, gone: Iterable[VcpuId] = (),
               iothreads: Iterable[ThreadId] = (), qmp: QmpAnswer | None = None,
               debugfs: str = "/nonexistent") -> Identified:
    """:param learned, gone, iothreads: what was identified earlier. :param qmp: QEMU's answer."""
    vm = Vm(SandboxId("a"), vmm, Process(pid, ThreadId(pid, 0), ThreadRole.EMULATOR, list(argv)))
    vm.vmm.stats, vm.vcpu_threads = dict(stats), dict(learned or {})
    vm.ended_vcpus, vm.iothreads, vm.qmp = set(gone), set(iothreads), qmp
    return identify(vm, proc, debugfs)


def vcpus_of(found: Identified) -> dict[int, VcpuId]:
    """The vCPUs by thread id."""
    return {tid: vcpu for tid, (_, vcpu) in found.roles.items() if vcpu is not None}
