"""How long the book waits for a thread's own role, on a real process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from strayed import Spinners, spinners

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ThreadRole, VcpuId
from vmpin.domain.sandbox_placement import Placement, VcpuPlacement, Verdict
from vmpin.procevents import latency
from vmpin.procevents.latency import LatencyBook, Newborn
from vmpin.vmm.virtual_machine import Vm

#: Longer than a thread is waited for; and any machine that runs tests has been up for as long (CLOCK_MONOTONIC).
MINUTE = 60 * 10**9


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Spinners]:
    with spinners(tmp_path) as made:
        yield made


def vcpu(node: Spinners, wanted: CpuSet) -> Vm:
    """A VM whose one thread was identified as a vCPU with other CPUs than it has."""
    vm = node.vm()
    thread = vm.vmm.threads[vm.vmm.pid]
    vm.vmm.threads = {vm.vmm.pid: thread._replace(role=ThreadRole.VCPU, vcpu=VcpuId(0))}
    vm.found_by = "names"
    node.node_state.placement_cache.placements[vm.sandbox] = Placement(
        vm.sandbox, wanted, Verdict.FLOATING, (), (VcpuPlacement(VcpuId(0), wanted),), {}, {})
    return vm


def newborn(vm: Vm, born: int, at: int, mask: CpuSet) -> Newborn:
    return Newborn(vm.sandbox, vm.vmm.pid, born, at, mask, mask, mask, mask)


def test_a_vcpu_that_never_gets_its_mask_is_confirmed_after_a_while(node: Spinners) -> None:
    both = node.here | node.there
    vm, book = vcpu(node, both), LatencyBook(node.reconciler)
    born = time.monotonic_ns() - MINUTE
    book.record(newborn(vm, born, born + 10**6, node.here), provisional=True)
    book.after_pass((), True)
    account = node.node_state.newborn_counts[vm.sandbox]
    assert (account.placed.count, account.placed.longest) == (1, 0.001)  # when it got what it has
    os.sched_setaffinity(vm.vmm.pid, both.frozen())
    book.after_pass((), True)
    assert (account.placed.count, account.placed.longest) == (1, 0.001)
    assert node.node_state.counters.new_thread_latency.sum == 0.001


def test_a_new_vcpu_is_confirmed_once_it_has_its_mask(node: Spinners, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "_NAMED", 600.0)
    vm, book = vcpu(node, node.there), LatencyBook(node.reconciler)
    now = time.monotonic_ns()
    book.record(newborn(vm, now, now, node.here), provisional=True)
    book.after_pass((), True)
    assert node.node_state.newborn_counts[vm.sandbox].placed.count == 0
    os.sched_setaffinity(vm.vmm.pid, node.there.frozen())
    book.after_pass((), True)
    assert node.node_state.newborn_counts[vm.sandbox].placed.count == 1
    assert node.node_state.newborn_counts[vm.sandbox].placed.longest > 0


def test_a_fork_event_of_a_thread_that_a_pass_counted_is_not_counted_again(node: Spinners) -> None:
    book = LatencyBook(node.reconciler)
    time.sleep(0.03)  # the kernel gives births in ticks of 10 ms
    vm = node.vm()
    born = time.monotonic_ns()
    node.move(vm, node.there)
    operations = node.node_state.pinner.operations(vm, node.node_state.placements[vm.sandbox])
    book.after_pass(node.node_state.pinner.set_masks(operations, node.node_state.placements), True)
    assert node.node_state.newborn_counts[vm.sandbox].outside.count == 1
    account = node.node_state.newborn_counts[vm.sandbox]
    assert (account.reported, account.outside.count, account.born_inside) == (0, 1, 0)
    late = newborn(vm, born, time.monotonic_ns(), node.there)
    for _ in range(2):
        book.record(late)
    assert (account.reported, account.placed.count) == (1, 1)
    book.record(newborn(vm, time.monotonic_ns(), time.monotonic_ns(), node.there))  # another thread has its number
    book.record(late._replace(tid=vm.vmm.pid + 1))
    assert (account.reported, account.outside.count, account.born_inside, account.placed.count) == (3, 1, 2, 3)
