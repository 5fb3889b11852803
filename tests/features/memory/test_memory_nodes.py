"""Where a VM's memory is: numa_maps added up, for a bounded time, and beside the vCPUs."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from vmpin.cpuset import CpuSet
from vmpin.domain.topology import Topology
from vmpin.features.memory import memory_nodes
from vmpin.features.memory.memory_nodes import add_memory, memory_by_node, parse_numa_map
from vmpin.features.memory.memory_text import summary
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs


@pytest.mark.parametrize(("line", "nodes"), [
    (b"7f0000000000 bind:1 anon=262144 dirty=262144 N0=4 N1=262140 kernelpagesize_kB=4",
     {0: 4 << 12, 1: 262140 << 12}),
    (b"7f4000000000 prefer:0 file=/dev/hugepages/vm huge anon=512 N0=512 kernelpagesize_kB=2048", {0: 1 << 30}),
    (b"55d0 default file=/usr/bin/qemu mapped=2 N12=2 kernelpagesize_kB=4", {12: 8192}),
    (b"55d0 default", {}), (b"", {}), (b"N0=4 N1=x kernelpagesize_kB=", {}), (b"55d0 default N0=5", {}),
    (b"55d0 default file=/tmp/N3=9 N0=1 kernelpagesize_kB=4", {0: 4096}),
    (b"55d0 default N99999=1 kernelpagesize_kB=4", {}),
])
def test_a_mappings_bytes_by_node(line: bytes, nodes: dict[int, int]) -> None:
    assert dict(parse_numa_map(line)) == nodes


def test_mappings_are_added_up_until_the_time_is_over() -> None:
    line, now = b"a default N0=1 kernelpagesize_kB=4\n", iter(range(100))
    assert memory_by_node([line] * 3, 100, lambda: next(now)) == ({0: 3 * 4096}, True)
    total, whole = memory_by_node([line] * 50, 5, lambda: next(now))
    assert (total[0], whole) == (5 * 4096, False)


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
        add_memory(sandboxes, Procfs(), TwoNodes())
    near, far, without = (sandbox["memory"] for sandbox in sandboxes)
    assert without is None
    assert sum(near["nodes"].values()) >= size
    assert (near["vcpu_nodes"], far["vcpu_nodes"]) == ([0], [1])
    assert near["away"] + far["away"] == pytest.approx(1, abs=0.01)
    assert summary(near).endswith("the vCPUs are on node 0")


def test_another_process_of_the_same_pid_is_not_taken_for_the_vmm() -> None:
    sandboxes = [entry(os.getpid(), "0", starttime=1)]
    add_memory(sandboxes, Procfs(), TwoNodes())
    assert sandboxes[0]["memory"] == {"why": "not inspected: the VMM has ended", "nodes": {}, "vcpu_nodes": [0],
                                      "away": None}


def test_a_machine_with_one_node_shows_nothing() -> None:
    class OneNode(Sysfs):
        def topology(self) -> Topology:
            return Topology.build(CpuSet([0, 1]), nodes={0: CpuSet([0, 1])})

    sandboxes = [entry(os.getpid(), "0")]
    add_memory(sandboxes, Procfs(), OneNode())
    assert sandboxes[0]["memory"] is None
    assert summary(None) == ""


def test_a_summary_names_the_nodes_by_their_part() -> None:
    memory = {"why": "", "nodes": {"0": 1 << 28, "1": 15 << 28, "2": 1}, "vcpu_nodes": [0], "away": 0.937}
    assert summary(memory) == "94 % on node 1, 6 % on node 0 of 4.0 GiB; the vCPUs are on node 0"
    assert summary({**memory, "vcpu_nodes": [], "why": "not all of it was read within 2 s"}) == (
        "94 % on node 1, 6 % on node 0 of 4.0 GiB (not all of it was read within 2 s)")
    assert summary({"why": "not inspected: run it as root", "nodes": {}, "vcpu_nodes": [], "away": None}) == (
        "not inspected: run it as root")


def test_a_vm_with_too_many_small_pages_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_nodes, "LARGEST", 1 << 20)
    sandboxes = [entry(os.getpid(), "0")]
    add_memory(sandboxes, Procfs(), TwoNodes())
    assert sandboxes[0]["memory"]["why"] == "not inspected: it has more than 0.0 GiB in small pages"
    monkeypatch.setattr(memory_nodes, "IN_ALL", 0.0)
    add_memory(sandboxes, Procfs(), TwoNodes())
    assert sandboxes[0]["memory"]["why"] == "not inspected: the VMs before it took 0 s"
