"""A guest of two NUMA nodes with bound memory: its vCPUs go there, and vmpin shows where the kernel has that memory.

Host node 0 has CPUs 0 to 3, node 1 has 4 to 7.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lab.node_tests.conftest import StartsVms
from lab.node_tests.guest import Guest
from lab.node_tests.machines import Kata, NestedVm, Vmpin, mask

#: Of a backend of guest memory, and of a page of it (bytes).
SIZE, PAGE = 96 << 20, 4096


def backends(*host_nodes: int) -> list[str]:
    """A guest node of two vCPUs for each host node that its memory is bound to; all of it is touched at the start."""
    return [word for node, host in enumerate(host_nodes) for word in (
        "-object", f"memory-backend-ram,id=m{node},size={SIZE >> 20}M,prealloc=on,host-nodes={host},policy=bind",
        "-numa", f"node,nodeid={node},memdev=m{node},cpus={2 * node}-{2 * node + 1}")]


def bound_memory(vm: NestedVm) -> dict[str, Counter[str]]:
    """Bytes by policy and by the node that has them, of all mappings with a policy."""
    found: dict[str, Counter[str]] = {}
    for line in Path(f"/proc/{vm.pid}/numa_maps").read_text().splitlines():
        _, policy, *fields = line.split()
        for field in fields if policy.startswith("bind") else ():
            if field[0] == "N":
                node, _, pages = field[1:].partition("=")
                found.setdefault(policy, Counter())[node] += int(pages) * PAGE
    return found


def entry(vmpin: Vmpin, vm: NestedVm) -> dict[str, Any]:
    (sandbox,) = vmpin.json("status", vm.sandbox, "--inspect")["sandboxes"]
    return dict(sandbox)


@pytest.mark.parametrize(("host_nodes", "cpus"), [((0, 1), "2 3 4 5"), ((1, 0), "4 5 2 3")], ids=["same", "swapped"])
def test_the_vcpus_of_a_guest_node_are_where_its_memory_is(
        host_nodes: tuple[int, int], cpus: str, nested_vm: StartsVms, kata: Kata, vmpin: Vmpin) -> None:
    vm = nested_vm(vcpus=4, memory=2 * SIZE >> 20, extra=backends(*host_nodes), guest=Guest.IDLE)
    vm.wait_idle()
    assert bound_memory(vm) == {"bind:0": {"0": SIZE}, "bind:1": {"1": SIZE}}
    vmpin.configure(node__shared_pool="0-1,6-7")
    kata.write(vm, {"main": "2-5"})
    vmpin("reconcile")
    assert [str(mask(tid)) for _, tid in sorted(vm.vcpu_tids().items())] == cpus.split()
    sandbox = entry(vmpin, vm)
    assert (sandbox["verdict"], sandbox["reasons"]) == ("pinned", [])
    memory = sandbox["memory"]
    assert (memory["why"], memory["vcpu_nodes"], memory["away"]) == ("", [0, 1], 0)
    assert all(memory["nodes"][node] >= SIZE for node in "01")


def test_memory_on_another_node_is_shown_until_the_kernel_has_moved_it(
        nested_vm: StartsVms, kata: Kata, vmpin: Vmpin) -> None:
    vm = nested_vm(vcpus=2, memory=SIZE >> 20, extra=backends(0), guest=Guest.IDLE)
    vm.wait_idle()
    vmpin.configure(node__shared_pool="0-3")
    kata.write(vm, {"main": "4-5"})
    vmpin("reconcile")
    sandbox = entry(vmpin, vm)
    assert (sandbox["verdict"], sandbox["reasons"]) == (
        "pinned", ["2 of 2 pinned vCPUs are on another NUMA node than the memory of the guest"])
    assert sandbox["memory"]["vcpu_nodes"] == [1]
    assert sandbox["memory"]["away"] > 0.5
    assert " the vCPUs are on node 1" in vmpin("status", "-o", "wide")
    assert "1 VM with memory on other NUMA nodes than the vCPUs" in vmpin("doctor", "memory")
    subprocess.run(["migratepages", str(vm.pid), "0", "1"], check=True)
    assert bound_memory(vm) == {"bind:0": {"1": SIZE}}
    assert entry(vmpin, vm)["memory"]["away"] < 0.2
    assert vmpin("doctor", "memory").startswith("ok ")
