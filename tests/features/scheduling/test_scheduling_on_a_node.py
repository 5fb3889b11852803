"""The classes of real QEMUs' vCPUs under a real watcher: given, repaired, given back; what is claimed of a thread is
read from the kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from own_threads import OTHER, need_real_time, rt
from process_masks import two_cpus
from real_node import Node
from real_qemu import Qemu
from waiting import wait

from vmpin.config.loading import load
from vmpin.features.scheduling.class_setter import RESTING
from vmpin.features.scheduling.sched_class import SchedClass
from vmpin.features.scheduling.thread_class import class_of
from vmpin.reconcile import one_pass

pytest_plugins = ["given"]
pytestmark = pytest.mark.root
FIFO = rt("fifo:1")


@pytest.fixture
def vm(node: Node) -> Iterator[Qemu]:
    """Its vCPU 1 is alone on the second CPU; the others share the first one."""
    need_real_time()
    node.configure(node={"shared_pool": two_cpus()[0]},
                   scheduling={"vcpu_class": "fifo:1", "without_throttling": True})
    with Qemu(node.id("a"), vcpus=2, iothreads=["io1"]) as vm:
        yield vm


def begin(node: Node, vm: Qemu) -> None:
    first, second = two_cpus()
    node.start()
    node.container(vm.sandbox, "web", second)
    node.container(vm.sandbox, "logs", first)
    node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
    wait_for(vm, FIFO)


def classes(vm: Qemu) -> dict[int, SchedClass | None]:
    """Of all threads that are not of the class other, by vCPU; -1 for other threads."""
    numbers = vm.vcpus()
    return {numbers.get(tid, -1): its for tid in vm.tids() if (its := class_of(tid)) not in (None, OTHER)}


def lone_thread(vm: Qemu) -> int:
    """The thread of vCPU 1."""
    return next(tid for tid, vcpu in vm.vcpus().items() if vcpu == 1)


def wait_for(vm: Qemu, wanted: SchedClass | None) -> None:
    """Wait until vCPU 1 has a class, and no other thread."""
    expected = {} if wanted in (None, OTHER) else {1: wanted}
    wait(lambda: classes(vm) == expected, lambda: f"wanted {expected}, have {classes(vm)}")


def test_a_vcpu_has_its_class_while_it_is_alone_and_no_longer(node: Node, vm: Qemu) -> None:
    begin(node, vm)
    entry = node.sandbox(vm.sandbox)["scheduling"]
    assert [(vcpu["vcpu"], vcpu["class"], vcpu["ok"]) for vcpu in entry["vcpus"]] == [
        (0, None, True), (1, "fifo:1", True)]
    text = node.cli("status", vm.sandbox).stdout
    assert "scheduling: the class of vCPU 1 is fifo:1 (scheduling.vcpu_class)" in text
    assert "vCPU 0 is not fifo:1: CPU" in node.cli("status", vm.sandbox, "--explain").stdout
    first, second = two_cpus()
    node.container(vm.sandbox, "logs", second)
    wait_for(vm, None)
    node.container(vm.sandbox, "logs", first)
    wait_for(vm, FIFO)
    node.gone(vm.sandbox, "web")
    wait_for(vm, None)
    assert not (node.run / "scheduling.json").exists()


def test_what_another_program_sets_is_repaired_and_verified(node: Node, vm: Qemu) -> None:
    node.configure(drift={"contention_repairs": 1, "on_contention": "leave"})
    begin(node, vm)
    assert node.data("verify")["classes"] == []
    os.sched_setscheduler(lone_thread(vm), os.SCHED_OTHER, os.sched_param(0))
    wait_for(vm, FIFO)
    node.wait_for_log("class repaired")
    os.sched_setscheduler(lone_thread(vm), os.SCHED_OTHER, os.sched_param(0))
    node.wait_for_log("contention: ")
    (wrong,) = node.data("verify", code=1)["classes"]
    assert (wrong["vcpu"], wrong["wanted"], wrong["actual"], wrong["why"]) == (1, "fifo:1", "other", RESTING)
    assert "vCPU 1 of" in node.cli("verify").stdout
    assert any("set the class of vCPU 1" in text for text in node.data("plan")["of_features"])
    assert node.data("repin") is not None
    wait_for(vm, FIFO)


@pytest.mark.parametrize("alone", [False, True])
def test_a_sandbox_that_is_unpinned_has_its_classes_back(node: Node, vm: Qemu, alone: bool) -> None:
    """:param alone: without a watcher, which was killed."""
    begin(node, vm)
    if alone:
        node.kill()
        wait_for(vm, FIFO)
    done = node.data("unpin", vm.sandbox)
    assert done["settled"]
    wait_for(vm, None)
    node.cli("repin", vm.sandbox)
    if alone:
        node.start()
    wait_for(vm, FIFO)


@pytest.mark.parametrize("by", ["unpin --all", "on_exit", "other", "repin"])
def test_the_class_is_given_back_when_vmpin_leaves_or_is_switched_off(node: Node, vm: Qemu, by: str) -> None:
    os.sched_setscheduler(lone_thread(vm), os.SCHED_BATCH, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, lone_thread(vm), 5)
    node.configure(watch={"on_exit": "unpin" if by == "on_exit" else "keep"})
    begin(node, vm)
    if by == "on_exit":
        assert node.stop() == 0
    else:
        node.kill()
        wait_for(vm, FIFO)
        if by == "unpin --all":
            assert node.data("unpin", "--all")["gone"]
            assert not node.run.exists()
        elif by == "repin":
            node.cli("repin")
        else:
            node.configure(scheduling={"vcpu_class": "other"})
            node.start()
    wait_for(vm, SchedClass(3))
    assert os.getpriority(os.PRIO_PROCESS, lone_thread(vm)) == 5
    assert not (node.run / "scheduling.json").exists()


def test_a_killed_watcher_is_followed_by_one_that_goes_on(node: Node, vm: Qemu) -> None:
    begin(node, vm)
    node.kill()
    os.sched_setscheduler(lone_thread(vm), os.SCHED_OTHER, os.sched_param(0))
    node.start()
    wait_for(vm, FIFO)
    node.configure(scheduling={"vcpu_class": "rr:2"})
    node.kill()
    node.start()
    wait_for(vm, rt("rr:2"))
    assert node.stop() == 0
    wait_for(vm, rt("rr:2"))
    assert node.data("unpin", "--all")["gone"]
    wait_for(vm, None)


def test_classes_are_verified_without_a_watcher(node: Node, vm: Qemu) -> None:
    begin(node, vm)
    node.kill()
    assert node.data("verify")["classes"] == []
    os.sched_setscheduler(lone_thread(vm), os.SCHED_OTHER, os.sched_param(0))
    (wrong,) = node.data("verify", code=1)["classes"]
    assert (wrong["vcpu"], wrong["wanted"], wrong["actual"]) == (1, "fifo:1", "other")
    os.sched_setscheduler(lone_thread(vm), os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    node.configure(scheduling={"vcpu_class": "other"})
    assert "classes" not in node.data("verify")
    first, _ = two_cpus()
    node.configure(node={"shared_pool": first}, policy={"vcpus": "union"})
    (wrong,) = node.data("verify", code=1)["classes"]
    assert (wrong["vcpu"], wrong["wanted"], wrong["actual"]) == (1, "its former class", "fifo:1")
    assert "its former class is not given back yet, although it may run on" in node.cli("verify").stdout


def test_a_configuration_that_the_watcher_does_not_have_yet_makes_no_finding(node: Node, vm: Qemu) -> None:
    node.configure(scheduling={"vcpu_class": "other"})
    first, second = two_cpus()
    node.start()
    node.container(vm.sandbox, "web", second)
    node.container(vm.sandbox, "logs", first)
    node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
    node.configure(scheduling={"vcpu_class": "fifo:1"})
    assert "classes" not in node.data("verify"), "a change takes a restart"
    assert node.stop() == 0
    assert node.data("verify", code=1)["classes"][0]["wanted"] == "fifo:1"


def test_vcpus_with_their_former_masks_have_their_former_class_before_guests_are_asked(node: Node, vm: Qemu) -> None:
    begin(node, vm)
    node.kill()
    shown: list[dict[int, SchedClass | None]] = []
    one_pass.leave(load(node.config, {}, {}), lambda view: shown.append(classes(vm)))
    assert shown == [{}]
