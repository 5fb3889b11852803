"""The path from a VM's network device to the node's NIC, through links of the sandbox's and the node's namespace; and
the NIC that policy.vhost: near goes by. Pure.

It follows the frames that the VM sends: a tc redirect (mirred) first, then the bridge or bond that an interface is in,
then its veth peer or the interface below; from a bridge its ports that lead out; in the node's namespace, where
nothing else leads on, its default route. Each interface is visited once, so that loops end, and paths are bounded.
Policy routing, eBPF and flow tables (Open vSwitch) are not followed, as links do not show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import NearNic, ThreadRole
from vmpin.domain.sandbox_placement import Placement
from vmpin.features.network.vm_network import PEERS, Hop, NamespaceLinks, NetLink, Nic, NicPath, VmNetDevice
from vmpin.named_tuple import NamedTuple

#: More hops than any real path has.
MOST_HOPS = 24
_SANDBOX, _NODE = "sandbox", "node"
#: Ports of these kinds end at a VM or a container, or nowhere.
_ENDPOINTS = frozenset(("tun", "dummy", "ifb"))
_WITH_PORTS = frozenset(("bridge", "bond", "team", "openvswitch", "hsr"))
_SHOWN_KINDS = {"tun": "tap"}


class _Place(NamedTuple):
    """An interface in one of the two namespaces."""

    namespace: str
    ifindex: int


def path_of_device(device: VmNetDevice, sandbox: NamespaceLinks | None, node: NamespaceLinks,
                   numa_nodes: Mapping[str, int]) -> NicPath:
    """The path of a VM's device. :param sandbox: the links of its VMM's namespace, None where that is the node's."""
    if device.kind == "vhost-user":
        return NicPath(note="its traffic goes to the process that serves its socket")
    namespace = node if sandbox is None else sandbox
    link = namespace.by_name.get(device.name) if device.name else namespace.links.get(device.ifindex)
    if link is not None and (device.name or link.kind == device.kind):
        if sandbox is None:
            return path_from_node(link.ifindex, node, numa_nodes)
        return _Walk({_SANDBOX: sandbox, _NODE: node}, numa_nodes).path(_Place(_SANDBOX, link.ifindex))
    if sandbox is not None:  # a VMM in a namespace of its own may have been given a tap of the node's
        return path_of_device(device, None, node, numa_nodes)
    return NicPath(note="its interface is neither in its VMM's network namespace nor in the node's")


def path_from_node(ifindex: int, node: NamespaceLinks, numa_nodes: Mapping[str, int]) -> NicPath:
    """Follow the path from an interface of the node's namespace."""
    return _Walk({_NODE: node}, numa_nodes).path(_Place(_NODE, ifindex))


class _Walk:
    """One path. `visited` grows while it is followed."""

    def __init__(self, namespaces: Mapping[str, NamespaceLinks], numa_nodes: Mapping[str, int]) -> None:
        self.namespaces, self.numa_nodes = namespaces, numa_nodes
        self.visited: set[_Place] = set()

    def path(self, start: _Place) -> NicPath:
        return self._follow(start, "", MOST_HOPS)

    def _link(self, place: _Place) -> NetLink | None:
        return self.namespaces[place.namespace].links.get(place.ifindex)

    def _follow(self, place: _Place, by: str, left: int) -> NicPath:
        """The rest of the path, from an interface that has not been visited."""
        link = self._link(place)
        assert link is not None
        self.visited.add(place)
        hop = Hop(link.name, "nic" if link.device else _SHOWN_KINDS.get(link.kind, link.kind or "interface"),
                  place.namespace, by)
        if link.device:
            return NicPath((hop,), (Nic(link.name, link.device, self.numa_nodes.get(link.device)),))
        if left <= 1:
            return NicPath((hop,), note=f"the path has more than {MOST_HOPS} interfaces")
        branches, note = self._branches(place, link)
        paths = [self._follow(branch, how, left - 1) for branch, how in branches if branch not in self.visited]
        paths = [path for path in paths if path.nics] or paths
        if not paths:
            return NicPath((hop,), note=note or f"{link.name} leads to no NIC that its links show")
        nics = tuple(dict.fromkeys(nic for path in paths for nic in path.nics))
        # Of several branches, the first is shown; all their NICs count.
        return NicPath((hop, *paths[0].hops), nics, "" if nics else paths[0].note)

    def _branches(self, place: _Place, link: NetLink) -> tuple[list[tuple[_Place, str]], str]:
        """Where frames go from an interface that is no NIC, by the first rule that has an interface not visited yet;
        and the reason where none has one."""
        namespace = self.namespaces[place.namespace]

        def unvisited(indices: tuple[int, ...], by: str) -> list[tuple[_Place, str]]:
            following = dict.fromkeys(_Place(place.namespace, index) for index in indices if index in namespace.links)
            return [(step, by) for step in following if step not in self.visited]

        lower, note = self._lower(place, link)
        for branches in (unvisited(namespace.redirects.get(place.ifindex, ()), "redirect"),
                         unvisited((link.master,), "bridge"), lower,
                         unvisited(self._ports(place), "port") if link.kind in _WITH_PORTS else []):
            if branches:
                return branches, ""
        if note or place.namespace == _SANDBOX:
            return [], note or f"nothing leads on from {link.name}: no redirect, no bridge, no interface below"
        return (unvisited(namespace.default_routes, "route"),
                f"{link.name} is routed, and the node has no default route")

    def _lower(self, place: _Place, link: NetLink) -> tuple[list[tuple[_Place, str]], str]:
        """The interface below, or the veth peer; the reason where it is in a namespace that was not read."""
        if not link.lower:
            return [], ""
        if link.lower_ns is None:
            lower = _Place(place.namespace, link.lower)
        elif place.namespace == _SANDBOX and link.lower_ns == self.namespaces[_SANDBOX].node_ns:
            lower = _Place(_NODE, link.lower)
        elif place.namespace == _SANDBOX:
            return [], f"{link.name} leads to a network namespace that is neither the sandbox's nor the node's"
        else:
            return [], ""  # back to the sandbox, or to another's
        if lower in self.visited or self._link(lower) is None:
            return [], ""
        return [(lower, "peer" if link.kind in PEERS else "lower")], ""

    def _ports(self, place: _Place) -> tuple[int, ...]:
        """The ports of a bridge or bond that may lead out: not those of VMs and, on the node, of other namespaces."""
        namespace = self.namespaces[place.namespace]
        ports = namespace.ports.get(place.ifindex, ()) if place.namespace == _NODE else [
            link for link in namespace.links.values() if link.master == place.ifindex]
        return tuple(link.ifindex for link in ports if link.kind not in _ENDPOINTS)


def near_nic(namespace: int | None, taps: Iterable[str], node: NamespaceLinks,
             numa_nodes: Mapping[str, int]) -> NearNic:
    """The NIC that a VM's veths lead to, or its own taps in the node's namespace; else the node's NICs, where all are
    on one NUMA node. The sandbox's own namespace is not read: the watcher enters none.
    :param namespace: the number that the node's links have for the VMM's namespace, None for none and for the node's.
    :param taps: the VMM's taps in the node's namespace."""
    own = [*(() if namespace is None else node.peers.get(namespace, ())),
           *(node.by_name[name] for name in dict.fromkeys(taps) if name in node.by_name)]
    paths = [(link, path_from_node(link.ifindex, node, numa_nodes)) for link in own]
    nodes = {nic.numa_node for _, path in paths for nic in path.nics}
    if len(nodes) == 1 and None not in nodes:
        link, path = next((link, path) for link, path in paths if path.nics)
        routed = ", by the default route" if any(hop.by == "route" for hop in path.hops) else ""
        return NearNic(nodes.pop(), f"{link.name} leads to {' and '.join(nic.name for nic in path.nics)}{routed}")
    if len(nodes) > 1:
        return NearNic(None, "its interfaces lead to NICs on several NUMA nodes")
    nodes = {numa_nodes.get(link.device) for link in node.nics}
    if len(nodes) == 1 and None not in nodes:
        return NearNic(nodes.pop(), "all NICs of the node are on it")
    return NearNic(None, "its NIC cannot be seen from the node's network namespace" if node.nics else
                   "the node has no NIC that its links show")


def near_decision(nic: NearNic, placement: Placement | None, nodes: Mapping[int, CpuSet]) -> dict[str, object]:
    """The member `near` of a sandbox in the status document: the NIC that policy.vhost: near goes by, and whether the
    vhost workers are placed at it. :param nodes: the CPUs of NUMA nodes."""
    cpus = None if placement is None else placement.cpus_for(ThreadRole.VHOST, None)
    nic_cpus = EMPTY if nic.numa_node is None else nodes.get(nic.numa_node, EMPTY)
    return {"numa_node": nic.numa_node, "why": nic.why, "placed": "near" if cpus and cpus <= nic_cpus else "apart"}
