"""Which thread is which: each strategy on its own finds what QEMU itself reports, on real VMs under KVM."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import pytest
from identified_threads import identified, vcpus_of

from lab.node_tests.conftest import StartsVms
from lab.node_tests.guest import Guest
from lab.node_tests.machines import PATIENCE, NestedVm, until
from lab.variant import Kernel, Variant
from vmpin.domain.events import VmmClaim
from vmpin.domain.model import SandboxId, ThreadRole, VcpuId
from vmpin.host.procfs import PF_USER_WORKER, Procfs
from vmpin.vmm import kvm, qemu, qmp
from vmpin.vmm.inventory import VmInventory
from vmpin.vmm.qemu import cpu_index
from vmpin.vmm.threads import Identified
from vmpin.vmm.virtual_machine import QmpAnswer, Refresh

#: Three cores in a socket: KVM's vcpu ids, which are APIC ids, are 0, 1, 2, 4, 5 and 6.
SMP = "6,sockets=2,cores=3,threads=1,maxcpus=6"
NOWHERE = "/nonexistent"


class Hidden(Procfs):
    """/proc as it is, but for what it says of system calls and descriptors."""

    def __init__(self, *, calls: bool = False, fds: bool = False) -> None:
        super().__init__()
        self._calls, self._fds = calls, fds

    def syscall(self, pid: int | str, tid: int | str) -> str:
        return "" if self._calls else super().syscall(pid, tid)

    def fd_link(self, pid: int | str, fd: int) -> str:
        return "" if self._fds else super().fd_link(pid, fd)


@pytest.fixture(scope="module")
def unnamed() -> Iterator[NestedVm]:
    """A VM whose threads all have QEMU's name, as under Kata."""
    with NestedVm(smp=SMP, iothreads=["io1", "indep_iothread_0"], vhost_net=1, vhost_vsock=True, debug_threads=False,
                  qmp_sockets=1, guest=Guest.IDLE) as vm:
        vm.wait_idle()
        assert {stat.comm for tid, stat in vm.threads() if not stat.flags & PF_USER_WORKER} == {"qemu-system-x86"}
        yield vm


@pytest.fixture(scope="module")
def named() -> Iterator[NestedVm]:
    with NestedVm(smp=SMP, iothreads=["io1", "io2"], vhost_net=2, vhost_vsock=True, guest=Guest.IDLE) as vm:
        vm.wait_idle()
        yield vm


def identify_threads(vm: NestedVm, procfs: Procfs | None = None, debugfs: str = NOWHERE,
         answer: QmpAnswer | None = None) -> Identified:
    return identified(vm.pid, qemu.QEMU, vm.argv, vm.threads(), procfs or Procfs(), debugfs=debugfs, qmp=answer)


def asked(vm: NestedVm) -> QmpAnswer:
    answer = asyncio.run(qmp.query(vm.qmp_path, PATIENCE, vm.pid))
    assert answer is not None
    return answer


def as_qemu_counts(vm: NestedVm, found: Mapping[int, int]) -> dict[int, VcpuId]:
    index = cpu_index(vm.argv, found.values())
    return {tid: index[number] for tid, number in found.items()}


def roles(found: Identified) -> dict[int, ThreadRole]:
    return {tid: role for tid, (role, _) in found.roles.items()}


def own_roles(vm: NestedVm) -> dict[int, ThreadRole]:
    """The truth about the threads of QEMU's own process."""
    everything = vm.roles()
    return {tid: everything[tid] for tid in vm.tids()}


def test_names_alone_identify_every_role(named: NestedVm) -> None:
    found = identify_threads(named, Hidden(calls=True, fds=True))
    assert (found.found_by, found.complete) == ("names", True)
    assert vcpus_of(found) == named.vcpus()
    assert roles(found) == own_roles(named)


def test_kvm_run_alone_identifies_every_vcpu_that_waits(unnamed: NestedVm) -> None:
    fds = kvm.vcpu_fds(Procfs(), unnamed.pid)
    assert sorted(fds.values()) == [0, 1, 2, 4, 5, 6]
    blocked, running = kvm.in_kvm_run(Procfs(), unnamed.pid, unnamed.vcpus(), fds)
    assert (as_qemu_counts(unnamed, blocked), running) == (unnamed.vcpus(), [])
    found = identify_threads(unnamed)
    assert (found.found_by, found.complete) == ("kvm_run", True)
    assert vcpus_of(found) == unnamed.vcpus()


def test_debugfs_alone_identifies_every_vcpu(unnamed: NestedVm) -> None:
    listed = kvm.from_debugfs("/sys/kernel/debug", unnamed.pid)
    assert as_qemu_counts(unnamed, listed) == unnamed.vcpus()
    found = identify_threads(unnamed, Hidden(calls=True), debugfs="/sys/kernel/debug")
    assert (found.found_by, found.complete) == ("debugfs", True)
    assert vcpus_of(found) == unnamed.vcpus()


def test_qmp_alone_identifies_every_vcpu_and_iothread(unnamed: NestedVm) -> None:
    answer = asked(unnamed)
    assert dict(answer.vcpus) == unnamed.vcpus()
    assert answer.iothreads == unnamed.iothreads()
    found = identify_threads(unnamed, Hidden(calls=True, fds=True), answer=answer)
    assert (found.found_by, found.complete) == ("qmp", True)
    assert roles(found) == own_roles(unnamed)


def test_unnamed_iothreads_are_identified_by_their_order_as_by_qmp(unnamed: NestedVm) -> None:
    assert roles(identify_threads(unnamed)) == own_roles(unnamed)
    assert len(unnamed.iothreads()) == 2


def test_without_evidence_no_role_is_guessed(unnamed: NestedVm) -> None:
    found = identify_threads(unnamed, Hidden(calls=True, fds=True))
    assert (found.found_by, found.complete, vcpus_of(found)) == ("none", False, {})


def test_busy_vcpus_are_identified_by_debugfs_where_kvm_run_cannot(nested_vm: StartsVms) -> None:
    vm = nested_vm(vcpus=3, debug_threads=False, guest=Guest.BUSY)
    busy = {tid for tid, index in vm.vcpus().items() if index}  # vCPU 0 starts them, and asks QEMU now and then
    procfs = Procfs()

    def seen() -> tuple[dict[int, int], set[int]]:
        found, running = kvm.in_kvm_run(procfs, vm.pid, busy, kvm.vcpu_fds(procfs, vm.pid))
        return found, set(running)

    # A busy vCPU sleeps within KVM_RUN now and then (to fetch a page of its memory): that read identifies it.
    until(lambda: seen() == ({}, busy), lambda: f"a read of vCPUs {busy} that are all running: {seen()}")
    until(lambda: not identify_threads(vm).complete, "a read that cannot identify every vCPU")
    looks: list[Identified] = []

    def complete_by_debugfs() -> bool:
        """Whatever identified them, it is right; debugfs is needed while a busy one runs."""
        looks.append(identify_threads(vm, debugfs="/sys/kernel/debug"))
        assert looks[-1].complete
        assert vcpus_of(looks[-1]) == vm.vcpus()
        return looks[-1].found_by == "debugfs"

    until(complete_by_debugfs, lambda: f"a read in which debugfs identifies them: {looks[-1]}")


@pytest.mark.parametrize("which", ["named", "unnamed"])
def test_observer_has_every_thread_that_works_for_the_vm(which: str, request: pytest.FixtureRequest,
                                                        variant: Variant) -> None:
    vm: NestedVm = request.getfixturevalue(which)
    inventory = VmInventory(Procfs(), only=vm.sandbox)
    inventory.scan({SandboxId(vm.sandbox): VmmClaim(vm.pid)}, full=True)
    found = inventory.vms[SandboxId(vm.sandbox)]
    assert inventory.refresh(found) is Refresh.CHANGED
    seen = {thread.id.tid: thread for thread in found.threads()}
    assert {tid: thread.role for tid, thread in seen.items()} == vm.roles()
    assert {tid: thread.vcpu for tid, thread in seen.items() if thread.vcpu is not None} == vm.vcpus()
    vhost = [thread for thread in seen.values() if thread.role is ThreadRole.VHOST]
    assert len(vhost) == vm.vhost_devices
    helpers = {thread.name.removesuffix(str(vm.pid)) for thread in seen.values() if thread.role is ThreadRole.KVM}
    if variant.kernel is Kernel.V6_1:
        assert all(thread.pid == thread.id.tid for thread in vhost)
        assert helpers == {"kvm-pit/", "kvm-nx-lpage-recovery-"}
    else:
        assert all(thread.pid == vm.pid for thread in vhost)
        assert helpers == {"kvm-pit/", "kvm-nx-lpage-re"}
