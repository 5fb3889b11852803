"""Whatever the links are, a path ends, names links that exist, and names each once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vmpin.features.network.nic_path import MOST_HOPS, path_of_device
from vmpin.features.network.vm_network import NamespaceLinks, NetLink, VmNetDevice

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
