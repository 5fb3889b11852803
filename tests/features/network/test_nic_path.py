"""Paths through recorded links of real interfaces; the NIC alone is added, as a test has none to put into a bridge."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import NearNic
from vmpin.domain.sandbox_placement import Placement
from vmpin.features.network.netns import namespace_links
from vmpin.features.network.network_text import near_sentence
from vmpin.features.network.nic_path import MOST_HOPS, near_decision, near_nic, path_of_device
from vmpin.features.network.vm_network import Hop, NamespaceLinks, NetLink, Nic, NicPath, VmNetDevice

RECORDED = json.loads((Path(__file__).parents[2] / "data/network/node.json").read_text())
TAP = VmNetDevice("tap", "tap0_kata", 2)
ENO1 = Nic("eno1", "pci/0000:3b:00.0", 1)
NUMA = {ENO1.device: 1}


def links(*all_links: NetLink, routes: tuple[int, ...] = (), node_ns: int | None = None,
          redirects: dict[int, tuple[int, ...]] | None = None) -> NamespaceLinks:
    return NamespaceLinks({link.ifindex: link for link in all_links}, redirects or {}, routes, node_ns)


def node(*routes: str) -> NamespaceLinks:
    """The recorded node, whose eno1 is a NIC here."""
    found = namespace_links(RECORDED["node"])
    real = {number: link._replace(kind="", lower=0, device=ENO1.device) if link.name == "eno1" else link
            for number, link in found.links.items()}
    return replace(found, links=real, default_routes=tuple(n for n, link in real.items() if link.name in routes))


def path(sandbox: str, device: VmNetDevice = TAP, *routes: str) -> NicPath:
    return path_of_device(device, namespace_links(RECORDED["sandboxes"][sandbox]), node(*routes), NUMA)


def names(found: NicPath) -> list[str]:
    return [hop.name for hop in found.hops]


def on_node(device: str, *all_links: NetLink, routes: tuple[int, ...] = ()) -> NicPath:
    return path_of_device(VmNetDevice("tap", device, 1), None, links(*all_links, routes=routes),
                          {"pci/a": 0, "pci/b": 1, "pci/c": 1})


def test_katas_tap_is_followed_over_tc_veth_and_bridge_to_the_nic() -> None:
    found = path("bridged")
    assert found.hops[:4] == (
        Hop("tap0_kata", "tap", "sandbox"), Hop("eth0", "veth", "sandbox", "redirect"),
        Hop("veth101", "veth", "node", "peer"), Hop("cni0", "bridge", "node", "bridge"))
    assert names(found)[4:] == ["up0", "eno1"]
    assert (found.nics, found.numa_node, found.note) == ((ENO1,), 1, "")


def test_a_veth_in_no_bridge_is_routed_by_the_default_route() -> None:
    found = path("routed", TAP, "eno1")
    assert found.hops[-1] == Hop("eno1", "nic", "node", "route")
    assert found.numa_node == 1
    assert path("routed").nics == ()
    assert path("routed").note == "veth102 is routed, and the node has no default route"


def test_a_macvtap_is_found_by_its_number_and_lies_on_the_nic() -> None:
    recorded = namespace_links(RECORDED["sandboxes"]["macvtap"])
    (number,) = (link.ifindex for link in recorded.links.values() if link.kind == "macvtap")
    found = path("macvtap", VmNetDevice("macvtap", "", 1, ifindex=number))
    assert found.hops == (Hop("mt0", "macvtap", "sandbox"), Hop("eno1", "nic", "node", "lower"))
    assert path("macvtap", VmNetDevice("macvtap", "", 1, ifindex=1)).hops == ()  # lo has that number


def test_a_bridge_in_the_sandbox_leads_on_by_its_other_port() -> None:
    assert names(path("linux-bridge", VmNetDevice("tap", "tap9", 1), "eno1")) == [
        "tap9", "br0", "eth0", "vethbr", "eno1"]


def test_a_tap_of_the_nodes_own_namespace_is_found_there() -> None:
    tap = NetLink(5, "tap5", "tun", master=6)
    here = links(tap, NetLink(6, "br0", "bridge"), NetLink(2, "eno1", master=6, device=ENO1.device))
    for sandbox in (None, links(NetLink(1, "lo"))):
        assert path_of_device(VmNetDevice("tap", "tap5", 1), sandbox, here, NUMA).nics == (ENO1,)
    missing = path_of_device(VmNetDevice("tap", "tap6", 1), links(), here, NUMA)
    assert missing == NicPath(note="its interface is neither in its VMM's network namespace nor in the node's")


def test_vlans_and_bonds_lead_to_the_hardware_below() -> None:
    found = on_node("tap", NetLink(9, "tap", "tun", master=8), NetLink(8, "br", "bridge"),
                    NetLink(7, "bond0.5", "vlan", lower=6, master=8), NetLink(6, "bond0", "bond"),
                    NetLink(2, "a", master=6, device="pci/b"), NetLink(3, "b", master=6, device="pci/c"))
    assert names(found) == ["tap", "br", "bond0.5", "bond0", "a"]
    assert [nic.name for nic in found.nics] == ["a", "b"]
    assert found.numa_node == 1


def test_nics_of_several_nodes_have_no_node_together() -> None:
    found = on_node("tap", NetLink(9, "tap", "tun", master=8), NetLink(8, "br", "bridge"),
                    NetLink(2, "a", master=8, device="pci/a"), NetLink(3, "b", master=8, device="pci/b"))
    assert [nic.numa_node for nic in found.nics] == [0, 1]
    assert found.numa_node is None


def test_other_vms_and_pods_in_a_bridge_are_no_way_out() -> None:
    bridge = (NetLink(9, "tap", "tun", master=8), NetLink(8, "br", "bridge"), NetLink(7, "tap2", "tun", master=8),
              NetLink(6, "veth6", "veth", lower=2, lower_ns=3, master=8), NetLink(5, "nic-less", "dummy", master=8))
    assert names(on_node("tap", *bridge)) == ["tap", "br"]
    assert on_node("tap", *bridge).note == "br is routed, and the node has no default route"
    assert names(on_node("tap", *bridge, NetLink(2, "a", device="pci/a"), routes=(2,))) == ["tap", "br", "a"]


def test_a_peer_in_a_third_namespace_ends_the_path() -> None:
    sandbox = links(NetLink(2, "tap", "tun"), NetLink(3, "eth0", "veth", lower=7, lower_ns=4), node_ns=0,
                    redirects={2: (3,), 3: (2,)})
    found = path_of_device(VmNetDevice("tap", "tap", 1), sandbox, links(NetLink(7, "wrong", device="pci/a")), {})
    assert found.nics == ()
    assert found.note == "eth0 leads to a network namespace that is neither the sandbox's nor the node's"


def test_a_tap_that_nothing_is_connected_to_says_so() -> None:
    found = path_of_device(VmNetDevice("tap", "tap", 1), links(NetLink(2, "tap", "tun")), links(), {})
    assert found.note == "nothing leads on from tap: no redirect, no bridge, no interface below"


def test_redirects_in_a_circle_end() -> None:
    sandbox = links(*(NetLink(n, f"t{n}", "tun") for n in range(1, 5)), redirects={1: (2,), 2: (3,), 3: (1,)})
    found = path_of_device(VmNetDevice("tap", "t1", 1), sandbox, links(), {})
    assert names(found) == ["t1", "t2", "t3"]


def test_a_path_has_an_end_however_long_the_chain() -> None:
    chain = [NetLink(n, f"v{n}", "vlan", lower=n + 1) for n in range(1, 500)]
    found = on_node("v1", *chain, NetLink(500, "a", device="pci/a"))
    assert len(found.hops) == 24
    assert "more than" in found.note


def test_a_vhost_user_device_has_no_interface() -> None:
    found = path_of_device(VmNetDevice("vhost-user", "/run/vhost.sock", 4), None, links(), {})
    assert (found.hops, found.note) == ((), "its traffic goes to the process that serves its socket")


BRIDGE = NetLink(3, "br0", "bridge")
NUMA_NODES = {"pci/a": 0, "pci/b": 1}
A, B = NetLink(1, "a", device="pci/a"), NetLink(2, "b", device="pci/b")


def node_with(*links: NetLink, routes: tuple[int, ...] = ()) -> NamespaceLinks:
    return NamespaceLinks({link.ifindex: link for link in links}, default_routes=routes)


def veth(ifindex: int, namespace: int, master: int = 0) -> NetLink:
    return NetLink(ifindex, f"veth{ifindex}", "veth", 2, namespace, master)


def test_the_veth_into_the_sandbox_leads_to_the_nic() -> None:
    links = node_with(A, B._replace(master=3), BRIDGE, veth(5, 7, master=3), veth(6, 8), routes=(1,))
    assert near_nic(7, (), links, NUMA_NODES) == NearNic(1, "veth5 leads to b")
    assert near_nic(8, (), links, NUMA_NODES) == NearNic(0, "veth6 leads to a, by the default route")


def test_a_tap_of_the_node_is_where_the_path_begins() -> None:
    links = node_with(A, B._replace(master=3), BRIDGE, NetLink(5, "tap5", "tun", master=3))
    assert near_nic(None, ["tap5"], links, NUMA_NODES) == NearNic(1, "tap5 leads to b")


def test_interfaces_that_lead_to_several_nodes_have_none() -> None:
    links = node_with(A, B._replace(master=3), BRIDGE, veth(5, 7, master=3), veth(6, 7), routes=(1,))
    assert near_nic(7, (), links, NUMA_NODES) == NearNic(None, "its interfaces lead to NICs on several NUMA nodes")


def test_without_a_way_the_node_counts_that_all_nics_are_on() -> None:
    for sandbox in (None, 9):
        assert near_nic(sandbox, (), node_with(B, BRIDGE), NUMA_NODES) == NearNic(1, "all NICs of the node are on it")
        assert near_nic(sandbox, (), node_with(A, B), NUMA_NODES).numa_node is None
        assert near_nic(sandbox, (), node_with(BRIDGE), NUMA_NODES) == NearNic(
            None, "the node has no NIC that its links show")


def test_a_nic_whose_node_is_not_known_gives_none() -> None:
    odd = NetLink(4, "odd", device="usb/1-1", master=3)
    assert near_nic(7, (), node_with(odd, BRIDGE, veth(5, 7, master=3)), NUMA_NODES).numa_node is None
    assert near_nic(None, (), node_with(B, odd), NUMA_NODES).numa_node is None


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
            assert near_nic(vm, (), found, NUMA_NODES) == NearNic(0, f"veth{10 + vm} leads to a")
        assert near_nic(None, ["none"], found, NUMA_NODES).numa_node == 0
        scans.append(links.scans)
    assert scans[0] == scans[1]


@pytest.mark.parametrize(("nic", "cpus", "text"), [
    (NearNic(1, "tap5 leads to b"), CpuSet.parse("4-5"), "are near: on NUMA node 1 of the NIC (tap5 leads to b)"),
    (NearNic(1, "tap5 leads to b"), CpuSet.parse("2"), "as by apart, not near: none of their CPUs is on NUMA node 1"),
    (NearNic(None, "several"), CpuSet.parse("2"), "not near: the NIC's NUMA node is not known (several)"),
    (NearNic(1, "b"), EMPTY, "as by apart"), (NearNic(7, "b"), CpuSet.parse("4"), "as by apart")])
def test_the_decision_of_near_is_a_sentence(nic: NearNic, cpus: CpuSet, text: str) -> None:
    placement = cast("Placement", SimpleNamespace(cpus_for=lambda role, vcpu: cpus))
    nodes = {0: CpuSet.parse("0-3"), 1: CpuSet.parse("4-7")}
    assert text in near_sentence(near_decision(nic, placement, nodes))


NUMBERS = st.integers(0, 12)
KINDS = st.sampled_from(["", "veth", "bridge", "bond", "macvlan", "vlan", "tun", "openvswitch", "dummy", "odd"])


@st.composite
def namespaces(draw: st.DrawFn) -> NamespaceLinks:
    found = {number: NetLink(number, f"i{number}", draw(KINDS), draw(NUMBERS), draw(st.none() | st.integers(-1, 2)),
                             draw(NUMBERS), draw(st.sampled_from(["", "", "", "pci/a", "pci/b"])))
             for number in draw(st.sets(NUMBERS.filter(bool)))}
    targets = st.lists(NUMBERS, max_size=3).map(tuple)
    return NamespaceLinks(found, draw(st.dictionaries(NUMBERS, targets)), draw(targets),
                          draw(st.none() | st.integers(0, 1)))


@given(namespaces(), namespaces(), st.booleans(), NUMBERS)
def test_every_path_ends_and_visits_each_link_once(sandbox: NamespaceLinks, node: NamespaceLinks, own: bool,
                                                   number: int) -> None:
    found = path_of_device(VmNetDevice("tap", f"i{number}", 1), sandbox if own else None, node, {"pci/a": 0})
    assert len(found.hops) <= MOST_HOPS
    places = [(hop.namespace, hop.name) for hop in found.hops]
    assert len(set(places)) == len(places)
    names = {"sandbox": {link.name for link in sandbox.links.values()},
             "node": {link.name for link in node.links.values()}}
    assert all(name in names[namespace] for namespace, name in places)
    assert bool(found.nics) == (found.note == "")
    assert {nic.device for nic in found.nics} <= {"pci/a", "pci/b"}
    assert found == path_of_device(VmNetDevice("tap", f"i{number}", 1), sandbox if own else None, node, {"pci/a": 0})
