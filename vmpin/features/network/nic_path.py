"""The path from a VM's network device to the node's NIC, through links of the sandbox's and the node's namespace.

Followed as frames go that the VM sends: a tc redirect (mirred) first, then the bridge or bond that an interface is in,
then its veth peer or the interface below; from a bridge its ports that lead out; in the node's namespace, where
nothing else leads on, its default route. Each interface is visited once, so that loops end, and paths are bounded.
Policy routing, eBPF and flow tables (Open vSwitch) are not followed, as links do not show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vmpin.features.network.vm_network import PEERS, Hop, NamespaceLinks, NetLink, Nic, NicPath, VmNetDevice

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
    here = node if sandbox is None else sandbox
    found = here.by_name.get(device.name) if device.name else here.links.get(device.ifindex)
    if found is not None and (device.name or found.kind == device.kind):
        return path_from_sandbox(found.ifindex, here, None if sandbox is None else node, numa_nodes)
    if sandbox is not None:  # a VMM in a namespace of its own may have been given a tap of the node's
        return path_of_device(device, None, node, numa_nodes)
    return NicPath(note="its interface is neither in its VMM's network namespace nor in the node's")


def path_from_sandbox(ifindex: int, sandbox: NamespaceLinks, node: NamespaceLinks | None,
                      numa_nodes: Mapping[str, int]) -> NicPath:
    """Follow the path from an interface of a sandbox's namespace.
    :param node: of the node; None where the sandbox has no other namespace than the node's (`sandbox` is that).
    :param numa_nodes: by device, as NetLink has it."""
    if node is None:
        return path_from_node(ifindex, sandbox, numa_nodes)
    return _Walk({_SANDBOX: sandbox, _NODE: node}, numa_nodes).path(_Place(_SANDBOX, ifindex))


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
        ways, note = self._ways_on(place, link)
        found = [self._follow(there, how, left - 1) for there, how in ways if there not in self.visited]
        ending = [rest for rest in found if rest.nics] or found
        if not ending:
            return NicPath((hop,), note=note or f"{link.name} leads to no NIC that its links show")
        nics = tuple(dict.fromkeys(nic for rest in ending for nic in rest.nics))
        # Of several ways, the first is shown; all their NICs count.
        return NicPath((hop, *ending[0].hops), nics, "" if nics else ending[0].note)

    def _ways_on(self, place: _Place, link: NetLink) -> tuple[list[tuple[_Place, str]], str]:
        """Where frames go from an interface that is no NIC, by the first rule that has an interface not visited yet;
        and the reason where there is none."""
        here = self.namespaces[place.namespace]

        def new(indices: tuple[int, ...], by: str) -> list[tuple[_Place, str]]:
            places = dict.fromkeys(_Place(place.namespace, index) for index in indices if index in here.links)
            return [(each, by) for each in places if each not in self.visited]

        lower, note = self._lower(place, link)
        for found in (new(here.redirects.get(place.ifindex, ()), "redirect"), new((link.master,), "bridge"), lower,
                      new(self._ports(place), "port") if link.kind in _WITH_PORTS else []):
            if found:
                return found, ""
        if note or place.namespace == _SANDBOX:
            return [], note or f"nothing leads on from {link.name}: no redirect, no bridge, no interface below"
        return new(here.default_routes, "route"), f"{link.name} is routed, and the node has no default route"

    def _lower(self, place: _Place, link: NetLink) -> tuple[list[tuple[_Place, str]], str]:
        """The interface below, or the veth peer; the reason where it is in a namespace that is not looked at."""
        if not link.lower:
            return [], ""
        if link.lower_ns is None:
            there = _Place(place.namespace, link.lower)
        elif place.namespace == _SANDBOX and link.lower_ns == self.namespaces[_SANDBOX].node_ns:
            there = _Place(_NODE, link.lower)
        elif place.namespace == _SANDBOX:
            return [], f"{link.name} leads to a network namespace that is neither the sandbox's nor the node's"
        else:
            return [], ""  # back to the sandbox, or to another's
        if there in self.visited or self._link(there) is None:
            return [], ""
        return [(there, "peer" if link.kind in PEERS else "lower")], ""

    def _ports(self, place: _Place) -> tuple[int, ...]:
        """The ports of a bridge or bond that may lead out: not those of VMs and, on the node, of other namespaces."""
        here = self.namespaces[place.namespace]
        found = here.ports.get(place.ifindex, ()) if place.namespace == _NODE else [
            link for link in here.links.values() if link.master == place.ifindex]
        return tuple(link.ifindex for link in found if link.kind not in _ENDPOINTS)
