"""policy.vhost: near takes of apart's CPUs those on the NIC's node, and never another."""

from __future__ import annotations

import pytest
from decided import POD, box, node, own_cpus, vcpus
from hypothesis import given
from hypothesis import strategies as st
from placement_worlds import World, worlds
from ruled import claims

from vmpin.domain.model import Container, ThreadRole, VcpuState
from vmpin.domain.policy import Policy, ThreadPolicy
from vmpin.placement.ownership import ownership
from vmpin.placement.rules import PlacementRequest, place

NEAR = Policy(vhost=ThreadPolicy.NEAR)
MACHINE = node("0-7", pool="0-1,4", nodes=("0-3", "4-7"))


@pytest.mark.parametrize(("containers", "nic_node", "vhost"), [
    ([own_cpus("main", "2-3"), box("side", "0-1,4")], 1, "4"),      # of apart's CPUs those on the node
    ([own_cpus("main", "2-3"), box("side", "0-1,4")], 0, "0-1"),
    ([own_cpus("main", "5"), box("side", "0-1")], 1, "0-1"),        # none there, though an exclusive CPU is
    ([own_cpus("main", "2,5")], 1, "5"),                            # apart is all of S where nothing is shared
    ([own_cpus("main", "2-3"), box("side", "0-1,4")], None, "0-1,4"),
    ([own_cpus("main", "2-3"), box("side", "0-1,4")], 7, "0-1,4"),  # no such node
])
def test_vhost_workers_go_near_the_nic_or_where_apart_puts_them(containers: list[Container], nic_node: int | None,
                                                                vhost: str) -> None:
    own = ownership({POD: claims(containers, MACHINE)}, MACHINE)
    request = PlacementRequest(POD, vcpus(0, 1, 2), tuple(containers), nic_node=nic_node)
    found = place(request, MACHINE, own, NEAR)
    assert str(found.cpus_for(ThreadRole.VHOST, None)) == vhost
    apart = place(request, MACHINE, own, Policy())
    assert found.others | {ThreadRole.VHOST: apart.others[ThreadRole.VHOST]} == apart.others  # type: ignore[operator]
    assert (found.vcpus, found.verdict, found.reasons) == (apart.vcpus, apart.verdict, apart.reasons)


def test_while_vcpus_are_not_identified_no_worker_is_moved_apart() -> None:
    own = ownership({POD: claims([box("side", "0-1,4")], MACHINE)}, MACHINE)
    request = PlacementRequest(POD, vcpus(0), (box("side", "0-1,4"),), vcpu_state=VcpuState.UNIDENTIFIED, nic_node=1)
    assert str(place(request, MACHINE, own, NEAR).cpus_for(ThreadRole.VHOST, None)) == "0-1,4"


@given(worlds, st.none() | st.integers(0, 3))
def test_near_is_never_beyond_apart_and_never_empty(world: World, nic_node: int | None) -> None:
    for request in world.requests:
        asked = request._replace(nic_node=nic_node)
        near = place(asked, world.node, world.own, NEAR).others[ThreadRole.VHOST]
        apart = place(asked, world.node, world.own, Policy()).others[ThreadRole.VHOST]
        if apart is None or near is None:
            assert near is apart is None
            continue
        assert near
        assert near <= apart
        on_it = world.node.topology.nodes.get(-1 if nic_node is None else nic_node)
        assert near == apart or (on_it is not None and near <= on_it)
