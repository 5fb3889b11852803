from __future__ import annotations

from pathlib import Path

import pytest
from trees import make_tree

from vmpin.features.network.device_nodes import DeviceNodes, default_routes
from vmpin.host.procfs import Procfs

#: As on a server: a NIC on node 1, a virtio NIC below PCI, an NVMe disk with a partition, and dm-0 over two of them.
TREE = """
devices/system/node/node0/cpulist = 0-3
devices/system/node/node1/cpulist = 4-7
devices/pci0000:3a/0000:3a:00.0/numa_node = 1
devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/numa_node = 1
devices/pci0000:00/0000:00:03.0/numa_node = 0
devices/pci0000:00/0000:00:03.0/virtio2/vendor = 0x1af4
devices/pci0000:3a/0000:3b:01.0/numa_node = 1
devices/pci0000:3a/0000:3b:01.0/nvme/nvme0/nvme0n1/nvme0n1p1/dev = 259:1
devices/pci0000:00/0000:00:04.0/numa_node = -1
devices/virtual/block/dm-0/dev = 253:0
devices/virtual/block/dm-1/dev = 253:1
"""


@pytest.fixture
def nodes(tmp_path: Path) -> DeviceNodes:
    root = make_tree(tmp_path, TREE)
    for name, target in {
            "bus/pci/devices/0000:3b:00.0": "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0",
            "bus/pci/devices/0000:00:04.0": "devices/pci0000:00/0000:00:04.0",
            "bus/virtio/devices/virtio2": "devices/pci0000:00/0000:00:03.0/virtio2",
            "dev/block/259:1": "devices/pci0000:3a/0000:3b:01.0/nvme/nvme0/nvme0n1/nvme0n1p1",
            "dev/block/253:0": "devices/virtual/block/dm-0", "dev/block/253:1": "devices/virtual/block/dm-1",
            "devices/virtual/block/dm-0/slaves/nvme0n1p1":
                "devices/pci0000:3a/0000:3b:01.0/nvme/nvme0/nvme0n1/nvme0n1p1",
            "devices/virtual/block/dm-1/slaves/dm-0": "devices/virtual/block/dm-0",
            "devices/virtual/block/dm-1/slaves/dm-1": "devices/virtual/block/dm-1"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(root / target)
    return DeviceNodes(root)


def test_a_nic_is_on_the_node_of_its_device_or_of_the_one_above(nodes: DeviceNodes) -> None:
    assert nodes.of_nic("pci/0000:3b:00.0") == 1
    assert nodes.of_nic("virtio/virtio2") == 0


def test_without_a_node_of_its_own_it_is_on_the_only_one(nodes: DeviceNodes, tmp_path: Path) -> None:
    assert nodes.of_nic("pci/0000:00:04.0") is None
    (tmp_path / "devices/system/node/node1/cpulist").unlink()
    (tmp_path / "devices/system/node/node1").rmdir()
    assert nodes.of_nic("pci/0000:00:04.0") == 0


def test_names_that_are_no_device_have_no_node(nodes: DeviceNodes) -> None:
    for device in ("", "pci", "pci/0000:99:00.0", "pci/../../etc", "../x/y", "pci/a\x1b[2J"):
        assert nodes.of_nic(device) is None


def test_a_disk_is_on_the_node_of_its_hardware(nodes: DeviceNodes) -> None:
    assert nodes.of_disk(259, 1) == 1
    assert nodes.of_disk(253, 0) == 1
    assert nodes.of_disk(0, 42) is None


def test_disks_below_in_a_circle_end(nodes: DeviceNodes) -> None:
    assert nodes.of_disk(253, 1) is None


ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wlan0\t00000000\t0102A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eno1\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
cni0\t0000F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""


def routes(tmp_path: Path, ipv4: str, ipv6: str = "") -> tuple[str, ...]:
    make_tree(tmp_path, "1/net/ =")
    (tmp_path / "1/net/route").write_text(ipv4)
    (tmp_path / "1/net/ipv6_route").write_text(ipv6)
    return default_routes(Procfs(tmp_path))


def test_the_default_route_with_the_lowest_metric_counts(tmp_path: Path) -> None:
    assert routes(tmp_path, ROUTES) == ("eno1",)


def test_ipv6_counts_where_ipv4_has_no_default_route(tmp_path: Path) -> None:
    none = "0" * 32
    row = f"{none} 00 {none} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003"
    lost = f"{none} 00 {none} 00 {none} ffffffff 00000001 00000000 00200200       lo\n"
    assert routes(tmp_path, ROUTES.splitlines()[0] + "\n", f"{row}     eno2\n{lost}") == ("eno2",)


@pytest.mark.parametrize("name", ["e\x1c0", "e\u20280", "e\u20030", "e\x1f00000000"])
def test_the_name_of_an_interface_separates_no_words_and_no_lines(tmp_path: Path, name: str) -> None:
    header = ROUTES.splitlines()[0]
    row = f"{name}\t00000000\t0100000A\t0003\t0\t0\t5\t00000000\t0\t0\t0\n"
    assert routes(tmp_path, f"{header}\n{row}") == (name,)


def test_no_table_is_no_route(tmp_path: Path) -> None:
    assert default_routes(Procfs(tmp_path)) == ()
    assert routes(tmp_path, "") == ()


def test_a_table_of_a_million_routes_is_read_at_its_beginning(tmp_path: Path) -> None:
    assert routes(tmp_path, ROUTES + ROUTES.splitlines()[3] * 100_000) == ("eno1",)
