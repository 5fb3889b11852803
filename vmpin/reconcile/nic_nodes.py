"""The NUMA nodes of VMs' NICs, as policy.vhost: near needs them: what a finder answers.

A feature finds them; without one no NIC's node is known, and near places as apart does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from vmpin.domain.model import SandboxId, ThreadId
from vmpin.domain.vm_nic import NearNic
from vmpin.vmm.virtual_machine import Vm


class NicNodes(Protocol):
    """The finder. `found` has the NICs by the VMM's main thread."""

    found: dict[ThreadId, NearNic]

    def refresh(self, vms: Mapping[SandboxId, Vm], turn: int, wanted: bool) -> set[SandboxId]:
        """Read what is due. :param turn: counts passes. :param wanted: whether the policy is near; else all is
        forgotten. :returns: the sandboxes whose NIC is on another NUMA node than before, or found elsewhere."""
        ...


class NoNics:
    """Without a finder: no NIC is known."""

    def __init__(self) -> None:
        self.found: dict[ThreadId, NearNic] = {}

    def refresh(self, vms: Mapping[SandboxId, Vm], turn: int, wanted: bool) -> set[SandboxId]:
        return set()


def numa_node_of(nics: NicNodes, vmm: ThreadId) -> int | None:
    """The NUMA node of a VM's NIC; None where it is not known, or not read."""
    nic = nics.found.get(vmm)
    return None if nic is None else nic.numa_node
