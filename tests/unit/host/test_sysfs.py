"""The topology of recorded machines: our own, and real ones from public test data (tests/data/sysfs), against what is
known of these: the numbers of cores and caches that their vendors name.

Each file has its source and licence: hwloc, nri-plugins, util-linux, ghw. kubernetes-sigs/dra-driver-cpu (de98098) has
recordings of two machines, but of these only `cpu/online` and the CPUs of the PCIe roots (pkg/pcie/testdata_*.go); its
topologies with cores, caches and nodes are made up in code. So nothing of it is here.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
from known_machines import MACHINES as PUBLIC
from system_calls import system_calls
from trees import DATA, make_tree, recorded

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.topology import Topology
from vmpin.errors import SourceError
from vmpin.host.sysfs import Sysfs


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def groups(*texts: str) -> tuple[CpuSet, ...]:
    return tuple(map(cpus, texts))


MACHINES = {
    "vm-2cpu": Topology.build(cpus("0-1"), caches=groups("0-1"), nodes={0: cpus("0-1")}, present=cpus("0-1")),
    "qemu-2x2x2": Topology.build(
        cpus("0-7"), cores=groups("0-1", "2-3", "4-5", "6-7"), caches=groups("0-3", "4-7"),
        nodes={0: cpus("0-3"), 1: cpus("4-7")}, present=cpus("0-7")),
    # The kernel takes an offline CPU out of its core and node, but not out of this machine's cache.
    "qemu-2x2x2-offline": Topology.build(
        cpus("0-2,4,6-7"), cores=groups("0-1", "2", "4", "6-7"), caches=groups("0-3", "4-7"),
        nodes={0: cpus("0-2"), 1: cpus("4,6-7")}, present=cpus("0-7")),
    "qemu-2x2x2-nosmt": Topology.build(
        cpus("0,2,4,6"), caches=groups("0,2", "4,6"), nodes={0: cpus("0,2"), 1: cpus("4,6")}, present=cpus("0-7")),
    "qemu-2x2x2-isolated": Topology.build(
        cpus("0-7"), caches=groups("0-3", "4-7"), nodes={0: cpus("0-3"), 1: cpus("4-7")},
        isolated=cpus("2-3"), nohz_full=cpus("2-3"), present=cpus("0-7")),
}


@pytest.mark.parametrize(("shown", "top", "online"), [
    ("0-3", "fs/cgroup/cpuset.cpus.effective = 0-15", "0-6,8-15"),  # a pod's quota has four CPUs
    ("0-3", "fs/cgroup/cpuset/cpuset.cpus = 2,5,7,9", "0-6,8-15"),  # a container's of LXC, whose cpuset has four
    ("2,5", "fs/cgroup/cpuset.cpus.effective = 2,5", "2,5"),  # lxcfs without --enable-cfs
    ("2,5", "fs/cgroup/cgroup.procs = ", "2,5")])
def test_the_view_of_a_container_does_not_take_the_machines_cpus_for_offline(
        tmp_path: Path, shown: str, top: str, online: str) -> None:
    """lxcfs, a file system of its own, is mounted on the list of online CPUs: with it (Debian's lxcfs 5.0.3) a watcher
    with half a CPU's quota took every CPU but 0 for offline, and would have put all VMs there."""
    tree = make_tree(tmp_path, f"{top}\ndevices/system/cpu/present = 0-15\ndevices/system/cpu/offline = 7\n")
    place = tree / "devices/system/cpu/online"
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm") as view:
        view.write(f"{shown}\n")
        view.flush()
        assert os.stat(view.name).st_dev != os.stat(tree).st_dev
        place.symlink_to(view.name)
        assert Sysfs(tree).online() == cpus(online)
        place.unlink()
        place.write_text(f"{shown}\n")
        assert Sysfs(tree).online() == cpus(shown), "the kernel's own list counts"


def test_every_recorded_machine_is_in_a_table() -> None:
    assert sorted([*MACHINES, *PUBLIC]) == recorded()


@pytest.mark.parametrize("name", MACHINES)
def test_a_recorded_machine_is_understood(tmp_path: Path, name: str) -> None:
    sysfs = Sysfs(make_tree(tmp_path, name))
    assert sysfs.topology() == MACHINES[name]
    assert sysfs.online() == MACHINES[name].online


def test_an_offline_cpu_is_known_but_has_neither_siblings_nor_node(tmp_path: Path) -> None:
    topology = Sysfs(make_tree(tmp_path, "qemu-2x2x2-offline")).topology()
    assert 3 in topology.all_cpus
    assert topology.core_of(3) == cpus("3")
    assert topology.node_of(3) is None


def test_this_machine_has_the_cpus_this_process_runs_on() -> None:
    topology = Sysfs().topology()
    assert os.sched_getaffinity(0) <= topology.online.frozen()
    assert all(topology.node_of(cpu) is not None for cpu in topology.online)
    assert Sysfs().online() == topology.online


def test_the_list_of_online_cpus_alone_is_enough(tmp_path: Path) -> None:
    topology = Sysfs(make_tree(tmp_path, "devices/system/cpu/online = 0-1,4\n")).topology()
    assert topology == Topology.build(cpus("0-1,4"), nodes={0: cpus("0-1,4")})


def test_the_siblings_have_an_older_name(tmp_path: Path) -> None:
    topology = Sysfs(make_tree(tmp_path, """
        devices/system/cpu/online = 0-3
        devices/system/cpu/cpu0/topology/thread_siblings_list = 0,2
        devices/system/cpu/cpu1/topology/thread_siblings_list = 1,3
        devices/system/cpu/cpu2/topology/thread_siblings_list = 0,2
        devices/system/cpu/cpu3/topology/thread_siblings_list = 1,3
    """)).topology()
    assert topology.cores == groups("0,2", "1,3")


def test_the_last_level_counts_and_not_the_instruction_cache(tmp_path: Path) -> None:
    topology = Sysfs(make_tree(tmp_path, """
        devices/system/cpu/online = 0-3
        devices/system/cpu/cpu0/cache/index0/level = 1
        devices/system/cpu/cpu0/cache/index0/type = Data
        devices/system/cpu/cpu0/cache/index0/shared_cpu_list = 0
        devices/system/cpu/cpu0/cache/index1/level = 2
        devices/system/cpu/cpu0/cache/index1/type = Unified
        devices/system/cpu/cpu0/cache/index1/shared_cpu_list = 0-1
        devices/system/cpu/cpu0/cache/index2/level = 9
        devices/system/cpu/cpu0/cache/index2/type = Instruction
        devices/system/cpu/cpu0/cache/index2/shared_cpu_list = 0-3
        devices/system/cpu/cpu2/cache/index10/level = 2
        devices/system/cpu/cpu2/cache/index10/type = Unified
        devices/system/cpu/cpu2/cache/index10/shared_cpu_list = 2-3
        devices/system/cpu/cpu2/cache/uevent =
    """)).topology()
    assert topology.caches == groups("0-1", "2-3")


def test_holes_in_the_numbers_and_other_directories_are_no_trouble(tmp_path: Path) -> None:
    topology = Sysfs(make_tree(tmp_path, """
        devices/system/cpu/online = 0,5
        devices/system/cpu/present = 0,5,9
        devices/system/cpu/cpufreq/
        devices/system/cpu/cpuidle/current_driver = none
        devices/system/cpu/cpu0/topology/core_cpus_list = 0,5
        devices/system/cpu/cpu5/topology/core_cpus_list = 0,5
        devices/system/cpu/cpu9/online = 0
        devices/system/node/online = 0,3
        devices/system/node/node0/cpulist = 0
        devices/system/node/node3/cpulist = 5
        devices/system/node/node10/cpulist =
    """)).topology()
    assert topology.cores == groups("0,5", "9")
    assert topology.nodes == {0: cpus("0"), 3: cpus("5")}
    assert topology.all_cpus == cpus("0,5,9")


def test_garbage_everywhere_but_in_online_is_as_good_as_missing(tmp_path: Path) -> None:
    topology = Sysfs(make_tree(tmp_path, """
        devices/system/cpu/online = 0-1
        devices/system/cpu/present = all of them
        devices/system/cpu/isolated = 1-0
        devices/system/cpu/nohz_full =   (null)
        devices/system/cpu/cpu0/topology/core_cpus_list = ?
        devices/system/cpu/cpu1/topology/core_cpus_list = 7
        devices/system/cpu/cpu0/cache/index0/level = three
        devices/system/cpu/cpu0/cache/index0/shared_cpu_list = 0-1
        devices/system/cpu/cpu1/cache/index0/level = 3
        devices/system/cpu/cpu1/cache/index0/type = Unified
        devices/system/cpu/cpu1/cache/index0/shared_cpu_list/
        devices/system/node/node0/cpulist = \xff\xfe
    """)).topology()
    assert topology == Topology.build(cpus("0-1"), nodes={0: cpus("0-1")})


def test_what_changes_while_it_is_read_is_no_trouble(tmp_path: Path) -> None:
    topology = Sysfs(make_tree(tmp_path, """
        devices/system/cpu/online = 0-3
        devices/system/cpu/cpu0/topology/core_cpus_list = 0
        devices/system/cpu/cpu1/topology/core_cpus_list = 0-1
        devices/system/cpu/cpu2/topology/core_cpus_list = 2
        devices/system/cpu/cpu3/topology/core_cpus_list = 3
        devices/system/node/node0/cpulist = 0-2
        devices/system/node/node1/cpulist = 2-3
    """)).topology()
    assert topology.cores == groups("0-1", "2", "3")
    assert topology.nodes == {0: cpus("0-2"), 1: cpus("3")}


def test_cpus_on_the_kernels_command_line_that_do_not_exist_are_left_out(tmp_path: Path) -> None:
    topology = Sysfs(make_tree(tmp_path, """
        devices/system/cpu/online = 0-3
        devices/system/cpu/present = 0-3
        devices/system/cpu/isolated = 2-3
        devices/system/cpu/nohz_full = 2-63
    """)).topology()
    assert (topology.isolated, topology.nohz_full, topology.all_cpus) == (cpus("2-3"), cpus("2-3"), cpus("0-3"))


#: Isolated partitions: as Linux 6.8 lists them, in a hierarchy beside v1, and where each cgroup has its own kind:
#: before 6.8, and in a container with a cgroup namespace. "root" partitions may have isolated ones below, and so may
#: cgroups that pass CPUs down to remote ones.
PARTITIONS = [
    ("fs/cgroup/cpuset.cpus.isolated = 2\nfs/cgroup/a/cpuset.cpus.partition = isolated\n", "2"),
    ("fs/cgroup/unified/cpuset.cpus.isolated = 2-3\n", "2-3"),
    ("""fs/cgroup/cgroup.controllers = cpuset
        fs/cgroup/a/cpuset.cpus.partition = isolated
        fs/cgroup/a/cpuset.cpus.effective = 1
        fs/cgroup/b/cpuset.cpus.partition = root
        fs/cgroup/b/cpuset.cpus.effective = 2-3
        fs/cgroup/b/c/cpuset.cpus.partition = isolated
        fs/cgroup/b/c/cpuset.cpus.effective = 3
        fs/cgroup/d/cpuset.cpus.partition = isolated invalid (Parent is not a partition root)
        fs/cgroup/d/cpuset.cpus.effective = 0-3
        fs/cgroup/e/cpuset.cpus.partition = member
        fs/cgroup/e/f/cpuset.cpus.partition = isolated invalid
        fs/cgroup/e/f/cpuset.cpus.effective = 0""", "1,3"),
    ("""fs/cgroup/cgroup.controllers = cpuset
        fs/cgroup/a/cpuset.cpus.partition = member
        fs/cgroup/a/cpuset.cpus.exclusive = 2-3
        fs/cgroup/a/b/cpuset.cpus.partition = member
        fs/cgroup/a/b/cpuset.cpus.exclusive = 2-3
        fs/cgroup/a/b/c/cpuset.cpus.partition = isolated
        fs/cgroup/a/b/c/cpuset.cpus.effective = 2-3
        fs/cgroup/d/cpuset.cpus.partition = member
        fs/cgroup/d/cpuset.cpus.exclusive =
        fs/cgroup/d/e/cpuset.cpus.partition = isolated invalid
        fs/cgroup/d/e/cpuset.cpus.effective = 1""", "2-3"),
    ("fs/cgroup/cpuset/cpuset.cpus = 0-3\n", ""),
    ("""fs/cgroup/unified/cgroup.controllers = hugetlb
        fs/cgroup/unified/a/cpuset.cpus.partition = isolated
        fs/cgroup/unified/a/cpuset.cpus.effective = 1""", ""),
]


@pytest.mark.parametrize(("control", "off"), [("on", False), ("off", True), ("forceoff", True), ("4", True),
                                              ("notsupported", False), ("notimplemented", False)])
def test_smt_that_is_switched_off_is_told_from_none(tmp_path: Path, control: str, off: bool) -> None:
    make_tree(tmp_path, f"devices/system/cpu/smt/control = {control}\n")
    assert (Sysfs(tmp_path).smt_off(), Sysfs(tmp_path / "gone").smt_off()) == (off, False)


@pytest.mark.parametrize(("tree", "isolated"), PARTITIONS)
def test_isolated_partitions_count_on_every_kernel_that_has_them(tmp_path: Path, tree: str, isolated: str) -> None:
    make_tree(tmp_path, f"devices/system/cpu/online = 0-3\n{tree}")
    assert Sysfs(tmp_path).set_apart(CpuSet.parse("0-3"))[0] == CpuSet.parse(isolated)


def test_partitions_are_looked_for_in_cgroups_and_not_in_files_beside_them(tmp_path: Path) -> None:
    """It is done at every resync."""
    files = "".join(f"fs/cgroup/cpu.stat{number} = 1\n" for number in range(9))
    tree = "devices/system/cpu/online = 0-3\nfs/cgroup/cgroup.controllers = cpuset\n"
    make_tree(tmp_path, f"{tree}fs/cgroup/a/cpuset.cpus.partition = member\n{files}")
    assert system_calls(lambda: Sysfs(tmp_path).set_apart(CpuSet.parse("0-3")))["open"] == 4


@pytest.mark.parametrize(("content", "why"), [
    ("", "names no CPU"),
    ("0-", "invalid CPU list '0-"),
    ("0-99999", "CPU 99999 is beyond"),
])
def test_online_that_cannot_be_believed_is_an_error_that_names_the_file(
        tmp_path: Path, content: str, why: str) -> None:
    sysfs = Sysfs(make_tree(tmp_path, f"devices/system/cpu/online = {content}\n"))
    with pytest.raises(SourceError, match=why) as caught:
        sysfs.online()
    assert caught.value.where == f"{tmp_path}/devices/system/cpu/online"
    with pytest.raises(SourceError):
        sysfs.topology()


def test_online_that_is_missing_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="devices/system/cpu/online: does not exist"):
        Sysfs(tmp_path).online()
    (tmp_path / "devices/system/cpu/online").mkdir(parents=True)
    with pytest.raises(SourceError, match="devices/system/cpu/online: cannot be read"):
        Sysfs(tmp_path).online()


def test_a_machine_of_the_largest_size_is_read(tmp_path: Path) -> None:
    lines = ["devices/system/cpu/online = 0-1023"]
    for cpu in range(1024):
        lines.append(f"devices/system/cpu/cpu{cpu}/topology/core_cpus_list = {cpu & ~1}-{cpu | 1}")
    topology = Sysfs(make_tree(tmp_path, "\n".join(lines))).topology()
    assert len(topology.cores) == 512
    assert topology.isolated == EMPTY


def test_distances_are_by_the_numbers_of_the_nodes(tmp_path: Path) -> None:
    topology = Sysfs(make_tree(tmp_path, """
        devices/system/cpu/online = 0-3
        devices/system/node/node0/cpulist = 0-1
        devices/system/node/node0/distance = 10 21 17
        devices/system/node/node2/cpulist = 2-3
        devices/system/node/node2/distance = 21 10 28
        devices/system/node/node5/cpulist =
        devices/system/node/node5/distance = 17 x 10
    """)).topology()
    assert topology.distances == {0: {0: 10, 2: 21, 5: 17}, 2: {0: 21, 2: 10, 5: 28}}


def test_a_distance_too_few_is_as_good_as_none(tmp_path: Path) -> None:
    topology = Sysfs(make_tree(tmp_path, """
        devices/system/cpu/online = 0-1
        devices/system/node/node0/cpulist = 0
        devices/system/node/node0/distance = 10
        devices/system/node/node1/cpulist = 1
    """)).topology()
    assert topology.distances == {}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_machine_is_read_as_it_is_known(tmp_path: Path, name: str) -> None:
    sysfs = Sysfs(make_tree(tmp_path, name))
    assert sysfs.topology() == PUBLIC[name]._replace(sockets=(), dies=(), kinds={}, memory_nodes=EMPTY)


@pytest.mark.parametrize("name", PUBLIC)
def test_source_and_licence_stand_in_the_file(name: str) -> None:
    text = " ".join(line for line in (DATA / f"{name}.tree").read_text().splitlines()
                    if line.startswith("#"))
    assert "Source: github.com/" in text
    assert "Licence: " in text


def test_partitions_may_be_nested_deeper_than_functions(tmp_path: Path) -> None:
    make_tree(tmp_path, "fs/cgroup/cgroup.controllers = cpuset\n")
    made = [tmp_path / "fs/cgroup"]
    try:
        for _ in range(sys.getrecursionlimit() + 100):
            os.mkdir(path := made[-1] / "a")
            made.append(path)
            (path / "cpuset.cpus.partition").write_text("root")
        (made[-1] / "cpuset.cpus.partition").write_text("isolated")
        (made[-1] / "cpuset.cpus.effective").write_text("2")
        assert Sysfs(tmp_path).set_apart(CpuSet((1, 2)))[0] == CpuSet((2,))
    finally:  # what removes temporary directories is recursive, too
        for path in reversed(made):
            for name in os.listdir(path):
                os.unlink(path / name)
            os.rmdir(path)
