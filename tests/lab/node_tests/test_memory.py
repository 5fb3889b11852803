"""A guest of two NUMA nodes with bound memory: its vCPUs go there, and vmpin shows where the kernel has that memory.

Host node 0 has CPUs 0 to 3, node 1 has 4 to 7.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.node_tests.conftest import StartsVms
from lab.node_tests.guest import Guest
from lab.node_tests.machines import Kata, NestedVm, Vmpin, Watcher, mask, until
from lab.variant import Cgroup, Variant
from vmpin.features.memory import memory_nodes
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs

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


@pytest.mark.parametrize(("host_nodes", "cpus"), [
    pytest.param((0, 1), "2 3 4 5", marks=pytest.mark.release, id="same"),
    pytest.param((1, 0), "4 5 2 3", id="swapped")])
def test_the_vcpus_of_a_guest_node_are_where_its_memory_is(
        host_nodes: tuple[int, int], cpus: str, nested_vm: StartsVms, kata: Kata, vmpin: Vmpin) -> None:
    vm = nested_vm(vcpus=4, memory=2 * SIZE >> 20, extra=backends(*host_nodes), guest=Guest.IDLE)
    vm.wait_idle()
    assert bound_memory(vm) == {"bind:0": {"0": SIZE}, "bind:1": {"1": SIZE}}
    vmpin.configure(node__shared_pool="0-1,6-7")
    kata.write(vm, {"main": "2-5"})
    vmpin.reconcile()
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
    vmpin.reconcile()
    sandbox = entry(vmpin, vm)
    assert (sandbox["verdict"], sandbox["reasons"]) == (
        "pinned", ["2 of 2 pinned vCPUs are on another NUMA node than the memory of the guest"])
    assert sandbox["memory"]["vcpu_nodes"] == [1]
    assert sandbox["memory"]["away"] > 0.5
    subprocess.run(["migratepages", str(vm.pid), "0", "1"], check=True)
    assert bound_memory(vm) == {"bind:0": {"1": SIZE}}
    assert entry(vmpin, vm)["memory"]["away"] < 0.2


@contextlib.contextmanager
def cgroups_of_a_vm(variant: Variant) -> Iterator[list[Path]]:
    """New cgroups of the controllers memory and hugetlb; their processes have ended when they are removed."""
    top = Path("/sys/fs/cgroup")
    if variant.cgroup is Cgroup.V2:
        (top / "cgroup.subtree_control").write_text("+memory +hugetlb")
        tops = [top]
    else:
        tops = [top / "memory", top / "hugetlb"]
        for controller in tops:
            if not controller.is_mount():
                controller.mkdir(exist_ok=True)
                subprocess.run(["mount", "-t", "cgroup", "-o", controller.name, "cgroup", controller], check=True)
    paths = [top / "lab-memory" for top in tops]
    for path in paths:
        path.mkdir()
    try:
        yield paths
    finally:
        def removed() -> bool:
            for path in paths:
                with contextlib.suppress(OSError):  # a process that was killed takes a moment to leave it
                    path.rmdir()
            return not any(path.exists() for path in paths)

        until(removed, "the cgroups to be empty")


@pytest.fixture
def huge_pages() -> Iterator[None]:
    """Of 2 MiB, enough for a backend on node 1."""
    file = Path("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages")
    file.write_text(str(SIZE >> 21))
    assert int(file.read_text()) == SIZE >> 21
    yield
    file.write_text("0")


def scrape(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


@pytest.mark.usefixtures("huge_pages")
def test_the_cgroup_has_small_and_huge_pages_by_node(
        nested_vm: StartsVms, kata: Kata, vmpin: Vmpin, watcher: Watcher, variant: Variant, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Guest node 0 in small pages of host node 0, guest node 1 in huge pages of host node 1; as for a VM of which
    numa_maps would take too long, and as the metric has it."""
    with cgroups_of_a_vm(variant) as paths, contextlib.ExitStack() as stack:
        enter = "; ".join(f"echo $$ >{path}/cgroup.procs" for path in paths)
        huge = [word.replace("memory-backend-ram,id=m1", "memory-backend-memfd,id=m1,hugetlb=on,hugetlbsize=2M")
                for word in backends(0, 1)]
        vm = stack.enter_context(NestedVm(vcpus=4, memory=2 * SIZE >> 20, extra=huge, guest=Guest.IDLE, program=[
            "sh", "-c", f'{enter}; exec qemu-system-x86_64 "$@"', "qemu"]))
        vm.wait_idle()
        kata.write(vm, {"main": "2-5"})
        vmpin.configure(node__shared_pool="0-1,6-7", memory__metrics=True, metrics__per_sandbox=True,
                        metrics__address=f"unix:{tmp_path}/metrics.sock")
        with watcher:
            own = entry(vmpin, vm)["memory"]
            assert own["source"] == "numa_maps"
            text = scrape(tmp_path / "metrics.sock")
            sizes = {node: float(size) for node, size in re.findall(
                rf'vmpin_sandbox_memory_bytes{{.*node="([01])".*{vm.sandbox}.*}} (\S+)', text)}
            assert all(SIZE <= sizes[node] < 2 * SIZE for node in "01"), text
        monkeypatch.setattr(memory_nodes, "LARGEST", 0)
        sandbox = entry(vmpin, vm)
        memory_nodes.add_memory([sandbox], Procfs(), Sysfs(), Cgroups())
        of_cgroup = sandbox["memory"]
        assert of_cgroup["source"] == "cgroup"
        assert all(SIZE <= of_cgroup["nodes"][node] < 2 * SIZE for node in "01")
