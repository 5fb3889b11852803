"""The NUMA node of a VM's NIC, as far as the node's own links show it: for policy.vhost: near.

Pure. The sandbox's own namespace is not looked at: the watcher enters none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vmpin.domain.vm_nic import NearNic
from vmpin.features.network.nic_path import path_from_node
from vmpin.features.network.vm_network import NamespaceLinks


def near_nic(namespace: int | None, taps: Iterable[str], node: NamespaceLinks,
             numa_nodes: Mapping[str, int]) -> NearNic:
    """The NIC that a VM's veths lead to, or its own taps in the node's namespace; else the node's only NIC, or several
    that are on one NUMA node.
    :param namespace: the number that the node's links have for the VMM's namespace, None for none and for the node's.
    :param taps: the VMM's taps in the node's namespace."""
    own = [*(() if namespace is None else node.peers.get(namespace, ())),
           *(node.by_name[name] for name in dict.fromkeys(taps) if name in node.by_name)]
    paths = [(link, path_from_node(link.ifindex, node, numa_nodes)) for link in own]
    found = {nic.numa_node for _, path in paths for nic in path.nics}
    if len(found) == 1 and None not in found:
        link, path = next((link, path) for link, path in paths if path.nics)
        routed = ", by the default route" if any(hop.by == "route" for hop in path.hops) else ""
        return NearNic(found.pop(), f"{link.name} leads to {' and '.join(nic.name for nic in path.nics)}{routed}")
    if len(found) > 1:
        return NearNic(None, "its interfaces lead to NICs on several NUMA nodes")
    nics = {link.name: numa_nodes.get(link.device) for link in node.nics}
    nodes = set(nics.values())
    if len(nodes) == 1 and None not in nodes:
        return NearNic(nodes.pop(), "all NICs of the node are on it")
    return NearNic(None, "its NIC cannot be seen from the node's network namespace" if nics else
                   "the node has no NIC that its links show")
