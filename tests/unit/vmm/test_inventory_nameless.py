"""Which thread is which vCPU of QEMUs whose threads bear no names, from pass to pass and over a restart, on trees of
/proc and debugfs."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from trees import make_tree, stat_line

from vmpin.domain.model import SandboxId, ThreadId, VcpuState, VcpuThreads
from vmpin.host.procfs import Procfs
from vmpin.vmm.inventory import PATIENCE, VmInventory
from vmpin.vmm.virtual_machine import Refresh, Vm

POD = SandboxId("a")


class Faulty(Procfs):
    """There is no descriptor left to list the threads of the processes in `short`; `counts` has those that are counted
    in place of threads."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.short: set[int | str] = set()
        self.counts: dict[int | str, Callable[[], int]] = {}

    def tids(self, pid: int | str) -> list[str]:
        if pid in self.short:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().tids(pid)

    def thread_count(self, pid: int | str) -> int:
        return self.counts[pid]() if pid in self.counts else super().thread_count(pid)


class Nameless:
    """A QEMU with descriptors for some vCPUs, and threads that are where they are put."""

    def __init__(self, root: Path, vcpus: int, smp: str, debugfs: bool = False) -> None:
        self.proc, self.sys = root / "proc", root / "sys"
        self.procfs = Faulty(self.proc)
        stat = stat_line(4000, "qemu-system-x86")
        make_tree(self.proc, f"4000/stat = {stat}\n4000/task/4000/stat = {stat}\n"
                             "4000/task/4000/syscall = 271 0x0 0x0\n")
        (self.proc / "4000/cmdline").write_text(f"qemu-system-x86_64\0-name\0sandbox-{POD}\0-smp\0{smp}\0")
        (self.proc / "4000/fd").mkdir()
        for number in range(vcpus):
            (self.proc / f"4000/fd/{10 + number}").symlink_to(f"anon_inode:kvm-vcpu:{number}")
            if debugfs:
                make_tree(self.sys, f"kernel/debug/kvm/4000-9/vcpu{number}/pid = {4001 + number}\n")

    def thread(self, tid: int, call: str, name: str = "qemu-system-x86") -> None:
        stat = stat_line(tid, name, start=tid)
        make_tree(self.proc, f"4000/task/{tid}/stat = {stat}\n4000/task/{tid}/syscall = {call}\n")

    def vcpu(self, number: int) -> None:
        """Its thread waits in KVM_RUN."""
        self.thread(4001 + number, f"16 {10 + number:#x} 0xae80 0x0")

    def ends(self, tid: int) -> None:
        shutil.rmtree(self.proc / f"4000/task/{tid}")

    def inventory(self, *before: VmInventory) -> VmInventory:
        """One that begins, with what those before left."""
        inventory = VmInventory(self.procfs, str(self.sys), vcpus={k: v for each in before
                                                                     for k, v in each.vcpus.items()})
        inventory.scan({}, full=True)
        inventory.refresh(inventory.vms[POD])
        return inventory


def identified_vcpus(vm: Vm) -> dict[int, int]:
    return {thread.tid: vcpu for thread, vcpu in vm.vcpu_threads.items()}


def test_a_vcpu_that_is_plugged_again_is_identified_though_it_was_read_before_kvm_run(tmp_path: Path) -> None:
    """Of its number there is one that was unplugged, so that none seems to be missing."""
    qemu = Nameless(tmp_path, 2, "1,maxcpus=2", debugfs=True)
    qemu.vcpu(0)
    inventory = qemu.inventory()
    vm = inventory.vms[POD]
    assert (vm.vcpus_identified, identified_vcpus(vm)) == (True, {4001: 0})
    qemu.thread(4003, "202 0x0 0x0")
    inventory.refresh(vm)
    assert (vm.vcpus_identified, len(vm.vcpu_threads)) == (True, 1)
    qemu.thread(4003, "16 0xb 0xae80 0x0")
    assert inventory.refresh(vm) is Refresh.CHANGED
    assert identified_vcpus(vm) == {4001: 0, 4003: 1}


def test_vcpus_that_cannot_be_identified_are_waited_for_a_while(tmp_path: Path) -> None:
    qemu = Nameless(tmp_path, 2, "1,maxcpus=2")
    qemu.thread(4001, "202 0x0 0x0")
    inventory = qemu.inventory()
    vm = inventory.vms[POD]
    states = [vm.vcpu_state]  # it was started soon after the machine
    qemu.vcpu(0)
    inventory.refresh(vm)
    states.append(vm.vcpu_state)
    # Another thread, which has not run yet: it has just come.
    qemu.ends(4001)
    qemu.thread(4002, "202 0x0 0x0")
    inventory.refresh(vm)
    states.append(vm.vcpu_state)
    assert vm.unidentified_since is not None
    vm.unidentified_since -= PATIENCE
    assert inventory.refresh(vm) is Refresh.CHANGED  # it is to be placed again, as it is not waited for any longer
    assert [*states, vm.vcpu_state] == [VcpuState.UNIDENTIFIED, VcpuState.IDENTIFIED, VcpuState.AWAITED,
                                        VcpuState.UNIDENTIFIED]
    assert inventory.refresh(vm) is Refresh.UNCHANGED


def test_a_vcpu_that_has_become_busy_for_ever_is_known_to_the_next_watcher(tmp_path: Path) -> None:
    """It shows nothing any more, and there is no debugfs."""
    qemu = Nameless(tmp_path, 2, "2")
    qemu.vcpu(0)
    qemu.vcpu(1)
    first = qemu.inventory()
    qemu.thread(4002, "running")
    assert not qemu.inventory().vms[POD].vcpus_identified
    vm = qemu.inventory(first).vms[POD]
    assert (vm.vcpus_identified, vm.found_by, identified_vcpus(vm)) == (True, "kvm_run", {4001: 0, 4002: 1})


@pytest.mark.parametrize("what", ["VMM", "thread"])
def test_what_was_found_out_of_another_is_not_believed(tmp_path: Path, what: str) -> None:
    qemu = Nameless(tmp_path, 2, "2")
    qemu.vcpu(0)
    qemu.thread(4002, "running")
    first = qemu.inventory()
    first.vcpus[POD] = VcpuThreads(ThreadId(4000, 99 if what == "VMM" else 100),
                                   {ThreadId(4002, 4002 if what == "VMM" else 4001): first.vms[POD].vcpus[0].id})
    vm = qemu.inventory(first).vms[POD]
    assert (vm.vcpus_identified, identified_vcpus(vm)) == (False, {4001: 0})


def test_an_unplugged_vcpu_is_not_missed_though_qemu_keeps_its_descriptor(tmp_path: Path) -> None:
    """And no debugfs says that its thread has ended; nor, to the next watcher, that it ever was."""
    qemu = Nameless(tmp_path, 2, "1,maxcpus=2")
    qemu.vcpu(0)
    qemu.vcpu(1)
    qemu.thread(4009, "7 0x0 0x0")  # a thread that might be it
    first = qemu.inventory()
    vm = first.vms[POD]
    assert identified_vcpus(vm) == {4001: 0, 4002: 1}
    qemu.ends(4002)
    assert first.refresh(vm)
    assert (vm.vcpus_identified, identified_vcpus(vm)) == (True, {4001: 0})
    assert qemu.inventory(first).vms[POD].vcpus_identified
    assert not qemu.inventory().vms[POD].vcpus_identified
    # Plugged in again, and unplugged between two reads.
    qemu.thread(4010, "16 0xb 0xae80 0x0")
    assert first.refresh(vm)
    assert identified_vcpus(vm) == {4001: 0, 4010: 1}
    qemu.ends(4010)
    vm = qemu.inventory(first).vms[POD]
    assert (vm.vcpus_identified, identified_vcpus(vm)) == (True, {4001: 0})


def test_a_busy_vcpu_that_is_plugged_again_is_identified_by_debugfs(tmp_path: Path) -> None:
    """That its thread before has ended is not the last word."""
    qemu = Nameless(tmp_path, 2, "1,maxcpus=2", debugfs=True)
    qemu.vcpu(0)
    qemu.vcpu(1)
    inventory = qemu.inventory()
    vm = inventory.vms[POD]
    qemu.ends(4002)
    inventory.refresh(vm)
    assert vm.ended_vcpus == {1}
    make_tree(qemu.sys, "kernel/debug/kvm/4000-9/vcpu1/pid = 4010\n")
    qemu.thread(4010, "running")
    inventory.refresh(vm)
    assert (vm.vcpus_identified, identified_vcpus(vm), vm.ended_vcpus) == (True, {4001: 0, 4010: 1}, set())


def test_of_a_process_that_executed_another_vmm_nothing_is_believed(tmp_path: Path) -> None:
    """It has the same number and start time; its vCPUs are not those that ended."""
    qemu = Nameless(tmp_path, 2, "2")
    qemu.vcpu(0)
    qemu.vcpu(1)
    inventory = qemu.inventory()
    qemu.ends(4001)
    qemu.ends(4002)
    with (qemu.proc / "4000/cmdline").open("a") as file:
        file.write("-incoming\0defer\0")
    qemu.thread(4005, "16 0xa 0xae80 0x0")
    qemu.thread(4006, "running")
    inventory.inspect(4000)
    inventory.assign({})
    vm = inventory.vms[POD]
    inventory.refresh(vm)
    assert (vm.vcpus_identified, identified_vcpus(vm), vm.ended_vcpus) == (False, {4005: 0}, set())


def test_names_are_not_kept_as_they_can_be_read_again(tmp_path: Path) -> None:
    qemu = Nameless(tmp_path, 1, "1")
    qemu.thread(4001, "running", "CPU 0/KVM")
    inventory = qemu.inventory()
    assert (identified_vcpus(inventory.vms[POD]), inventory.vcpus, inventory.unsaved) == ({4001: 0}, {}, False)


def test_a_look_that_failed_half_way_is_made_good_by_the_next(tmp_path: Path) -> None:
    """The VMM's threads were read; then descriptors were short, for the shim's."""
    qemu = Nameless(tmp_path, 2, "1,maxcpus=2")
    qemu.thread(4001, "running", "CPU 0/KVM")
    shim = stat_line(4100, "shim", start=101)
    make_tree(qemu.proc, f"4100/stat = {shim}\n4100/task/4100/stat = {shim}\n")
    (qemu.proc / "4100/cmdline").write_text(f"containerd-shim-kata-v2\0-id\0{POD}\0")
    inventory = qemu.inventory()
    vm = inventory.vms[POD]
    inventory.refresh(vm)
    assert [helper.pid for helper in vm.helpers] == [4100]
    qemu.thread(4002, "running", "CPU 1/KVM")
    qemu.procfs.short.add(4100)
    with pytest.raises(OSError, match="Too many open files"):
        inventory.refresh(vm)
    qemu.procfs.short.clear()
    assert inventory.refresh(vm) is Refresh.CHANGED
    assert identified_vcpus(vm) == {4001: 0, 4002: 1}


def test_a_reported_thread_is_searched_until_it_is_found(tmp_path: Path) -> None:
    """Where births are reported, the threads of a process that has as many as before are not listed."""
    qemu = Nameless(tmp_path, 2, "1,maxcpus=2")
    qemu.thread(4001, "running", "CPU 0/KVM")
    inventory = qemu.inventory()
    vm, inventory.forks_reported = inventory.vms[POD], True
    inventory.refresh(vm)
    inventory.process_table.round = vm.vmm.pid + 1  # not its turn to be listed in any case
    qemu.procfs.counts[vm.vmm.pid] = lambda: len(vm.vmm.tasks)
    qemu.ends(4001)
    qemu.thread(4002, "running", "CPU 0/KVM")
    assert inventory.refresh(vm) is Refresh.UNCHANGED
    vm.vmm.mark_outdated()
    qemu.procfs.short.add(vm.vmm.pid)
    with pytest.raises(OSError, match="Too many open files"):
        inventory.refresh(vm)
    qemu.procfs.short.clear()
    assert inventory.refresh(vm) is Refresh.CHANGED
    assert identified_vcpus(vm) == {4002: 0}
