"""Asks a VM's QEMU over QMP which thread is which vCPU.

Called by the watcher and by a pass without one, for VMs whose threads have no names. What stays out: the QMP
connection (qmp), and what follows from the answer (inventory).
"""

from __future__ import annotations

from vmpin.vmm.qemu_cmdline import qmp_sockets
from vmpin.vmm.virtual_machine import Vm


async def ask(vm: Vm) -> bool:
    """Query a VM's QMP sockets in turn and keep the answer in `vm.qmp`; True when there was one. Each thread set is
    asked about once."""
    from vmpin.vmm import qmp  # what is imported at the top a starting watcher waits for, before its first pass

    vm.qmp_asked = frozenset(vm.vmm.stats)
    for path in qmp_sockets(vm.vmm.argv):
        vm.qmp = await qmp.query(path, pid=vm.vmm.pid)
        if vm.qmp is not None:
            return True
    return False
