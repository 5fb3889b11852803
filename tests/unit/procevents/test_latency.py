"""How long a thread is waited for that is to have a place of its own: on a real process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from strayed import Spinners, spinners

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ThreadRole, VcpuId
from vmpin.placement.rules import Placement, Verdict
from vmpin.placement.vcpus import VcpuPlacement
from vmpin.procevents import latency
from vmpin.procevents.latency import LatencyBook, Placed
from vmpin.vmm.inventory import Vm

HOUR = 3600 * 10**9


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Spinners]:
    with spinners(tmp_path) as made:
        yield made


def vcpu(node: Spinners, wanted: CpuSet) -> Vm:
    """A VM whose one thread has a CPU and turned out to be a vCPU that is to have others."""
    vm = node.vm()
    thread = vm.vmm.threads[vm.vmm.pid]
    vm.vmm.threads = {vm.vmm.pid: thread._replace(role=ThreadRole.VCPU, vcpu=VcpuId(0))}
    vm.found_by = "names"
    node.reconciler.placements[vm.sandbox] = Placement(
        vm.sandbox, wanted, Verdict.FLOATING, (), (VcpuPlacement(VcpuId(0), wanted),), {}, {})
    return vm


def test_a_vcpu_whose_mask_is_never_what_it_is_to_be_is_not_waited_for_all_its_life(node: Spinners) -> None:
    both = node.here | node.there
    vm, book = vcpu(node, both), LatencyBook(node.reconciler)
    born = time.monotonic_ns() - HOUR
    book.awaits(vm.sandbox, vm.vmm.pid, born, Placed(born + 10**6, node.here, loose=False))
    book.passed((), True)
    account = node.reconciler.births[vm.sandbox]
    assert (account.placed, account.placed_max) == (1, 0.001)  # when it got what it has
    os.sched_setaffinity(vm.vmm.pid, both.frozen())
    book.passed((), True)
    assert (account.placed, account.placed_max) == (1, 0.001)
    assert node.reconciler.tally.placement_latency.sum == 0.001


def test_one_that_has_just_come_is_waited_for(node: Spinners, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "_NAMED", 600.0)
    vm, book = vcpu(node, node.there), LatencyBook(node.reconciler)
    now = time.monotonic_ns()
    book.awaits(vm.sandbox, vm.vmm.pid, now, Placed(now, node.here, loose=False))
    book.passed((), True)
    assert vm.sandbox not in node.reconciler.births
    os.sched_setaffinity(vm.vmm.pid, node.there.frozen())
    book.passed((), True)
    assert node.reconciler.births[vm.sandbox].placed == 1
    assert node.reconciler.births[vm.sandbox].placed_max > 0


def test_a_birth_that_is_told_after_a_pass_has_booked_it_is_not_booked_again(node: Spinners) -> None:
    book = LatencyBook(node.reconciler)
    time.sleep(0.03)  # the kernel gives births in ticks of 10 ms
    vm = node.vm()
    born = time.monotonic_ns()
    node.move(vm, node.there)
    operations = node.reconciler.pinner.operations(vm, node.reconciler.placements[vm.sandbox])
    book.passed(node.reconciler.pinner.carry_out(operations, node.reconciler.placements), True)
    assert node.reconciler.births[vm.sandbox].outside == 1
    account = node.reconciler.births[vm.sandbox]
    assert (account.reported, account.outside, account.born_inside) == (0, 1, 0)
    assert not book.tells(vm.sandbox, vm.vmm.pid, born)
    assert not book.tells(vm.sandbox, vm.vmm.pid, born)
    assert account.reported == 1
    assert book.tells(vm.sandbox, vm.vmm.pid, time.monotonic_ns())  # whoever has its number by then
    assert book.tells(vm.sandbox, vm.vmm.pid + 1, born)
    assert (account.reported, account.outside, account.born_inside) == (3, 1, 0)
