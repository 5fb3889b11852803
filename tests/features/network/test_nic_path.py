"""Paths through recorded links of real interfaces; the NIC alone is added, as a test has none to put into a bridge."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from vmpin.features.network.netns import namespace_links
from vmpin.features.network.nic_path import path_of_device
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
