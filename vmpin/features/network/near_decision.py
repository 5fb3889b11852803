"""The member `near` of a sandbox in the status document: what policy.vhost: near decided."""

from __future__ import annotations

from vmpin.cpuset import EMPTY
from vmpin.domain.model import ThreadRole
from vmpin.reconcile.view import NodeView
from vmpin.vmm.virtual_machine import Vm


def near_decision(view: NodeView, vm: Vm) -> dict[str, object] | None:
    """The NIC that policy.vhost: near goes by, and whether the vhost workers are placed at it; None with another
    policy."""
    nic, placement = view.nics.get(vm.vmm.id), view.placements.get(vm.sandbox)
    if nic is None:
        return None
    cpus = None if placement is None else placement.cpus_for(ThreadRole.VHOST, None)
    nodes = view.node.topology.nodes
    there = EMPTY if nic.numa_node is None else nodes.get(nic.numa_node, EMPTY)
    return {"numa_node": nic.numa_node, "why": nic.why, "placed": "near" if cpus and cpus <= there else "apart"}
