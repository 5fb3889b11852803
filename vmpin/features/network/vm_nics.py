"""The NUMA node of each VM's NIC, kept from pass to pass: for policy.vhost: near, and read only with that policy.

Read when a VM is new, and again once in ROUNDS passes, as bridges and routes may change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vmpin.domain.model import SandboxId, ThreadId
from vmpin.errors import SourceError
from vmpin.host.procfs import Procfs
from vmpin.vmm.process_table import ROUNDS
from vmpin.vmm.virtual_machine import Vm

if TYPE_CHECKING:
    from vmpin.domain.vm_nic import NearNic

logger = logging.getLogger(__name__)


class VmNics:
    """The NICs of VMs, by the VMM's main thread. :param sys_root: /sys."""

    def __init__(self, proc: Procfs, sys_root: str) -> None:
        self._proc, self._sys_root = proc, sys_root
        self.found: dict[ThreadId, NearNic] = {}
        self._turn = 0
        self._trouble = ""

    def refresh(self, vms: Mapping[SandboxId, Vm], turn: int, wanted: bool) -> set[SandboxId]:
        """Read what is due. :param turn: counts passes. :param wanted: whether the policy is near; else all is
        forgotten. :returns: the sandboxes whose NIC is on another NUMA node than before, or found elsewhere."""
        if not wanted:
            if not self.found:
                return set()
            changed = {sandbox for sandbox, vm in vms.items() if vm.vmm.id in self.found}
            self.found.clear()
            return changed
        mains = {vm.vmm.id: vm for vm in vms.values()}
        again = turn % ROUNDS == 0 and turn != self._turn
        due = mains if again else {main: vm for main, vm in mains.items() if main not in self.found}
        if not due:
            return set()
        before, self._turn = self.found, turn
        self.found = {main: nic for main, nic in before.items() if main in mains} | self._read(due)
        return {vm.sandbox for main, vm in mains.items() if self.found.get(main) != before.get(main)}

    def _read(self, mains: Mapping[ThreadId, Vm]) -> dict[ThreadId, NearNic]:
        # With the default policy none of these is loaded.
        from vmpin.domain.vm_nic import NearNic
        from vmpin.features.network.near_nic import near_nic
        from vmpin.features.network.node_links import read_node_links
        try:
            seen = read_node_links(self._proc, self._sys_root, mains)
        except SourceError as err:
            if str(err) != self._trouble:
                logger.warning("links of the node not read (%s): with policy.vhost: near vhost workers are placed as "
                               "by apart", err)
            self._trouble = str(err)
            return dict.fromkeys(mains, NearNic(None, f"the node's links cannot be read: {err}"))
        self._trouble = ""
        own = {main for main, number in seen.numbers.items() if number is None}
        return {main: near_nic(seen.numbers.get(main), self._taps(vm) if main in own else (), seen.links,
                               seen.numa_nodes) for main, vm in mains.items()}

    def _taps(self, vm: Vm) -> list[str]:
        """The interfaces of the taps that a VMM has open."""
        from vmpin.features.network.network_devices import open_devices
        try:
            found = open_devices(self._proc, vm.vmm.pid, vm.vmm.argv)
        except OSError:
            return []
        return [device.name for device in found.devices if device.kind == "tap"]
