"""The NUMA nodes of VMs' NICs, as policy.vhost: near needs them.

A feature finds them; without one no NIC's node is known, and near places as apart does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from vmpin.domain.model import SandboxId, ThreadId
from vmpin.domain.vm_nic import NearNic
from vmpin.vmm.virtual_machine import Vm


class NicFinder(Protocol):
    """Finds NICs. `found` has them by the VMM's main thread."""

    found: dict[ThreadId, NearNic]

    def refresh(self, vms: Mapping[SandboxId, Vm], turn: int, wanted: bool) -> set[SandboxId]:
        """Read what is due. :param turn: counts passes. :param wanted: whether the policy is near; else all is
        forgotten. :returns: the sandboxes whose NIC is on another NUMA node than before, or found elsewhere."""
        ...


class NicNodes:
    """The NICs of this node's VMs. The finder is made when the policy is near for the first time.
    :param make: makes the finder; None without a feature that has one."""

    def __init__(self, make: Callable[[], NicFinder] | None) -> None:
        self._make = make
        self._finder: NicFinder | None = None

    @property
    def nics(self) -> Mapping[ThreadId, NearNic]:
        """The NICs by the VMM's main thread; {} with any other policy."""
        return {} if self._finder is None else self._finder.found

    def numa_node(self, vmm: ThreadId) -> int | None:
        """The NUMA node of a VM's NIC; None where it is not known, or not read."""
        nic = self.nics.get(vmm)
        return None if nic is None else nic.numa_node

    def refresh(self, vms: Mapping[SandboxId, Vm], turn: int, wanted: bool) -> set[SandboxId]:
        """Read what is due, as `NicFinder.refresh` does."""
        if self._finder is None:
            if not wanted or self._make is None:
                return set()
            self._finder = self._make()
        return self._finder.refresh(vms, turn, wanted)
