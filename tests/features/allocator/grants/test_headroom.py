"""The free CPUs that shared containers are kept off, so that an exclusive container waits for no update of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from played_calls import EXCLUSIVE, Played, cpus

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.topology import Topology
from vmpin.features.allocator.allocation_report import AllocatorView
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.grants.decisions import due_updates, on_pod_end, on_remove, on_stop
from vmpin.features.allocator.grants.headroom import FEW
from vmpin.features.allocator.grants.pool_cpus import applied, pool, shrinking
from vmpin.features.allocator.watcher_part import allocations

AUTO = AllocationOptions(AllocationMode.ON, reserved=cpus("0,16"))


def machine(nodes: int = 1) -> Topology:
    """16 cores of two threads."""
    each = 16 // nodes
    return Topology.build(CpuSet(range(32)), cores=[CpuSet((core, core + 16)) for core in range(16)], nodes={
        node: CpuSet(range(node * each, node * each + each)) | CpuSet(range(node * each + 16, node * each + each + 16))
        for node in range(nodes)})


class Crowded(Played):
    """A node with shared containers, and updates by CRI."""

    def __init__(self, shared: int, options: AllocationOptions = AUTO, nodes: int = 1) -> None:
        super().__init__(options, machine(nodes))
        for number in range(shared):
            self.create(f"shared-{number}")
            assert not self.updates, "no container waits for headroom"
        self.by_cri()

    @property
    def headroom(self) -> str:
        return str(pool(self.machine, self.ledger, self.options) - self.ledger.shared)

    def by_cri(self, most: int | None = None) -> list[str]:
        """Make the first of the updates that are due. :returns: the containers."""
        due = due_updates(self.machine, self.ledger, self.options)[:most]
        self.ledger = applied(self.ledger, due)
        return [str(update.container) for update in due]

    def remove(self, name: str) -> None:
        self.call(on_stop, ContainerId(name))
        self.call(on_remove, ContainerId(name))
        self.call(on_pod_end, SandboxId(f"pod-{name}"))


@pytest.mark.parametrize(("nodes", "expected"), [(1, "1,17"), (2, "1,8,17,24"), (4, "1,4,17,20")],
                         ids=["one node", "two nodes", "as many as are an eighth"])
def test_a_core_of_each_node_is_kept_free_of_many_shared_containers(nodes: int, expected: str) -> None:
    assert Crowded(FEW, nodes=nodes).headroom == ""
    assert Crowded(FEW + 1, nodes=nodes).headroom == expected


def test_the_next_exclusive_container_updates_no_shared_one_and_headroom_returns() -> None:
    node = Crowded(100)
    for size, expected in ((2, "1,17"), (1, "2"), (1, "18"), (2, "3,19")):
        assert node.create(f"own-{expected}", size, EXCLUSIVE) == expected
        assert not node.updates
        node.by_cri()
    assert node.headroom == "4,20"


def test_containers_near_a_device_and_of_each_node_have_headroom() -> None:
    node = Crowded(100, nodes=2)
    assert node.create("far", 2, EXCLUSIVE | {"cpu-near.vmpin.io": "nodes:1"}) == "8,24"
    assert not node.updates


def test_while_headroom_returns_an_answer_updates_only_those_that_have_the_cpus() -> None:
    """Killed between any two updates, vmpin goes on from the ledger."""
    node = Crowded(20)
    node.create("first", 2, EXCLUSIVE)
    done = node.by_cri(5)
    assert node.create("second", 2, EXCLUSIVE) == "2,18"
    assert len(node.updates) == 15
    assert not {update.container for update in node.updates} & set(done)
    assert node.headroom == "3,19"
    assert set(node.by_cri()) == set(done), "the answer took the next headroom from the others, too"
    assert node.by_cri() == []
    assert {str(grant.written) for grant in node.ledger.grants.values() if not grant.cpus} == {"0,4-16,20-31"}


def test_no_cpu_is_headroom_that_the_pools_containers_request() -> None:
    node = Crowded(20)
    assert node.headroom == "1,17"
    node.create("large", 29)
    assert node.headroom == "1,17"
    node.create("larger", 1)
    assert node.headroom == "", "32 CPUs, of which 30 and a bit are requested"


def test_a_container_that_comes_and_goes_at_a_bound_changes_headroom_once() -> None:
    node = Crowded(20)
    node.create("large", 29)
    for _ in range(3):
        node.create("restarting", 1)
        assert node.headroom == ""
        node.remove("restarting")
    few = Crowded(FEW + 1)
    for _ in range(3):
        few.remove("shared-0")
        assert few.headroom == "1,17"
        few.create("shared-0")
    for number in range(FEW - 2):
        few.remove(f"shared-{number}")
    assert few.headroom == ""


def test_a_stop_carries_few_updates_as_other_calls_wait_for_them() -> None:
    node = Crowded(20, AUTO._replace(pool_headroom=0))
    node.create("own", 2, EXCLUSIVE)
    assert len(node.updates) == 20
    node.call(on_stop, ContainerId("own"))
    assert len(node.updates) == FEW
    assert len(node.by_cri()) == 20 - FEW


def test_a_vm_without_a_cpuset_is_not_among_those_that_would_be_updated() -> None:
    node = Crowded(0)
    for number in range(2 * FEW):
        node.create(f"vm-{number}", vm=True, vm_vcpus=1)
    assert node.headroom == ""


def test_headroom_of_a_fixed_size_returns_in_the_background_too() -> None:
    node = Crowded(20, AUTO._replace(pool_headroom=4))
    assert node.headroom == "1-2,17-18"
    node.create("own", 4, EXCLUSIVE)
    assert (node.updates, node.headroom) == ((), "3-4,19-20")
    assert shrinking(node.machine, node.ledger, node.options) == []
    assert len(node.by_cri()) == 20
    node.remove("own")
    assert node.headroom == "1-2,17-18"
    assert Crowded(20, AUTO._replace(pool_headroom=0)).headroom == str(EMPTY)


def test_the_cgroup_of_a_container_that_is_yet_to_leave_headroom_is_no_mistake() -> None:
    """It has no CPU that is another's own."""
    node = Crowded(20)
    node.create("own", 2, EXCLUSIVE)
    view = AllocatorView("on", "", node.machine, node.options, node.ledger,
                         pool(node.machine, node.ledger, node.options))
    stand_in: Any = SimpleNamespace(view=lambda: view, actual_cpus=lambda grant: str(grant.written))
    report = allocations(stand_in, {"actual": True})
    assert isinstance(report, dict)
    assert {grant["cpuset"] for grant in report["grants"]} == {"0,2-16,18-31", "1,17"}
