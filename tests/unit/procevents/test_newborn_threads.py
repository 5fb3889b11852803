"""Threads that are created and named: placed ahead of the pass if their role is known."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from newcomers import Machine, Thread, by_name, mask, sandbox, until
from system_calls import system_calls

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ThreadId
from vmpin.host.procfs import PF_KTHREAD, Procfs, Stat
from vmpin.host.sysfs import Sysfs
from vmpin.procevents.newborn_placer import FollowUp, NewbornPlacer
from vmpin.vmm import qemu
from vmpin.wire.proc_events import KTHREADD, Comm, Fork

pytest_plugins = ["given_unit"]


def test_a_thread_created_outside_its_sandbox_is_placed_with_the_others(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    tid = by_name(vmm, "call_rcu")
    os.sched_setaffinity(tid, machine.both.frozen())
    born = time.monotonic_ns() - 3_000_000
    follow_up = machine.placer.handle([Fork(born, vmm.pid, vmm.pid, tid, vmm.pid)])
    assert mask(tid) == machine.pool
    assert (follow_up.relevant, follow_up.now) == (True, set())
    account = machine.account("a")
    assert account.outside.count == 1
    assert 0.003 <= account.outside.longest < 300


class Counting(Procfs):
    """Counts the stat files that are read, by tid."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[int] = Counter()

    def thread_stat(self, pid: int | str, tid: int | str) -> Stat | None:
        self.reads[int(tid)] += 1
        return super().thread_stat(pid, tid)


def test_the_stat_of_a_thread_created_outside_is_read_once(machine: Machine, crowd: Path) -> None:
    """Although a kernel worker, which the same stat shows, would have CPUs of its own."""
    machine.configure(emulator=str(machine.other))
    vmm = machine.running(crowd)
    vars(machine.reconciler.view)["proc"] = proc = Counting()
    placer, tid = NewbornPlacer(machine.reconciler), by_name(vmm, "call_rcu")
    os.sched_setaffinity(tid, machine.both.frozen())
    follow_up = placer.handle([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, tid, vmm.pid)])
    assert (mask(tid), proc.reads[tid], follow_up.now) == (machine.other, 1, set())


def test_a_new_thread_costs_few_system_calls_and_a_vcpu_parses_no_command_line(
        machine: Machine, crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.configure(emulator=str(machine.other))
    vmm = machine.running(crowd)
    tid = by_name(vmm, "call_rcu")

    def cost(*events: Fork | Comm) -> Counter[str]:
        return system_calls(lambda: machine.placer.handle(events))

    created = Fork(time.monotonic_ns(), vmm.pid, vmm.pid, tid, vmm.pid)
    # It was born in its place; its stat shows whether it is a kernel worker.
    assert cost(created) == {"sched_getaffinity": 1, "open": 1, "read": 1, "close": 1}
    os.sched_setaffinity(tid, machine.pool.frozen())
    # Its stat, its main thread's, and the first once more to set the mask: it is read before and after.
    files = {"open": 3, "read": 2, "pread": 2, "close": 3, "sched_setaffinity": 1}
    assert cost(created) == {**files, "sched_getaffinity": 3}
    machine.reconciler.reconcile([sandbox("a")])
    machine.placer.handle([Comm(created.time, tid, vmm.pid, "CPU 1/KVM")])
    machine.reconciler.reconcile([sandbox("a")])
    monkeypatch.setattr(qemu, "option_values", None)
    for vcpu in 5, 6:
        os.sched_setaffinity(tid, machine.other.frozen())
        named = Comm(created.time, tid, vmm.pid, f"CPU {vcpu}/KVM")
        assert cost(created, named) == {**files, "sched_getaffinity": 4}
        assert mask(tid) == machine.pool
        machine.reconciler.reconcile([sandbox("a")])


def test_a_thread_created_in_place_has_no_mask_set(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    tid = by_name(vmm, "call_rcu")
    machine.placer.handle([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, tid, vmm.pid)])
    account = machine.account("a")
    assert (account.reported, account.born_inside, account.outside.count, account.outside.sum) == (1, 1, 0, 0.0)
    assert machine.node_state.counters.pins.total() == 0


def test_a_thread_that_waits_for_its_cgroup_is_not_counted_as_placed(machine: Machine, crowd: Path) -> None:
    """The cgroup refuses its mask: here one with a CPU that the machine has not."""
    vmm = machine.running(crowd)
    tid, placements = by_name(vmm, "call_rcu"), machine.node_state.placement_cache.placements
    absent, placement = CpuSet([Sysfs().topology().all_cpus.bits.bit_length()]), placements[sandbox("a")]
    placements[sandbox("a")] = placement._replace(others=dict.fromkeys(placement.others, absent),
                                                  waiting="waits for the kubelet")
    machine.node_state.pinner.of(sandbox("a")).waits = "waits for the kubelet"
    born = time.monotonic_ns()
    machine.placer.handle([Fork(born, vmm.pid, vmm.pid, tid, vmm.pid), Comm(born + 1, tid, vmm.pid, "call_rcu")])
    assert mask(tid) == machine.pool
    assert (machine.account("a").reported, machine.account("a").placed.count) == (1, 0)


def test_a_name_without_a_role_causes_no_pass(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    tid = by_name(vmm, "call_rcu")
    follow_up = machine.placer.handle([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, tid, vmm.pid),
                                     Comm(time.monotonic_ns(), tid, vmm.pid, "worker")])
    assert (follow_up.now, follow_up.unnamed) == (set(), set())
    assert machine.account("a").placed.count == 1


def test_a_thread_without_a_name_causes_a_recheck(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    machine.node_state.inventory.vms[sandbox("a")].found_by = "kvm_run"
    follow_up = machine.placer.handle([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, by_name(vmm, "call_rcu"), vmm.pid)])
    assert follow_up.unnamed == {sandbox("a")}
    assert machine.account("a").placed.count == 0


def test_a_thread_that_has_ended_is_only_counted(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    with Thread() as thread:
        gone = thread.tid
    until(lambda: not Path(f"/proc/self/task/{gone}").exists())
    machine.take(Fork(time.monotonic_ns(), vmm.pid, vmm.pid, gone, vmm.pid))
    account = machine.account("a")
    assert (account.reported, account.ended, account.placed.count) == (1, 1, 0)


def test_a_thread_of_another_process_with_a_dead_vmms_number_is_left_alone(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    process = machine.node_state.inventory.vms[sandbox("a")].vmm
    process.id = ThreadId(vmm.pid, process.id.starttime - 1)  # so this one has its number
    tids_ = [by_name(vmm, "call_rcu"), by_name(vmm, "CPU 1/KVM")]
    for tid in tids_:
        os.sched_setaffinity(tid, machine.both.frozen())
    machine.placer.handle([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, tids_[0], vmm.pid),
                           Comm(time.monotonic_ns(), tids_[1], vmm.pid, "CPU 1/KVM")])
    assert [mask(tid) for tid in tids_] == [machine.both, machine.both]


def test_a_thread_of_another_process_than_the_event_says_is_left_alone(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    with Thread() as thread:
        free = mask(thread.tid)
        machine.placer.handle([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, thread.tid, vmm.pid),
                               Comm(time.monotonic_ns(), thread.tid, vmm.pid, "CPU 1/KVM")])
        assert mask(thread.tid) == free


def test_threads_of_unrelated_processes_are_left_alone(machine: Machine) -> None:
    with Thread() as thread:
        free = mask(thread.tid)
        follow_up = machine.take(Fork(time.monotonic_ns(), 1, 1, thread.tid, os.getpid()),
                               Comm(time.monotonic_ns(), thread.tid, os.getpid(), "CPU 0/KVM"),
                               Fork(time.monotonic_ns(), 1, 1, 77, 77))
        assert mask(thread.tid) == free
    assert follow_up == FollowUp()


def test_new_kernel_threads_are_inspected_once_they_have_names(machine: Machine) -> None:
    follow_up = machine.take(Fork(time.monotonic_ns(), KTHREADD, KTHREADD, 77, 77))
    assert (follow_up.kernel_threads, follow_up.relevant) == ({77}, False)
    assert machine.placer.place_kernel_threads([77, 2, os.getpid(), 1 << 22]) == set()


class WithWorker(Procfs):
    """Has a kernel thread that a thread created."""

    def __init__(self, creator: int) -> None:
        super().__init__()
        self.creator = creator

    def stat(self, pid: int | str) -> Stat | None:
        return Stat(f"vhost-{self.creator}", "S", KTHREADD, PF_KTHREAD, 0, 0) if pid == 1 << 22 else super().stat(pid)


def test_a_kernel_thread_that_no_main_thread_created_is_inspected(machine: Machine, crowd: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Dragonball starts vhost on a vCPU thread, which the kernel thread's name has in place of the process."""
    vmm = machine.running(crowd)
    vars(machine.reconciler.view)["proc"] = WithWorker(by_name(vmm, "call_rcu"))
    placer, inspected = NewbornPlacer(machine.reconciler), list[int]()
    monkeypatch.setattr(machine.reconciler, "inspect_process", inspected.append)
    placer.place_kernel_threads([1 << 22])
    assert inspected == [1 << 22]


#: Ends a thread at each line, and makes another in its place.
CHANGES = """
import sys, threading
while True:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    print(thread.native_id, flush=True)
    if not sys.stdin.readline():
        break
    over.set()
    thread.join()
over.set()
"""


def test_an_unchanged_thread_count_means_an_unchanged_set_while_forks_are_reported(machine: Machine) -> None:
    """Otherwise they are listed: one thread may have replaced another."""
    vmm = subprocess.Popen(["qemu-system-x86_64", "-c", CHANGES, "-name", f"sandbox-{sandbox('a')}"],
                           executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    machine.children.append(vmm)
    assert vmm.stdin is not None
    assert vmm.stdout is not None
    inventory, proc = machine.node_state.inventory, machine.node_state.proc
    first = int(vmm.stdout.readline())
    machine.report("a", machine.pool)
    machine.reconciler.resync(full=True)
    vm = inventory.vms[sandbox("a")]

    def seen() -> set[int]:
        inventory.process_table.round = vmm.pid + 1  # not its turn to be listed in any case
        for _ in range(3):  # whose names are new is looked at again
            inventory.refresh(vm)
        return {int(tid) for tid in vm.vmm.tasks}

    def another() -> int:
        assert vmm.stdin is not None
        assert vmm.stdout is not None
        vmm.stdin.write(b"\n")
        vmm.stdin.flush()
        tid = int(vmm.stdout.readline())
        until(lambda: proc.thread_count(vmm.pid) == 2)
        return tid

    assert seen() == {vmm.pid, first}
    second = another()
    assert seen() == {vmm.pid, second}  # no event reports it
    inventory.forks_reported = True
    third = another()
    assert seen() == {vmm.pid, second}
    machine.placer.handle([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, third, vmm.pid)])
    assert seen() == {vmm.pid, third}
    fourth = another()
    inventory.scan({}, full=True)  # events were lost
    assert seen() == {vmm.pid, fourth}
    vmm.communicate()
    assert proc.thread_count(vmm.pid) == -1


def test_new_threads_of_an_unmanaged_vm_keep_their_masks(machine: Machine, crowd: Path) -> None:
    """Neither a container of it nor a shared pool is known: masks may have been set by hand."""
    machine.settings["node.shared_pool"] = ""
    machine.configure()
    vmm = machine.running(crowd)
    assert set(machine.node_state.placement_cache.unmanaged) == {sandbox("a")}
    tid = by_name(vmm, "call_rcu")
    os.sched_setaffinity(tid, machine.other.frozen())
    now = time.monotonic_ns()
    machine.take(Fork(now, vmm.pid, vmm.pid, tid, vmm.pid), Comm(now + 1, tid, vmm.pid, "CPU 5/KVM"))
    helper = machine.virtiofsd("a")
    machine.executed(helper)
    machine.resync()
    assert (mask(tid), mask(vmm), mask(helper)) == (machine.other, machine.both, machine.both)
    assert machine.node_state.counters.pins.total() == 0
    assert machine.node_state.newborn_counts == {}
    assert machine.node_state.originals == {}  # kept once it is managed: what is set by hand until then counts
    machine.report("a", machine.pool)
    assert (mask(tid), mask(vmm), mask(helper)) == (machine.pool,) * 3
    assert machine.node_state.placement_cache.unmanaged == {}
