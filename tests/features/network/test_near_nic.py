from __future__ import annotations

from typing import Any

from vmpin.domain.vm_nic import NearNic
from vmpin.features.network.near_nic import near_nic
from vmpin.features.network.vm_network import NamespaceLinks, NetLink

BRIDGE = NetLink(3, "br0", "bridge")
NUMA = {"pci/a": 0, "pci/b": 1}
A, B = NetLink(1, "a", device="pci/a"), NetLink(2, "b", device="pci/b")


def node(*links: NetLink, routes: tuple[int, ...] = ()) -> NamespaceLinks:
    return NamespaceLinks({link.ifindex: link for link in links}, default_routes=routes)


def veth(ifindex: int, namespace: int, master: int = 0) -> NetLink:
    return NetLink(ifindex, f"veth{ifindex}", "veth", 2, namespace, master)


def test_the_veth_into_the_sandbox_leads_to_the_nic() -> None:
    links = node(A, B._replace(master=3), BRIDGE, veth(5, 7, master=3), veth(6, 8), routes=(1,))
    assert near_nic(7, (), links, NUMA) == NearNic(1, "veth5 leads to b")
    assert near_nic(8, (), links, NUMA) == NearNic(0, "veth6 leads to a, by the default route")


def test_a_tap_of_the_node_is_where_the_path_begins() -> None:
    links = node(A, B._replace(master=3), BRIDGE, NetLink(5, "tap5", "tun", master=3))
    assert near_nic(None, ["tap5"], links, NUMA) == NearNic(1, "tap5 leads to b")


def test_interfaces_that_lead_to_several_nodes_have_none() -> None:
    links = node(A, B._replace(master=3), BRIDGE, veth(5, 7, master=3), veth(6, 7), routes=(1,))
    assert near_nic(7, (), links, NUMA) == NearNic(None, "its interfaces lead to NICs on several NUMA nodes")


def test_without_a_way_the_node_counts_that_all_nics_are_on() -> None:
    for sandbox in (None, 9):
        assert near_nic(sandbox, (), node(B, BRIDGE), NUMA) == NearNic(1, "all NICs of the node are on it")
        assert near_nic(sandbox, (), node(A, B), NUMA).numa_node is None
        assert near_nic(sandbox, (), node(BRIDGE), NUMA) == NearNic(
            None, "the node has no NIC that its links show")


def test_a_nic_whose_node_is_not_known_gives_none() -> None:
    odd = NetLink(4, "odd", device="usb/1-1", master=3)
    assert near_nic(7, (), node(odd, BRIDGE, veth(5, 7, master=3)), NUMA).numa_node is None
    assert near_nic(None, (), node(B, odd), NUMA).numa_node is None


class CountedLinks(dict[int, NetLink]):
    """Counts how often all of them are gone through."""

    scans = 0

    def values(self) -> Any:
        self.scans += 1
        return super().values()


def test_all_links_are_gone_through_as_often_for_many_vms_as_for_one() -> None:
    """A node has at least a veth for each VM: a scan for each would take the square of their number."""
    scans = []
    for vms in (1, 300):
        links = CountedLinks({link.ifindex: link for link in (
            A._replace(master=3), BRIDGE, *(veth(10 + vm, vm, master=3) for vm in range(vms)))})
        found = NamespaceLinks(links)
        for vm in range(vms):
            assert near_nic(vm, (), found, NUMA) == NearNic(0, f"veth{10 + vm} leads to a")
        assert near_nic(None, ["none"], found, NUMA).numa_node == 0
        scans.append(links.scans)
    assert scans[0] == scans[1]
