"""The NICs of VMs, as policy.vhost: near needs them (`Vm.nic`).

A feature finds them; without one no NIC's node is known, and near places as apart does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from vmpin.domain.model import SandboxId
from vmpin.vmm.virtual_machine import Vm


class NicFinder(Protocol):
    """Finds NICs."""

    def refresh(self, vms: Mapping[SandboxId, Vm], turn: int, wanted: bool) -> set[SandboxId]:
        """Read what is due, into `Vm.nic`. :param turn: counts passes. :param wanted: whether the policy is near; else
        all is forgotten. :returns: the sandboxes whose NIC is on another NUMA node than before, or found elsewhere."""
        ...


class NicNodes:
    """Has a finder read the NICs. It is made when the policy is near for the first time.
    :param make: makes the finder; None without a feature that has one."""

    def __init__(self, make: Callable[[], NicFinder] | None) -> None:
        self._make = make
        self._finder: NicFinder | None = None

    def refresh(self, vms: Mapping[SandboxId, Vm], turn: int, wanted: bool) -> set[SandboxId]:
        """Read what is due, as `NicFinder.refresh` does."""
        if self._finder is None:
            if not wanted or self._make is None:
                return set()
            self._finder = self._make()
        return self._finder.refresh(vms, turn, wanted)
