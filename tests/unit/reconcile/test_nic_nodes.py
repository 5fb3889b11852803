"""A finder of NICs is made when the policy is near for the first time."""

from __future__ import annotations

from collections.abc import Mapping

from vmpin.domain.model import SandboxId, ThreadId
from vmpin.domain.vm_nic import NearNic
from vmpin.reconcile.nic_nodes import NicNodes
from vmpin.vmm.virtual_machine import Vm

VMM = ThreadId(7, 1)


class Finder:
    def __init__(self) -> None:
        self.found = {VMM: NearNic(1, "tap")}

    def refresh(self, vms: Mapping[SandboxId, Vm], turn: int, wanted: bool) -> set[SandboxId]:
        return {SandboxId("a")}


def test_with_another_policy_no_finder_is_made() -> None:
    made: list[Finder] = []

    def make() -> Finder:
        made.append(Finder())
        return made[-1]

    nodes = NicNodes(make)
    assert (nodes.refresh({}, 1, wanted=False), nodes.nics, nodes.numa_node(VMM), made) == (set(), {}, None, [])
    assert nodes.refresh({}, 2, wanted=True) == {"a"}
    assert nodes.refresh({}, 3, wanted=False) == {"a"}  # it forgets
    assert (len(made), nodes.numa_node(VMM)) == (1, 1)


def test_without_a_finder_no_nic_is_known() -> None:
    nodes = NicNodes(None)
    assert (nodes.refresh({}, 1, wanted=True), nodes.numa_node(VMM)) == (set(), None)
