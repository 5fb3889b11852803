"""Runc pods beside VMs under a real containerd: their CPUs are left to them, also those that they lost."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import given_containerd
import pytest
from cri_node import CriNode, drifted
from nri_peer import delivering
from process_masks import seen, union
from real_containerd import VM, Containerd, suites
from waiting import PATIENCE, wait

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.sources.nri.connection import connect_to
from vmpin.sources.nri.nri_events import NriEvent, NriUpdate, Synced
from vmpin.sources.nri.plugin import NriPlugin

pytest_plugins = ["given"]
containerd, node = given_containerd.containerd, given_containerd.node
pytestmark = pytest.mark.root


def test_a_vm_stays_off_the_cpus_of_a_runc_container(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    both = union(cpus)
    node.connect()
    vm = node.containerd.pod("vm", VM, vcpus=2)
    vm.container("main", cpus=both)
    node.wait_for_all(vm.pid, both)
    web = node.containerd.pod("web")
    main = web.container("main", cpus=second)  # not of the pool: its own
    node.wait_for_all(vm.pid, first)
    (owner,) = node.status()["node"]["owners"]
    assert (owner["sandbox"], owner["cpus"], owner["kind"]) == (web.id, second, "runc")
    assert main.cgroup_cpus() == second
    main.update(cpus=first)
    node.wait_for_all(vm.pid, both)
    main.update(cpus=second)
    node.wait_for_all(vm.pid, first)
    web.remove()
    node.wait_for_all(vm.pid, both)
    assert node.status()["node"]["owners"] == []


@contextlib.contextmanager
def moved_by_another_plugin(node: CriNode, cpus: str, *containers: str) -> Iterator[None]:
    """A second plugin, which gives containers these CPUs at its own Synchronize."""
    events: list[NriEvent] = []
    other = NriPlugin(connect_to(node.containerd.nri_socket), delivering(events.append), name="other", index="10")
    other.reconnect({ContainerId(each): NriUpdate(CpuSet.parse(cpus)) for each in containers})
    other.start()
    try:
        wait(lambda: any(isinstance(event, Synced) and event.updated for event in events),
             lambda: f"not moved: {events}")
        yield
    finally:
        other.stop(PATIENCE)


def test_what_another_plugin_does_to_a_container_is_seen_in_its_cgroup(node: CriNode, cpus: tuple[str, str]) -> None:
    """NRI reports an update in a plugin's answer to Synchronize, as balloons makes them, to no plugin."""
    first, second = cpus
    both = union(cpus)
    node.configure(watch={"resync_seconds": 0.3})
    node.connect()
    vm = node.containerd.pod("vm", VM)
    vm.container("main", cpus=both)
    main = node.containerd.pod("web").container("main", cpus=first)
    node.wait_for_all(vm.pid, both)
    # The list, and of two pods that each runs, and twice its container's creation and start: the last one is counted a
    # moment after the runtime has its answer.
    events = 1 + 2 * 5
    wait(lambda: node.nri()["events"] == events, node.nri)
    with moved_by_another_plugin(node, second, main.id):
        wait(lambda: main.cgroup_cpus() == second, lambda: f"not moved: {main.cgroup_cpus()}")
    node.wait_for_all(vm.pid, first)
    assert node.nri()["events"] == events
    (owner,) = node.status()["node"]["owners"]
    assert (owner["container"], owner["cpus"]) == (main.id, second)


def test_a_vm_floats_on_its_balloon_and_follows_when_that_is_moved(node: CriNode, cpus: tuple[str, str]) -> None:
    """As nri-plugins' balloons do it at every connect: containers of one pod share CPUs, which are moved at a plugin's
    own Synchronize. node.shared_pool is unset, as the doctor has it."""
    first, second = cpus
    node.configure(node={"shared_pool": None}, watch={"resync_seconds": 0.5})
    node.connect()
    vm = node.containerd.pod("vm", VM, vcpus=2)
    containers = [vm.container(name, cpus=first) for name in ("main", "side")]
    node.wait_for_all(vm.pid, first)
    with moved_by_another_plugin(node, second, *(each.id for each in containers)):
        pass
    sandbox = containers[0].cgroup.with_name(f"kata_{vm.id}") / "cpuset.cpus"

    def follows() -> bool:
        """Kata writes it at every update. Right after the containers' creation that would explain it, so again."""
        sandbox.write_text(sandbox.read_text())
        time.sleep(1)
        return seen(vm.pid).all() == {second}

    wait(follows, lambda: f"still {seen(vm.pid).all()}\n{node.log()}")
    assert node.status()["node"]["collisions"] == []
    assert {each["cpuset"] for each in node.sandbox(vm.id)["containers"]} == {second}


@pytest.mark.parametrize("suite", suites())
def test_a_container_that_ends_by_itself_gives_its_cpus_back(suite: str, cpus: tuple[str, str]) -> None:
    """The runtime was not asked to stop it; so with a VMM that was killed. It ends when its CPUs were seen to be its
    own, however long that took."""
    first, second = cpus
    both = union(cpus)
    with Containerd(suite) as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": first})
        node.connect()
        vm = containerd.pod("vm", VM, vcpus=2)
        vm.container("main", cpus=both)
        own = containerd.pod("web").container("own", cpus=second)
        node.wait_for_all(vm.pid, first)
        os.kill(own.pid, signal.SIGKILL)
        node.wait_for_all(vm.pid, both)
        own = vm.container("own", cpus=second)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second})
        os.kill(own.pid, signal.SIGKILL)
        node.wait_for_all(vm.pid, both)
        assert [each["name"] for each in node.sandbox(vm.id)["containers"]] == ["main"]
        os.kill(vm.pid, signal.SIGKILL)
        # The pod is still there, and by its runtime handler it is a VM.
        wait(lambda: node.sandbox(vm.id)["vmm"] is None, lambda: f"still there: {node.status()}")
        assert node.sandbox(vm.id)["reasons"] == ["its VMM does not run"]
        vm.remove()
        wait(lambda: node.sandbox(vm.id) is None, lambda: f"still there: {node.status()}")


def test_runc_pods_are_left_as_they_are(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    web = node.containerd.pod("web")
    main = web.container("main", cpus=second)
    before = {pid: os.sched_getaffinity(pid) for pid in (web.pid, main.pid)}
    node.connect()
    vm = node.containerd.pod("vm", VM)
    node.wait_for_all(vm.pid, first)
    assert {pid: os.sched_getaffinity(pid) for pid in before} == before
    assert node.sandbox(web.id) is None
    assert main.cgroup_cpus() == second


def test_a_runc_container_that_drifted_is_left_alone_and_reported(node: CriNode, cpus: tuple[str, str]) -> None:
    now = drifted(node, cpus)
    node.wait_for_log("disagree")
    assert now() == cpus[0]
