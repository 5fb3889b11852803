"""Where a VM's memory is: numa_maps added up, for a bounded time, and beside the vCPUs."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import pytest
from trees import make_tree, stat_line

from vmpin.cpuset import CpuSet
from vmpin.domain.topology import Topology
from vmpin.features.memory import memory_nodes
from vmpin.features.memory.memory_nodes import add_memory, cgroup_memory, memory_by_node
from vmpin.features.memory.memory_text import summary
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs


def test_mappings_are_added_up_until_the_time_is_over() -> None:
    line, now = b"a default N0=1 kernelpagesize_kB=4\n", iter(range(100))
    assert memory_by_node([line] * 3, 100, lambda: next(now)) == ({0: 3 * 4096}, True)
    total, whole = memory_by_node([line] * 50, 5, lambda: next(now))
    assert (total[0], whole) == (5 * 4096, False)


#: No cgroup is there.
HIDDEN = Cgroups("/nowhere", Procfs("/nowhere"))


class TwoNodes(Sysfs):
    """This machine's CPUs on two nodes: a leaf."""

    def topology(self) -> Topology:
        return Topology.build(CpuSet([0, 1]), nodes={0: CpuSet([0]), 1: CpuSet([1])})


def entry(pid: int, actual: str, starttime: int | None = None) -> dict[str, Any]:
    stat = Procfs().thread_stat(pid, pid)
    assert stat is not None
    return {"vmm": {"type": "qemu", "pid": pid, "starttime": stat.starttime if starttime is None else starttime},
            "threads": [{"role": "vcpu", "actual": actual}, {"role": "vhost", "actual": "0-1"}]}


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="needs a kernel with CONFIG_NUMA")
def test_the_memory_of_a_running_process_is_found_on_its_node() -> None:
    """This process's own, with 64 MiB that it has touched. All of it is on node 0 where there is one node."""
    size = 64 << 20
    with mmap.mmap(-1, size) as block:
        block.write(b"x" * size)
        sandboxes = [entry(os.getpid(), "0"), entry(os.getpid(), "1"), {"vmm": None, "threads": []}]
        add_memory(sandboxes, Procfs(), TwoNodes(), HIDDEN)
    near, far, without = (sandbox["memory"] for sandbox in sandboxes)
    assert without is None
    assert sum(near["nodes"].values()) >= size
    assert (near["vcpu_nodes"], far["vcpu_nodes"]) == ([0], [1])
    assert near["away"] + far["away"] == pytest.approx(1, abs=0.01)
    assert summary(near).endswith("the vCPUs are on node 0")


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="needs a kernel with CONFIG_NUMA")
def test_a_files_name_adds_no_memory(tmp_path: Path) -> None:
    """The kernel escapes blanks, `=` and newlines in it (fs/proc/task_mmu.c, show_numa_map)."""
    file = tmp_path / "x N7=9 kernelpagesize_kB=4\n7f00 default N9=5 kernelpagesize_kB=4"
    file.write_bytes(b"x" * 8192)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 8192, prot=mmap.PROT_READ) as block:
        assert block[:] == b"x" * 8192
        lines = [line for line in Path("/proc/self/numa_maps").read_bytes().split(b"\n")
                 if os.fsencode(tmp_path.name) in line]
        assert sum(memory_by_node(lines)[0].values()) == 8192


def test_another_process_of_the_same_pid_is_not_taken_for_the_vmm() -> None:
    sandboxes = [entry(os.getpid(), "0", starttime=1)]
    add_memory(sandboxes, Procfs(), TwoNodes(), HIDDEN)
    assert sandboxes[0]["memory"] == {"source": None, "why": "the VMM has ended", "nodes": {}, "vcpu_nodes": [0],
                                      "away": None}


def test_a_machine_with_one_node_shows_nothing() -> None:
    class OneNode(Sysfs):
        def topology(self) -> Topology:
            return Topology.build(CpuSet([0, 1]), nodes={0: CpuSet([0, 1])})

    sandboxes = [entry(os.getpid(), "0")]
    add_memory(sandboxes, Procfs(), OneNode(), HIDDEN)
    assert sandboxes[0]["memory"] is None
    assert summary(None) == ""


def test_a_node_with_memory_alone_is_another_node(tmp_path: Path) -> None:
    """Memory behind CXL, as the machine shows it: node 1 has no CPU."""
    sysfs = Sysfs(make_tree(tmp_path / "sys", """
        devices/system/cpu/online = 0-1
        devices/system/node/node0/cpulist = 0-1
        devices/system/node/node0/distance = 10 20
        devices/system/node/node1/cpulist =
        devices/system/node/node1/distance = 20 10
    """))
    make_tree(tmp_path, f"proc/7/task/7/stat = {stat_line(7)}\nproc/7/statm = 9 9\n"
              "proc/7/numa_maps = 7f00 default anon=4 N0=1 N1=3 kernelpagesize_kB=4\\n")
    sandboxes: list[dict[str, Any]] = [{"vmm": {"pid": 7, "starttime": 100}, "threads": [
        {"role": "vcpu", "actual": "0-1"}]}]
    add_memory(sandboxes, Procfs(tmp_path / "proc"), sysfs, HIDDEN)
    assert summary(sandboxes[0]["memory"]) == "75 % on node 1, 25 % on node 0 of 0.0 GiB; the vCPUs are on node 0"


def test_a_summary_names_the_nodes_by_their_part() -> None:
    memory = {"source": "numa_maps", "why": "", "nodes": {"0": 1 << 28, "1": 15 << 28, "2": 1}, "vcpu_nodes": [0],
              "away": 0.937}
    assert summary(memory) == "94 % on node 1, 6 % on node 0 of 4.0 GiB; the vCPUs are on node 0"
    assert summary({**memory, "vcpu_nodes": [], "why": "numa_maps took longer than 2 s"}) == (
        "94 % on node 1, 6 % on node 0 of 4.0 GiB (numa_maps took longer than 2 s)")
    assert summary({**memory, "source": "cgroup", "why": "it has more than 64.0 GiB in small pages"}) == (
        "94 % on node 1, 6 % on node 0 of 4.0 GiB of its cgroup; the vCPUs are on node 0 "
        "(it has more than 64.0 GiB in small pages)")
    assert summary({"source": None, "why": "the VMM has ended", "nodes": {}, "vcpu_nodes": [], "away": None}) == (
        "not inspected: the VMM has ended")


def test_of_a_vm_with_too_many_small_pages_the_cgroup_is_shown(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And of those whose turn does not come; without such a cgroup the reason alone."""
    cgroups = made_cgroup(tmp_path, f"""
        proc/{os.getpid()}/cgroup = 0::/kata
        cg/kata/memory.numa_stat = anon N0=0 N1=6\\nfile N0=0 N1=2
        cg/kata/hugetlb.2MB.numa_stat = total=2 N0=2 N1=0
        cg/kata/hugetlb.1GB.rsvd.max = total=9 N0=9
    """)
    for limit, value, why in (("LARGEST", 1 << 20, "it has more than 0.0 GiB in small pages"),
                              ("IN_ALL", 0.0, "numa_maps of the VMs before it took 0 s")):
        monkeypatch.setattr(memory_nodes, limit, value)
        sandboxes = [entry(os.getpid(), "0")]
        add_memory(sandboxes, Procfs(), TwoNodes(), cgroups)
        assert sandboxes[0]["memory"] == {"source": "cgroup", "why": why, "nodes": {"0": 2, "1": 8}, "vcpu_nodes": [0],
                                          "away": 0.8}
        add_memory(sandboxes, Procfs(), TwoNodes(), HIDDEN)
        assert summary(sandboxes[0]["memory"]) == f"not inspected: {why}"


def made_cgroup(tmp_path: Path, tree: str) -> Cgroups:
    make_tree(tmp_path, tree)
    mounts = tmp_path / "proc/self/mountinfo"
    mounts.parent.mkdir(parents=True)
    mounts.write_text("".join(f"31 23 0:30 / {tmp_path}/cg{mount}\n" for mount in (
        " rw - cgroup2 x rw", "/memory rw - cgroup x memory", "/huge rw - cgroup x hugetlb")))
    return Cgroups(tmp_path / "cg", Procfs(tmp_path / "proc"))


def test_a_cgroups_memory_is_in_the_hierarchy_of_its_controller(tmp_path: Path) -> None:
    cgroups = made_cgroup(tmp_path, """
        proc/1/cgroup = 0::/
        proc/2/cgroup = 4:hugetlb:/b\\n3:memory:/a\\n0::/c
        proc/3/cgroup = 3:memory:/../a\\n0::/c
        cg/memory.numa_stat = anon N0=1
        cg/c/memory.numa_stat = anon N0=1
        cg/memory/a/memory.numa_stat = hierarchical_total=1 N0=0 N1=1
        cg/huge/b/hugetlb.2MB.numa_stat = total=0 N0=0\\nhierarchical_total=5 N0=5
    """)
    found = [dict(cgroup_memory(cgroups, pid)) for pid in (1, 2, 3, 4)]
    assert found == [{}, {0: 5, 1: os.sysconf("SC_PAGE_SIZE")}, {}, {}]  # 1: the topmost; 3: hidden; 4: has ended


def test_a_vmm_that_ends_meanwhile_has_no_memory(tmp_path: Path) -> None:
    """Its maps are empty as soon as it is a zombie; then its files are gone."""
    make_tree(tmp_path, f"proc/7/task/7/stat = {stat_line(7)}\nproc/7/numa_maps =")
    vms: list[dict[str, Any]] = [{"vmm": {"pid": pid, "starttime": 100}, "threads": [
        {"role": "vcpu", "actual": "None"}]} for pid in (7, 8)]
    add_memory(vms, Procfs(tmp_path / "proc"), TwoNodes(), HIDDEN)
    assert [summary(vm["memory"]) for vm in vms] == ["not inspected: numa_maps is empty",
                                                      "not inspected: the VMM has ended"]
