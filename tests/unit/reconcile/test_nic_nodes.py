"""A finder of NICs is made when the policy is near for the first time."""

from __future__ import annotations

from collections.abc import Mapping

from vmpin.domain.model import SandboxId
from vmpin.reconcile.nic_nodes import NicNodes
from vmpin.vmm.virtual_machine import Vm


class Finder:
    def refresh(self, vms: Mapping[SandboxId, Vm], turn: int, wanted: bool) -> set[SandboxId]:
        return {SandboxId("a")}


def test_with_another_policy_no_finder_is_made() -> None:
    finders: list[Finder] = []

    def make() -> Finder:
        finders.append(Finder())
        return finders[-1]

    nodes = NicNodes(make)
    assert (nodes.refresh({}, 1, wanted=False), finders) == (set(), [])
    assert nodes.refresh({}, 2, wanted=True) == {"a"}
    assert nodes.refresh({}, 3, wanted=False) == {"a"}  # it forgets
    assert len(finders) == 1


def test_without_a_finder_no_nic_is_known() -> None:
    assert NicNodes(None).refresh({}, 1, wanted=True) == set()
