"""Real machines' /sys, with all that the allocator reads of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from known_machines import MACHINES
from trees import make_tree

from vmpin.domain.topology import Topology
from vmpin.features.allocator.allocator_topology import allocator_topology, device_nodes
from vmpin.host.sysfs import Sysfs


@pytest.mark.parametrize("name", MACHINES)
def test_a_public_machine_is_read_as_it_is_known(tmp_path: Path, name: str) -> None:
    found, known = allocator_topology(Sysfs(make_tree(tmp_path, name))), MACHINES[name]
    for field in Topology._fields:
        assert getattr(found, field) == getattr(known, field), field


def test_devices_are_on_the_nodes_of_their_sockets(tmp_path: Path) -> None:
    sysfs = Sysfs(make_tree(tmp_path, "xeon-e5-devices"))
    assert device_nodes(sysfs, ["eth0", "ib0", "0000:02:00.0", "83:00.0", "0000:ff:13.5"]) == {
        "eth0": 0, "ib0": 1, "0000:02:00.0": 0, "83:00.0": 1}
