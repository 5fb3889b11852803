"""Which devices of a container are looked at for a NUMA node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.sources.nri.container_devices import (
    MOST_ADDRESSES,
    MOST_NODES,
    DeviceNode,
    container_devices,
)


def test_device_nodes_and_addresses_in_the_environment_are_named() -> None:
    nodes = [DeviceNode("/dev/vfio/12", "c", 511, 3), DeviceNode("/dev/xvda", "b", 259, 0),
             DeviceNode("/dev/raw", "u", 162, 1)]
    assert container_devices(nodes, ["PATH=/bin", "PCIDEVICE_INTEL_COM_NIC=0000:3b:00.0,0000:d8:02.1"]) == {
        "0000:3b:00.0": "PCIDEVICE_INTEL_COM_NIC", "0000:d8:02.1": "PCIDEVICE_INTEL_COM_NIC",
        "c511:3": "/dev/vfio/12", "b259:0": "/dev/xvda", "c162:1": "/dev/raw"}


@pytest.mark.parametrize("node", [
    DeviceNode("/run/pipe", "p", 0, 0), DeviceNode("/dev/x", "", 1, 3), DeviceNode("/dev/x", "c", -1, 3),
    DeviceNode("/dev/x", "b", 8, -1), DeviceNode("/dev/x", "bc", 8, 1)])
def test_what_is_no_device_is_left_out(node: DeviceNode) -> None:
    assert container_devices([node], []) == {}


@pytest.mark.parametrize("entry", [
    "PCIDEVICE_X", "PCIDEVICE_X=", "PCIDEVICE_=0000:3b:00.0", "XPCIDEVICE_X=0000:3b:00.0",
    "PCIDEVICE_X_INFO={\"0000:3b:00.0\":{\"generic\":{\"deviceID\":\"0000:3b:00.0\"}}}",
    "PCIDEVICE_X=3b:00.0", "PCIDEVICE_X=0000:3B:00.0", "PCIDEVICE_X=0000:3b:00.8", "PCIDEVICE_X=../0000:3b:00.0",
    "PCIDEVICE_X=0000:3b:00.0/..", "PCIDEVICE_X=eth0", "PCIDEVICE_X=b8:0", "PCIDEVICE_X=0000:3b:00.0 0000:3b:00.1"])
def test_what_is_no_address_is_left_out(entry: str) -> None:
    assert container_devices([], [entry]) == {}


def test_an_address_is_named_once_by_the_first_variable() -> None:
    env = ["PCIDEVICE_A=0000:3b:00.0, 0000:3b:00.0,nothing", "PCIDEVICE_B=0000:3b:00.0,10000:01:00.1"]
    assert container_devices([], env) == {"0000:3b:00.0": "PCIDEVICE_A", "10000:01:00.1": "PCIDEVICE_B"}


def test_only_so_many_are_read() -> None:
    nodes = (DeviceNode(f"/dev/tty{minor}", "c", 4, minor) for minor in range(10 * MOST_NODES))
    addresses = [f"0000:{bus:02x}:{slot:02x}.0" for bus in range(20) for slot in range(20)]
    found = container_devices(nodes, [f"PCIDEVICE_X={','.join(addresses)}"])
    assert len(found) == MOST_NODES + MOST_ADDRESSES
    assert "c4:0" in found
    assert addresses[0] in found
    assert next(nodes).minor <= MOST_NODES + 1  # the rest is not even looked at


@given(st.lists(st.text()), st.lists(st.text().map("PCIDEVICE_X=".__add__)))
def test_any_text_is_taken(paths: list[str], env: list[str]) -> None:
    nodes = [DeviceNode(path, "c", number, number) for number, path in enumerate(paths)]
    assert len(container_devices(nodes, env)) >= len(paths)
