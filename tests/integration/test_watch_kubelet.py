"""The watcher beside a kubelet, and hooks alone as a source: its checkpoint, and PodResources as a witness."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubelet_peer import KUBELET, Kubelet
from process_masks import two_cpus, union
from real_node import Node
from real_qemu import Qemu
from runtime_bundle import cri
from waiting import wait

pytestmark = pytest.mark.root
UID = "1-2-3"


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as made:
        (made.top / "kubelet/pod-resources").mkdir(parents=True)
        made.configure(paths={"kubelet": str(made.top / "kubelet")}, watch={"resync_seconds": 0.3})
        yield made


def checkpoint(node: Node, text: str) -> Path:
    path = node.top / "kubelet/cpu_manager_state"
    new = path.with_name(".new")
    new.write_text(text)
    new.rename(path)
    return path


def report(node: Node, vm: Qemu, name: str, cpus: str) -> None:
    """As a hook does, with the annotations that name the pod."""
    state = node.state(vm.sandbox, name, node.bundle(name, cpus), vm.pid)
    state["annotations"] = {**cri(vm.sandbox, name, pod="shop"), "io.kubernetes.cri.sandbox-uid": UID}
    assert node.hook("createRuntime", state) == b"ok\n"


def test_the_checkpoint_decides_and_podresources_may_disagree(node: Node) -> None:
    first, second = two_cpus()
    both = union((first, second))
    state = {"policyName": "static", "defaultCpuSet": first, "entries": {UID: {"web": second}}, "checksum": 0}
    checkpoint(node, json.dumps(state))
    kubelet = Kubelet(node.top / "kubelet/pod-resources/kubelet.sock")
    try:
        with Qemu(node.id("a"), vcpus=2) as vm:
            kubelet.lists(_pod(web=[int(first)]))
            node.start()
            report(node, vm, "web", second)
            report(node, vm, "logs", first)
            node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
            (web, logs) = node.sandbox(vm.sandbox)["containers"]
            assert (web["exclusive_by"], web["kubelet"], logs["exclusive_by"]) == ("kubelet", second, None)
            wait(lambda: node.status()["sources"]["kubelet"]["pod_resources"], "PodResources to be asked")
            said = f"kubelet {second}, podresources {first}"
            wait(lambda: node.sandbox(vm.sandbox)["containers"][0]["disagreement"] == said, node.log)
            assert said in " ".join(node.sandbox(vm.sandbox)["reasons"])
            assert said in node.cli("status", "--explain", vm.sandbox).stdout
            # The kubelet takes the CPUs back: seen by the rename, and no container owns any.
            checkpoint(node, json.dumps({"policyName": "static", "defaultCpuSet": both, "checksum": 0}))
            node.wait_for_all(vm.pid, both)
            assert node.status()["node"]["owners"] == []
    finally:
        kubelet.stop()


@pytest.mark.parametrize("bad", ["", '{"policyName":"static","defaultCpuSet":"0', '{"policyName":"static","defaultCpu'
                                 'Set":"zero"}', "[]", "\0" * 100])
def test_a_checkpoint_that_is_none_changes_nothing_and_is_counted(node: Node, bad: str) -> None:
    first, second = two_cpus()
    good = json.dumps({"policyName": "static", "defaultCpuSet": first, "entries": {UID: {"web": second}}})
    checkpoint(node, good)
    with Qemu(node.id("a"), vcpus=1) as vm:
        node.start()
        report(node, vm, "web", second)
        node.wait_for_all(vm.pid, second)
        path = checkpoint(node, bad)
        wait(lambda: node.status()["sources"]["kubelet"]["bad"] == 1, node.log)
        node.resyncs()
        kubelet = node.status()["sources"]["kubelet"]
        assert (kubelet["exclusive"], kubelet["bad"]) == (second, 1)
        assert str(path) in kubelet["trouble"]
        assert node.log().count(str(path)) == 1
        assert {"".join(map(str, os.sched_getaffinity(vm.pid)))} == {second}
        checkpoint(node, good)
        wait(lambda: node.status()["sources"]["kubelet"]["trouble"] == "", node.log)


def test_cpus_of_pods_that_only_the_kubelet_reports_are_owned(node: Node) -> None:
    """As of runc pods on a node without NRI: there need not be a single VM for it."""
    first, second = two_cpus()
    node.start()
    assert node.status()["node"]["owners"] == []
    checkpoint(node, json.dumps({"policyName": "static", "defaultCpuSet": first, "entries": {"u-1": {"web": second}}}))
    wait(lambda: node.status()["node"]["exclusive"] == second, node.log)
    (owner,) = node.status()["node"]["owners"]
    assert (owner["sandbox"], owner["container"], owner["cpus"], owner["kind"]) == ("u-1", "web", second, "unseen")
    assert node.status()["node"]["shared_pool"] == first
    with Qemu(node.id("a"), vcpus=1) as vm:
        report(node, vm, "logs", union((first, second)))  # the kubelet has not narrowed it yet
        node.wait_for_all(vm.pid, first)
        # Its threads are kept off the other pod's CPU: that is no collision.
        assert node.sandbox(vm.sandbox)["containers"][0]["stale_cpuset"] == union((first, second))
        assert node.status()["node"]["collisions"] == []


def test_a_cpu_that_a_container_has_beyond_its_entry_is_for_the_vms_other_threads(node: Node) -> None:
    """Mixed CPUs, as CRI-O, CPU-Pooler and NRI plugins give them."""
    first, second = two_cpus()
    checkpoint(node, json.dumps({"policyName": "static", "defaultCpuSet": first, "entries": {UID: {"web": second}}}))
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        report(node, vm, "web", union((first, second)))
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        (web,) = node.sandbox(vm.sandbox)["containers"]
        assert (web["cpuset"], web["own_cpus"], web["kubelet"]) == (union((first, second)), second, second)
        assert node.status()["node"]["collisions"] == []
        assert f"has CPUs {union((first, second))}, of which {second} are exclusive" in node.cli(
            "status", "--explain", vm.sandbox).stdout


def test_a_shared_vm_whose_cpus_have_become_another_pods_waits_for_its_cgroup(node: Node) -> None:
    """The kubelet frees and gives CPUs in one step, and rewrites running containers' cpusets up to ten seconds later.
    Until then Kata's cgroup keeps the VM where it is (on cgroup v2 the whole VMM is in it)."""
    first, second = two_cpus()
    checkpoint(node, json.dumps({"policyName": "static", "defaultCpuSet": second, "checksum": 0,
                                 "entries": {"u-1": {"db": first}}}))
    with Qemu(node.id("a"), vcpus=1) as vm:
        cgroup = node.cpuset_cgroup(second)
        (cgroup / "cgroup.procs").write_text(str(vm.pid))
        node.start()
        report(node, vm, "logs", second)
        node.wait_for_all(vm.pid, second)
        assert node.sandbox(vm.sandbox)["verdict"] == "floating"
        checkpoint(node, json.dumps({"policyName": "static", "defaultCpuSet": first, "checksum": 0,
                                     "entries": {"u-2": {"db": second}}}))
        wait(lambda: node.sandbox(vm.sandbox)["verdict"] == "waiting", node.log)
        node.resyncs()
        status = node.status()
        (sandbox,) = status["sandboxes"]
        assert (sandbox["verdict"], sandbox["mask"], sandbox["drift"]) == ("waiting", first, None)
        assert sandbox["containers"][0]["stale_cpuset"] == second
        assert {owner["sandbox"]: owner["cpus"] for owner in status["node"]["owners"]} == {"u-2": second}
        assert f"waits for the kubelet to rewrite the cpuset of logs from {second} to {first}" in node.log()
        assert "ERROR" not in node.log()
        # The kubelet's update: Kata writes the sandbox's cgroup.
        (cgroup / "cpuset.cpus").write_text(first)
        node.wait_for_all(vm.pid, first)
        wait(lambda: node.sandbox(vm.sandbox)["verdict"] == "floating", node.log)
        assert node.sandbox(vm.sandbox)["drift"] is None
        assert "ERROR" not in node.log()


def test_a_checkpoint_that_is_removed_is_used_on_over_a_restart_and_until_another_policy(node: Node) -> None:
    """As a kubelet leaves it that runs on with what it has in memory."""
    first, second = two_cpus()
    both = union((first, second))
    path = checkpoint(node, json.dumps({"policyName": "static", "defaultCpuSet": first,
                                        "entries": {UID: {"web": second}}, "checksum": 0}))
    kubelet = Kubelet(node.top / "kubelet/pod-resources/kubelet.sock")
    try:
        with Qemu(node.id("a"), vcpus=2) as vm:
            kubelet.lists(_pod(web=[int(second)]))
            node.start()
            report(node, vm, "web", second)
            report(node, vm, "logs", first)
            node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
            path.unlink()
            wait(lambda: node.status()["sources"]["kubelet"]["stale"], node.log)
            assert str(path) + ": is gone" in node.log()
            witness = "PodResources lists the same CPUs"
            wait(lambda: node.status()["sources"]["kubelet"]["second_witness"] == witness, node.log)
            node.resyncs()
            node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
            assert "STALE: the kubelet's checkpoint is gone: its last contents are used" in node.cli("status").stdout
            audited = json.loads(node.cli("verify", "--others", "--seconds", "0", "-o", "json").stdout)
            assert any("STALE" in limit for limit in audited["limits"])
            kubelet.lists(_pod(web=[int(first)]))
            said = f"PodResources lists CPUs {first}, which it does not have and does not list its CPUs {second}"
            wait(lambda: node.status()["sources"]["kubelet"]["second_witness"] == said, node.log)
            node.stop()
            node.start()
            node.resyncs()
            assert node.status()["sources"]["kubelet"]["stale"]
            node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
            (owner,) = node.status()["node"]["owners"]
            assert (owner["cpus"], owner["name"]) == (second, "web")
            checkpoint(node, json.dumps({"policyName": "none", "defaultCpuSet": "", "checksum": 0}))
            node.wait_for_all(vm.pid, both)
            assert node.status()["node"]["owners"] == []
            assert not node.status()["sources"]["kubelet"]["stale"]
    finally:
        kubelet.stop()


def _pod(**containers: list[int]) -> object:
    return KUBELET["PodResources"](name="shop", namespace="tests", containers=[
        {"name": name, "cpu_ids": cpus} for name, cpus in containers.items()])
