"""vmpin as an NRI plugin of a real containerd, with VM pods under KVM and runc pods side by side, on eight CPUs. What
two CPUs can show of it is in tests/integration/test_watch_nri.py."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cri_node import CriNode
from process_masks import seen
from real_containerd import VM, Container, Containerd, Pod
from waiting import wait

from lab.node_tests.guest import Guest
from vmpin.cpuset import CpuSet

NODE = CpuSet.parse("0-7")


@pytest.fixture
def containerd() -> Iterator[Containerd]:
    with Containerd(accel="kvm", bios=Guest.IDLE.rom()) as made:
        yield made


@pytest.fixture
def node(containerd: Containerd) -> Iterator[CriNode]:
    with CriNode(containerd) as made:
        yield made


class Kubelet:
    """The static CPU manager: it writes the owners first, and updates the containers after that."""

    def __init__(self, node: CriNode) -> None:
        self.node = node
        self._own: dict[Container, tuple[str, str]] = {}
        #: To containers that are being made, by name.
        self._given: dict[str, tuple[str, str]] = {}
        self._shared: list[Container] = []
        self._write()

    @property
    def pool(self) -> str:
        owned = CpuSet()
        for _, cpus in (*self._own.values(), *self._given.values()):
            owned |= CpuSet.parse(cpus)
        return str(NODE - owned)

    def _write(self) -> None:
        entries: dict[str, dict[str, str]] = {}
        made = [(container.name, given) for container, given in self._own.items()]
        for name, (uid, cpus) in [*made, *self._given.items()]:
            entries.setdefault(uid, {})[name] = cpus
        self.node.checkpoint(self.pool, entries)

    def start(self, pod: Pod, name: str, uid: str = "", cpus: str = "") -> Container:
        """:param cpus: for it alone; the shared pool when there are none."""
        if not cpus:
            made = pod.create(name, cpus=self.pool)
            self._shared.append(made)
            return made.start()
        self._given[name] = uid, cpus
        self._write()
        made = pod.create(name, cpus=cpus)
        self._own[made] = self._given.pop(name)
        self._report()
        return made.start()

    def end(self, container: Container) -> None:
        container.remove()
        if self._own.pop(container, None):
            self._write()
            self._report()
        else:
            self._shared.remove(container)

    def _report(self) -> None:
        for container in self._shared:
            container.update(cpus=self.pool)


@pytest.mark.release
def test_vm_pods_and_runc_pods_share_a_node(node: CriNode) -> None:
    containerd, kubelet = node.containerd, Kubelet(node)
    node.connect()
    vm = containerd.pod("vm", VM, vcpus=4, uid="uid-vm")
    side = kubelet.start(vm, "side")
    node.wait_for_all(vm.pid, "0-7")
    main = kubelet.start(vm, "main", "uid-vm", "2-3")
    assert kubelet.pool == "0-1,4-7"
    node.wait_for_vcpus(vm.pid, {0: "0-1,4-7", 1: "0-1,4-7", 2: "2", 3: "3"}, "0-1,4-7")

    web = containerd.pod("web", uid="uid-web")
    own = kubelet.start(web, "own", "uid-web", "4-5")
    kubelet.start(web, "shared")
    node.wait_for_vcpus(vm.pid, {0: "0-1,6-7", 1: "0-1,6-7", 2: "2", 3: "3"}, "0-1,6-7")
    assert os.sched_getaffinity(own.pid) == {4, 5}
    owners = {(each["sandbox"], each["kind"]): each["cpus"] for each in node.status()["node"]["owners"]}
    assert owners == {(vm.id, "vm"): "2-3", (web.id, "runc"): "4-5"}
    assert node.status()["node"]["collisions"] == []
    assert node.cli("verify").returncode == 0

    # A second VM; no thread is on another container's CPUs.
    other = containerd.pod("other", VM, vcpus=2, uid="uid-other")
    kubelet.start(other, "main", "uid-other", "6-7")
    node.wait_for_vcpus(other.pid, {0: "6", 1: "7"}, "6-7")
    node.wait_for_vcpus(vm.pid, {0: "0-1", 1: "0-1", 2: "2", 3: "3"}, "0-1")

    kubelet.end(own)
    node.wait_for_vcpus(vm.pid, {0: "0-1,4-5", 1: "0-1,4-5", 2: "2", 3: "3"}, "0-1,4-5")
    other.remove()
    wait(lambda: node.sandbox(other.id) is None, lambda: f"still there: {node.status()}")
    kubelet.end(side)
    node.wait_for_vcpus(vm.pid, {0: "2-3", 1: "2-3", 2: "2", 3: "3"}, "2-3")
    assert main.id in {each["container"] for each in node.status()["node"]["owners"]}


@pytest.mark.release
def test_nothing_moves_while_runtime_or_watcher_are_away(node: CriNode) -> None:
    containerd, kubelet = node.containerd, Kubelet(node)
    node.connect()
    vm = containerd.pod("vm", VM, vcpus=3, uid="uid-vm")
    kubelet.start(vm, "side")
    kubelet.start(vm, "main", "uid-vm", "2-3")
    web = containerd.pod("web", uid="uid-web")
    before = {0: "0-1,4-7", 1: "2", 2: "3"}
    node.wait_for_vcpus(vm.pid, before, "0-1,4-7")
    pid = vm.pid

    containerd.kill()
    time.sleep(1)
    assert seen(pid).vcpus == before
    containerd.start()
    node.wait_for_sync(2)
    assert seen(pid).vcpus == before
    own = kubelet.start(web, "own", "uid-web", "4-5")
    node.wait_for_vcpus(pid, {0: "0-1,6-7", 1: "2", 2: "3"}, "0-1,6-7")

    node.kill()
    kubelet.end(own)
    assert seen(pid).vcpus == {0: "0-1,6-7", 1: "2", 2: "3"}
    node.connect()
    node.wait_for_vcpus(pid, before, "0-1,4-7")


@pytest.mark.release
def test_a_vmm_that_is_killed_gives_its_cpus_back(node: CriNode) -> None:
    containerd, kubelet = node.containerd, Kubelet(node)
    node.connect()
    vm = containerd.pod("vm", VM, vcpus=2, uid="uid-vm")
    main = kubelet.start(vm, "main", "uid-vm", "2-3")
    other = containerd.pod("other", VM, vcpus=2)
    side = kubelet.start(other, "side")
    node.wait_for_vcpus(vm.pid, {0: "2", 1: "3"})
    node.wait_for_all(other.pid, "0-1,4-7")
    os.kill(vm.pid, signal.SIGKILL)
    wait(lambda: containerd.cri.pod_pid(vm.id) == 0, "containerd does not notice")
    kubelet.end(main)
    vm.remove()
    assert side.pod is other
    node.wait_for_all(other.pid, "0-7")
    wait(lambda: node.sandbox(vm.id) is None, lambda: f"still there: {node.status()}")
    assert node.status()["node"]["owners"] == []


@pytest.mark.release
def test_a_runc_container_has_its_cpuset_and_the_vm_its_cgroup(node: CriNode) -> None:
    """On either cgroup version: what vmpin takes for them is what the kernel has."""
    containerd, kubelet = node.containerd, Kubelet(node)
    node.connect()
    web = containerd.pod("web", uid="uid-web")
    own = kubelet.start(web, "own", "uid-web", "4-5")
    vm = containerd.pod("vm", VM, vcpus=2)
    kubelet.start(vm, "side")
    node.wait_for_all(vm.pid, "0-3,6-7")
    wait(lambda: node.status()["node"]["owners"], "no container owns a CPU")
    (owner,) = node.status()["node"]["owners"]
    assert Path(owner["cgroup"]) == own.cgroup
    assert containerd.outer(owner["init"]) == own.pid
    (sandbox,) = node.data("status", vm.id)["sandboxes"]
    assert sandbox["cgroup"]["path"].endswith(f"/kata_{vm.id}")
    assert sandbox["cgroup"]["cpus"] == "0-7"
