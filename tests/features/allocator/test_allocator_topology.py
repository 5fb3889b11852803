"""Real machines' /sys, with all that the allocator reads of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from known_machines import MACHINES
from trees import make_tree

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.topology import Topology
from vmpin.errors import SourceError
from vmpin.features.allocator.allocator_topology import allocator_topology, device_nodes
from vmpin.host.sysfs import Sysfs
from vmpin.sources.nri.call_codec import container_devices


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def groups(*texts: str) -> tuple[CpuSet, ...]:
    return tuple(map(cpus, texts))


def read(tmp_path: Path, text: str, *devices: str) -> Topology:
    return allocator_topology(Sysfs(make_tree(tmp_path, text)), devices)


def test_this_machine_is_read_as_the_base_reads_it() -> None:
    topology = allocator_topology(Sysfs())
    base = Sysfs().topology()
    assert topology.online == base.online
    assert topology.cores == base.cores
    assert topology.memory_nodes


def test_the_list_of_online_cpus_alone_is_enough(tmp_path: Path) -> None:
    topology = read(tmp_path, "devices/system/cpu/online = 0-1,4\n")
    assert topology == Topology.build(cpus("0-1,4"), nodes={0: cpus("0-1,4")}, memory_nodes=cpus("0"))


def test_without_the_list_of_online_cpus_it_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="online: does not exist"):
        allocator_topology(Sysfs(tmp_path))


def test_sockets_have_an_older_name_and_dies_are_apart(tmp_path: Path) -> None:
    topology = read(tmp_path, """
        devices/system/cpu/online = 0-3
        devices/system/cpu/cpu0/topology/core_siblings_list = 0-1
        devices/system/cpu/cpu0/topology/die_cpus_list = 0
        devices/system/cpu/cpu1/topology/die_cpus_list = 1
        devices/system/cpu/cpu2/topology/package_cpus_list = 2-3
        devices/system/cpu/cpu2/topology/core_siblings_list = 0-3
    """)
    assert topology.sockets == groups("0-1", "2-3")
    assert topology.dies == groups("0", "1")


def test_a_cpu_that_comes_meanwhile_is_in_its_socket(tmp_path: Path) -> None:
    """CPU 0 was read before CPU 1 came, which then shows both."""
    topology = read(tmp_path, """
        devices/system/cpu/online = 0-2
        devices/system/cpu/cpu0/topology/package_cpus_list = 0
        devices/system/cpu/cpu1/topology/package_cpus_list = 0-1
        devices/system/cpu/cpu2/topology/package_cpus_list = what
    """)
    assert topology.sockets == groups("0-1")


def test_nodes_of_memory_alone_count_for_memory_and_not_for_cpus(tmp_path: Path) -> None:
    topology = read(tmp_path, """
        devices/system/cpu/online = 0-3
        devices/system/node/has_memory = 0,2
        devices/system/node/node0/cpulist = 0-1
        devices/system/node/node1/cpulist = 2-3
        devices/system/node/node2/cpulist =
    """)
    assert topology.memory_nodes == cpus("0,2")
    assert sorted(topology.nodes) == [0, 1]


@pytest.mark.parametrize(("capacities", "kinds"), [
    # RK3588: four Cortex-A55, and four A76 in two clusters of which one is slower
    ((397,) * 4 + (1024, 1024, 990, 990), {"performance": cpus("4-7"), "efficient": cpus("0-3")}),
    ((1024,) * 8, {}), ((1024,) * 4 + (760,) * 4, {})])
def test_a_machines_kinds_are_known_by_the_capacity_of_its_cpus(
        tmp_path: Path, capacities: tuple[int, ...], kinds: dict[str, CpuSet]) -> None:
    lines = [f"devices/system/cpu/cpu{cpu}/cpu_capacity = {capacity}" for cpu, capacity in enumerate(capacities)]
    assert read(tmp_path, "\n".join(["devices/system/cpu/online = 0-7", *lines, ""])).kinds == kinds


def test_both_kinds_of_cores_are_there_or_none(tmp_path: Path) -> None:
    text = """
        devices/system/cpu/online = 0-7
        devices/cpu_core/cpus = 0-3
    """
    assert read(tmp_path, text).kinds == {}
    found = read(tmp_path, """
        devices/cpu_atom/cpus = 3-5
        devices/cpu_lowpower/cpus = 6,99
    """)
    assert found.kinds == {"performance": cpus("0-3"), "efficient": cpus("4-6")}
    assert found.all_cpus == cpus("0-7")


DEVICES = """
    devices/system/cpu/online = 0-7
    devices/system/node/node0/cpulist = 0-3
    devices/system/node/node1/cpulist = 4-7
    bus/pci/devices/0000:3b:00.0/numa_node = 1
    bus/pci/devices/10000:01:00.1/numa_node = 0
    bus/pci/devices/0000:00:1f.0/numa_node = -1
    bus/pci/devices/0000:00:1f.1/numa_node = one
    class/net/eth0/device/numa_node = 1
    class/net/lo/mtu = 65536
"""


def test_devices_have_a_node_by_address_and_by_name(tmp_path: Path) -> None:
    names = ("0000:3b:00.0", "3b:00.0", "10000:01:00.1", "0000:00:1f.0", "0000:00:1f.1", "eth0", "lo", "eth9")
    topology = read(tmp_path, DEVICES, *names)
    assert topology.devices == {"0000:3b:00.0": 1, "10000:01:00.1": 0, "3b:00.0": 1, "eth0": 1}


@pytest.mark.parametrize("name", [
    "", "..", ".", "../../../bus/pci/devices/0000:3b:00.0", "eth0/../eth0", "/etc", "0000:3b:00.9", "0000:3B:00.0",
    "devices", "e" * 16, "eth0\0", "eth0\n", "ü"])
def test_what_can_be_no_device_is_no_path(tmp_path: Path, name: str) -> None:
    make_tree(tmp_path, DEVICES)
    (tmp_path / "class/net/numa_node").write_text("1\n")
    assert device_nodes(Sysfs(tmp_path), [name]) == {}


def test_devices_of_this_machine_have_the_node_of_their_bus_and_virtual_ones_none() -> None:
    found = device_nodes(Sysfs(), ["c1:3", "c1:5", "c5:0", "b7:0", "b4095:1", "c4095:1"])  # null, zero, tty, loop
    assert found == {}
    links = [(f"{kind[0]}{link.name}", link.resolve()) for kind in ("block", "char")
             for link in Path("/sys/dev", kind).iterdir()]
    assert links
    expected = {}
    for name, device in links:
        files = [above / "numa_node" for above in (device, *device.parents) if (above / "numa_node").exists()]
        if files and int(files[0].read_text()) >= 0:
            expected[name] = int(files[0].read_text())
    assert device_nodes(Sysfs(), [name for name, _ in links]) == expected


#: Made up from the kernel's rules (drivers/vfio, drivers/base/core.c); see `linked`.
NUMBERED = DEVICES + """
    devices/pci0000:3a/0000:3a:00.0/numa_node = 0
    devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/numa_node = 1
    devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/drm/renderD128/dev = 226:128
    devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/vfio-dev/vfio0/dev = 510:0
    devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/6f3a/mdev_type = a mediated device has no file numa_node
    devices/pci0000:00/0000:00:1f.0/numa_node = -1
    devices/pci0000:00/0000:00:1f.0/ata1/block/sda/sda1/dev = 8:1
    devices/platform/serial/tty/ttyS0/dev = 4:64
    devices/virtual/misc/fuse/dev = 10:229
    devices/virtual/vfio/12/dev = 511:0
    devices/virtual/vfio/noiommu-13/dev = 511:1
    devices/virtual/vfio/14/dev = 511:2
    devices/virtual/vfio/15/dev = 511:3
    kernel/iommu_groups/14/devices/
"""
_GPU = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
LINKS = {
    "dev/char/226:128": f"../../{_GPU}/drm/renderD128", "dev/char/510:0": f"../../{_GPU}/vfio-dev/vfio0",
    "dev/block/8:1": "../../devices/pci0000:00/0000:00:1f.0/ata1/block/sda/sda1",
    "dev/char/4:64": "../../devices/platform/serial/tty/ttyS0", "dev/char/10:229": "../../devices/virtual/misc/fuse",
    "dev/char/511:0": "../../devices/virtual/vfio/12", "dev/char/511:1": "../../devices/virtual/vfio/noiommu-13",
    "dev/char/511:2": "../../devices/virtual/vfio/14", "dev/char/511:3": "../../devices/virtual/vfio/15",
    "dev/char/9:9": "../../../outside",
    "kernel/iommu_groups/12/devices/0000:00:1f.0": "../../../../devices/pci0000:00/0000:00:1f.0",
    "kernel/iommu_groups/12/devices/0000:3b:00.0": f"../../../../{_GPU}",
    "kernel/iommu_groups/13/devices/6f3a": f"../../../../{_GPU}/6f3a"}


def linked(tmp_path: Path) -> Sysfs:
    """A tree of the test's own, with links as sysfs makes them."""
    top = tmp_path / "sys"
    top.mkdir()
    make_tree(top, NUMBERED)
    for name, target in LINKS.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).symlink_to(target)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "numa_node").write_text("1\n")
    (tmp_path / "numa_node").write_text("1\n")
    return Sysfs(top)


@pytest.mark.parametrize(("name", "node"), [
    ("c226:128", 1),  # a GPU: of the nearest directory with a node
    ("c510:0", 1),  # a VFIO device of its own
    ("c511:0", 1),  # a VFIO group: of the device in it that has one
    ("c511:1", 1),  # without an IOMMU, a mediated device: of the one above it
    ("c511:2", None), ("c511:3", None),  # groups without devices
    ("b8:1", None),  # the firmware does not say
    ("c4:64", None), ("c10:229", None), ("c9:9", None), ("b226:128", None), ("c1:1", None), ("c0226:128", None)])
def test_a_numbered_device_has_the_node_of_what_is_above_it(tmp_path: Path, name: str, node: int | None) -> None:
    assert device_nodes(linked(tmp_path), [name]) == ({} if node is None else {name: node})


@pytest.mark.parametrize("name", ["c226:128/..", "c../x", "x226:128", "c226", "c-1:3", "226:128", "c226:128\n"])
def test_what_can_be_no_number_is_no_path(tmp_path: Path, name: str) -> None:
    assert device_nodes(linked(tmp_path), [name]) == {}


def test_what_device_plugins_set_is_found_on_a_real_machine(tmp_path: Path) -> None:
    env = ["PCIDEVICE_MELLANOX_COM_IB=0000:83:00.0,0000:ff:13.5", "PCIDEVICE_INTEL_COM_NIC=0000:02:00.0,0000:02:00.9"]
    sysfs = Sysfs(make_tree(tmp_path, "xeon-e5-devices"))
    assert device_nodes(sysfs, container_devices([], env)) == {"0000:83:00.0": 1, "0000:02:00.0": 0}


def test_nothing_of_it_is_read_for_a_node_that_gives_out_no_cpus(tmp_path: Path) -> None:
    base = Sysfs(make_tree(tmp_path, DEVICES + """
        devices/system/cpu/cpu0/topology/package_cpus_list = 0-7
        devices/cpu_core/cpus = 0-3
        devices/cpu_atom/cpus = 4-7
        devices/system/node/has_memory = 0
    """)).topology()
    assert (base.sockets, base.dies, base.kinds, base.memory_nodes, base.devices) == ((), (), {}, EMPTY, {})


@pytest.mark.parametrize("name", MACHINES)
def test_a_public_machine_is_read_as_it_is_known(tmp_path: Path, name: str) -> None:
    found, known = allocator_topology(Sysfs(make_tree(tmp_path, name))), MACHINES[name]
    for field in Topology._fields:
        assert getattr(found, field) == getattr(known, field), field


def test_devices_are_on_the_nodes_of_their_sockets(tmp_path: Path) -> None:
    sysfs = Sysfs(make_tree(tmp_path, "xeon-e5-devices"))
    assert device_nodes(sysfs, ["eth0", "ib0", "0000:02:00.0", "83:00.0", "0000:ff:13.5"]) == {
        "eth0": 0, "ib0": 1, "0000:02:00.0": 0, "83:00.0": 1}
