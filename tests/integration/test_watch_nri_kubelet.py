"""The kubelet's checkpoint beside a real containerd."""

from __future__ import annotations

import json
from typing import Any

import given_containerd
import pytest
from cri_node import CriNode, stays
from process_masks import seen, union
from real_containerd import VM
from waiting import wait

pytest_plugins = ["given"]
containerd, node = given_containerd.containerd, given_containerd.node
pytestmark = pytest.mark.root


def test_the_checkpoint_has_the_pool_and_the_exclusive_cpus(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    both = union(cpus)
    node.configure(node={"shared_pool": None})
    node.checkpoint(both)
    node.connect()
    vm = node.containerd.pod("vm", VM, vcpus=2, uid="uid-1")
    vm.container("side", cpus=both)
    main = vm.container("main", cpus=both)
    node.wait_for_all(vm.pid, both)
    assert node.sandbox(vm.id)["verdict"] == "floating"
    # The kubelet writes its file at once, and updates the containers at its next reconciliation.
    node.checkpoint(first, {"uid-1": {"main": second}})
    main.update(cpus=second)
    node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
    status = node.status()
    assert status["node"]["shared_pool"] == first
    assert [(each["name"], each["exclusive_by"]) for each in status["sandboxes"][0]["containers"]
            if each["exclusive"]] == [("main", "kubelet")]
    node.checkpoint(both)
    main.update(cpus=both)
    node.wait_for_all(vm.pid, both)
    assert node.status()["node"]["shared_pool"] == both


def test_pods_that_are_well_placed_pass_the_audit_by_name(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": None})
    node.checkpoint(first, {"uid-1": {"main": second}})
    node.connect()
    web, log = node.containerd.pod("web", uid="uid-1"), node.containerd.pod("log", uid="uid-2")
    web.container("main", cpus=second)
    side = log.container("side", cpus=first)
    wait(lambda: [owner["kind"] for owner in node.status()["node"]["owners"]] == ["runc"], node.log)

    def audited(*more: str) -> tuple[Any, dict[str, str]]:
        """The document, and the classes of what is found of the two pods, by name without the namespace."""
        done = node.cli("verify", "--others", "--seconds", "0", "-o", "json", *more)
        found = json.loads(done.stdout)
        # This machine may have containers of its own, too.
        astray = [each["pid"] for each in found["findings"] if each["class"] in ("vm", "container")]
        assert done.returncode == (1 if astray or more else 0), found
        return found, {name: each["class"] for each in found["findings"]
                       if (name := each["name"].partition("/")[2]).split("/")[0] in ("web", "log")}

    found, ours = audited()
    assert ours == {}
    assert found["ignored"]["pause"] >= 2
    (owner,) = found["owners"]
    assert owner["name"].split("/")[1:] == ["web", "main"]
    assert audited("--strict")[1] == {"web": "pause", "log": "pause"}
    side.update(cpus=second)
    wait(lambda: audited()[1] == {"log/side": "container"}, node.log)


def test_the_checkpoint_alone_moves_a_vm(node: CriNode, cpus: tuple[str, str]) -> None:
    """Another pod got the CPU; the shared containers' updates come up to ten seconds later."""
    first, second = cpus
    both = union(cpus)
    node.configure(node={"shared_pool": None})
    node.checkpoint(both)
    node.connect()
    vm = node.containerd.pod("vm", VM, vcpus=2)
    vm.container("main", cpus=both)
    node.wait_for_all(vm.pid, both)
    # At admission, long before there is a pod; and it stays so while that is made, and when its container ends.
    node.checkpoint(first, {"uid-2": {"main": second}})
    node.wait_for_all(vm.pid, first)
    web = node.containerd.pod("web", uid="uid-2")
    stays(vm, first)
    main = web.container("main", cpus=second)
    stays(vm, first)
    main.remove()
    stays(vm, first)
    node.checkpoint(both)
    web.remove()
    node.wait_for_all(vm.pid, both)


def test_the_checkpoint_counts_without_a_runtime_that_reports(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    both = union(cpus)
    node.configure(node={"shared_pool": None}, watch={"nri": "off"})
    node.checkpoint(both)
    node.start()
    vm = node.containerd.pod("vm", VM)
    assert node.cli("repin").returncode == 0
    node.wait_for_all(vm.pid, both)
    node.checkpoint(first, {"uid-2": {"main": second}})
    node.wait_for_all(vm.pid, first)


@pytest.mark.parametrize("text", ["", "{", '{"policyName":"static","defaultCpuSet":"x"}', "[]"])
def test_a_checkpoint_that_is_none_leaves_the_last_one_and_is_reported(node: CriNode, cpus: tuple[str, str],
                                                                  text: str) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": None})
    node.checkpoint(first, {"uid-1": {"main": second}})
    node.connect()
    vm = node.containerd.pod("vm", VM, vcpus=2, uid="uid-1")
    vm.container("main", cpus=second)
    vm.container("side", cpus=first)
    node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
    node.place_checkpoint(text)
    node.wait_for_log("cpu_manager_state")
    assert seen(vm.pid).vcpus == {0: first, 1: second}
    assert node.status()["node"]["shared_pool"] == first
    node.checkpoint(second, {"uid-1": {"main": first}})
    wait(lambda: node.status()["node"]["shared_pool"] == second, "the next one is not read")


def test_a_kubelet_without_the_static_policy_makes_no_cpu_exclusive(node: CriNode, cpus: tuple[str, str]) -> None:
    both = union(cpus)
    node.configure(node={"shared_pool": None})
    node.checkpoint("", policy="none")
    node.connect()
    vm = node.containerd.pod("vm", VM, vcpus=2)
    vm.container("main", cpus=both)
    node.wait_for_all(vm.pid, both)
    status = node.status()
    assert status["sources"]["kubelet"]["policy"] == "none"
    assert status["node"]["owners"] == []
