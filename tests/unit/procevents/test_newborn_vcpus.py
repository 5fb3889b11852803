"""New vCPU threads: placed by their names ahead of the pass, where the pass would accept the name."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from newcomers import Machine, by_name, mask, sandbox

from vmpin.domain.desired_state import DesiredState
from vmpin.domain.events import ContainerSeen, Source
from vmpin.domain.model import Container, ContainerId, ThreadId, VcpuId, VcpuState
from vmpin.domain.sandbox_placement import Placement
from vmpin.host import boottime
from vmpin.vmm.virtual_machine import Vm
from vmpin.wire.proc_events import Comm, Fork

pytest_plugins = ["given_unit"]


def test_a_thread_named_as_a_vcpu_is_placed_as_one(machine: Machine, crowd: Path) -> None:
    machine.configure(emulator=str(machine.other))
    vmm = machine.running(crowd)
    tid = by_name(vmm, "CPU 1/KVM")
    assert (mask(vmm), mask(tid)) == (machine.other, machine.pool)
    os.sched_setaffinity(tid, machine.other.frozen())  # as it would have been born
    born = time.monotonic_ns()
    follow_up = machine.placer.handle([Fork(born, vmm.pid, vmm.pid, tid, vmm.pid),
                                     Comm(born + 1, tid, vmm.pid, "CPU 1/KVM")])
    assert mask(tid) == machine.pool
    assert (follow_up.now, follow_up.soon) == (set(), {sandbox("a")})  # the pass can wait
    assert machine.account("a").placed.count == 0  # not before it bears that out
    until_then = (time.monotonic_ns() - born) / 1e9
    time.sleep(0.02)
    machine.placer.after_pass(machine.reconciler.reconcile(follow_up.soon, scan=False))
    assert machine.account("a").placed.count == 1
    assert machine.account("a").placed.longest <= until_then
    assert machine.node_state.counters.new_thread_latency.total == 1


def test_an_event_that_comes_after_the_pass_leaves_a_vcpu_on_its_cpu(machine: Machine, crowd: Path) -> None:
    """On a busy machine a pass may find, identify and pin a plugged vCPU before the event of its creation is read."""
    machine.configure(emulator=str(machine.other))
    vmm = machine.running(crowd)
    tid = by_name(vmm, "CPU 1/KVM")
    assert (mask(vmm), mask(tid)) == (machine.other, machine.pool)
    set_before = machine.node_state.counters.pins.total()
    machine.placer.handle([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, tid, vmm.pid)])
    assert mask(tid) == machine.pool
    machine.placer.after_pass(machine.reconciler.reconcile([sandbox("a")], scan=False))
    assert machine.node_state.counters.pins.total() == set_before
    assert machine.account("a").placed.count == 1


def test_a_new_vcpu_is_placed_by_its_name_before_the_pass(machine: Machine, crowd: Path) -> None:
    """Beside one that has the exclusive CPU: where the others float."""
    machine.configure(emulator="sandbox")
    machine.report("a", machine.other)
    vmm = machine.running(crowd, vcpus=1)
    assert mask(by_name(vmm, "CPU 0/KVM")) == machine.other
    machine.node_state.apply_events([ContainerSeen(sandbox("a"), Container(ContainerId("more"), cpuset=machine.pool),
                                             Source.BUNDLE, boottime.now(), bundle=str(machine.path))])
    machine.reconciler.reconcile([sandbox("a")])
    assert mask(vmm) == machine.both
    tid = by_name(vmm, "call_rcu")
    machine.placer.handle([Comm(time.monotonic_ns(), tid, vmm.pid, "CPU 5/KVM")])
    assert mask(tid) == machine.pool
    machine.reconciler.reconcile([sandbox("a")])  # the thread's real name is another
    assert mask(tid) == machine.both


def named(vmm: subprocess.Popen[bytes], thread: str, name: str) -> Comm:
    return Comm(time.monotonic_ns(), by_name(vmm, thread), vmm.pid, name)


def test_the_second_of_two_new_vcpus_does_not_wait_for_the_pass(machine: Machine, crowd: Path) -> None:
    """Neither's placement includes the other."""
    vmm = machine.running(crowd, vcpus=1)
    first = machine.placer.handle([named(vmm, "call_rcu", "CPU 5/KVM")])
    second = machine.placer.handle([named(vmm, "IO mon_iothread", "CPU 6/KVM")])
    assert (first.now, first.soon, second.now) == (set(), {sandbox("a")}, {sandbox("a")})


def test_while_not_all_vcpus_are_known_none_of_them_waits_for_the_pass(machine: Machine, crowd: Path) -> None:
    """The last one's name is what the whole VM is placed by."""
    vmm = machine.running(crowd)
    machine.node_state.inventory.vms[sandbox("a")].vcpu_state = VcpuState.UNIDENTIFIED
    follow_up = machine.placer.handle([named(vmm, "call_rcu", "CPU 2/KVM")])
    assert (follow_up.now, follow_up.soon) == ({sandbox("a")}, set())


def test_a_vcpu_for_which_another_has_to_move_does_not_wait_for_the_pass(machine: Machine, crowd: Path) -> None:
    """One vCPU for two exclusive CPUs may use both; of two each has its own."""
    machine.report("a", machine.both)
    vmm = machine.running(crowd, vcpus=1)
    machine.node_state.apply_events([ContainerSeen(sandbox("a"), Container(ContainerId("a-c"), cpuset=machine.both,
                                                                     exclusive=True),
                                             Source.BUNDLE, boottime.now(), bundle=str(machine.path))])
    machine.reconciler.reconcile([sandbox("a")])
    placement = machine.node_state.placements[sandbox("a")]
    assert placement.by_vcpu == {0: machine.both}
    follow_up = machine.placer.handle([named(vmm, "call_rcu", "CPU 1/KVM")])
    assert (follow_up.now, follow_up.soon) == ({sandbox("a")}, set())


def test_a_thread_that_vmpin_moved_has_not_drifted(machine: Machine, crowd: Path) -> None:
    vmm = pinned(machine, crowd)
    tid = by_name(vmm, "call_rcu")
    for _ in range(5):
        machine.placer.handle([Comm(time.monotonic_ns(), tid, vmm.pid, "CPU 5/KVM")])
        assert mask(tid) == machine.pool
        for _ in range(2):  # by then it bears its old name
            machine.reconciler.reconcile([sandbox("a")])
        assert mask(tid) == machine.both
    assert machine.node_state.counters.drift == {}
    assert machine.node_state.counters.contentions == 0
    os.sched_setaffinity(tid, machine.other.frozen())  # as another hand does
    machine.reconciler.reconcile([sandbox("a")])
    # Whatever the cause: a numad of another test may run just then.
    assert machine.node_state.counters.drift.total() == 1


def test_a_new_thread_that_its_vmm_moves_before_the_pass_has_not_drifted(machine: Machine, crowd: Path) -> None:
    """QEMU's thread-context sets a mask after the clone, and a runtime moves a new helper into its cgroup."""
    vmm = pinned(machine, crowd)
    tid = by_name(vmm, "call_rcu")
    wanted = mask(tid)
    elsewhere = machine.other if wanted != machine.other else machine.pool
    os.sched_setaffinity(tid, elsewhere.frozen())
    machine.placer.handle([Fork(time.monotonic_ns(), vmm.pid, vmm.pid, tid, vmm.pid)])
    assert mask(tid) == wanted
    os.sched_setaffinity(tid, elsewhere.frozen())
    machine.placer.after_pass(machine.reconciler.reconcile([sandbox("a")], scan=False))
    assert mask(tid) == wanted
    assert machine.node_state.counters.drift == {}


def test_a_thread_that_renames_itself_all_the_time_is_placed_once_before_the_pass(
        machine: Machine, crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A VMM may run anything: it must not keep the watcher from other VMs."""
    vmm = machine.running(crowd)
    tid = by_name(vmm, "call_rcu")
    asked: list[int] = []
    places = machine.node_state.placement_cache
    with_vcpu = places.with_vcpu

    def counted(vm: Vm, vcpu: VcpuId, state: DesiredState) -> Placement | None:
        asked.append(vcpu)
        return with_vcpu(vm, vcpu, state)

    monkeypatch.setattr(places, "with_vcpu", counted)
    names = [Comm(time.monotonic_ns(), tid, vmm.pid, f"CPU {number}/KVM") for number in range(2, 500)]
    follow_up = machine.placer.handle(names)
    assert asked == [2]
    machine.reconciler.reconcile(follow_up.now, scan=False)  # reads the name as it is, and no thread is new then
    machine.reconciler.reconcile(follow_up.now, scan=False)
    machine.placer.handle(names)
    assert asked == [2, 2]


def pinned(machine: Machine, crowd: Path) -> subprocess.Popen[bytes]:
    """The pool is vCPU 0's, vCPU 1 has the exclusive CPU, and all other threads may be on both."""
    machine.configure(emulator="sandbox", iothreads="sandbox", vhost="sandbox")
    machine.report("a", machine.other)
    vmm = machine.running(crowd)
    machine.node_state.apply_events([ContainerSeen(sandbox("a"), Container(ContainerId("more"), cpuset=machine.pool),
                                             Source.BUNDLE, boottime.now(), bundle=str(machine.path))])
    machine.reconciler.reconcile([sandbox("a")])
    assert [mask(by_name(vmm, f"CPU {vcpu}/KVM")) for vcpu in (0, 1)] == [machine.pool, machine.other]
    assert mask(by_name(vmm, "call_rcu")) == machine.both
    return vmm


@pytest.mark.parametrize(("thread", "name"), [
    ("call_rcu", "CPU 0/KVM"), ("call_rcu", "CPU 1/KVM"), ("CPU 1/KVM", "CPU 0/KVM"), ("CPU 1/KVM", "CPU 5/KVM")])
def test_a_name_that_no_pass_would_accept_moves_no_thread(machine: Machine, crowd: Path, thread: str,
                                                         name: str) -> None:
    """The name of another running vCPU, or of a vCPU that becomes another: a pass would move the thread back."""
    vmm = pinned(machine, crowd)
    tid = by_name(vmm, thread)
    before = mask(tid)
    machine.placer.handle([Comm(time.monotonic_ns(), tid, vmm.pid, name)])
    assert mask(tid) == before


def test_a_vcpu_that_was_unplugged_does_not_keep_its_number(machine: Machine, crowd: Path) -> None:
    vmm = pinned(machine, crowd)
    vcpu_threads = machine.node_state.inventory.vms[sandbox("a")].vcpu_threads
    (old,) = (thread for thread, vcpu in vcpu_threads.items() if vcpu == 1)
    vcpu_threads[ThreadId(old.tid, old.starttime - 1)] = vcpu_threads.pop(old)  # so that one has ended
    tid = by_name(vmm, "call_rcu")
    machine.placer.handle([Comm(time.monotonic_ns(), tid, vmm.pid, "CPU 1/KVM")])
    assert mask(tid) == machine.other
