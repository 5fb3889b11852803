"""The watcher as an NRI plugin of a real containerd: VM pods beside runc pods, and the kubelet's checkpoint. What is
claimed of a thread is read from /proc. No resync happens in these tests unless one asks for it."""

from __future__ import annotations

import os
import signal

import given_containerd
import pytest
from cri import CriError
from cri_node import CriNode, stays
from process_masks import seen, union
from real_containerd import VM, Containerd, suites
from waiting import wait

from vmpin.domain.terminal import ENDED

pytest_plugins = ["given"]
containerd, node = given_containerd.containerd, given_containerd.node
pytestmark = pytest.mark.root


@pytest.mark.parametrize("suite", suites())
def test_a_vm_pod_is_followed_from_its_creation_to_its_end(suite: str, cpus: tuple[str, str]) -> None:
    first, second = cpus
    both = union(cpus)
    with Containerd(suite) as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": first})
        node.connect()
        vm = containerd.pod("vm", VM, vcpus=2, uid="uid-7")
        node.wait_for_all(vm.pid, first)
        main = vm.create("main", cpus=second)
        node.wait_for_all(vm.pid, second)  # before its task is created: Kata rewrites the sandbox's cgroup on the way
        main.start()
        node.wait_for_all(vm.pid, second)
        side = vm.container("side", cpus=first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        status = node.sandbox(vm.id)
        assert (status["verdict"], status["handler"]) == ("pinned", VM)
        assert status["pod"] == {"namespace": "tests", "name": "vm", "uid": "uid-7"}
        assert {each["name"]: (each["cpuset"], each["source"], each["exclusive"])
                for each in status["containers"]} == {"main": (second, "nri", True), "side": (first, "nri", False)}
        assert node.nri()["state"].startswith(f"connected to containerd {containerd.version}")
        assert node.cli("verify").returncode == 0
        main.update(cpus=first)
        node.wait_for_all(vm.pid, first)
        main.update(cpus=second)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        main.update(cpu_shares=100)  # the CPUs stay
        stays(vm, first, second, both)
        side.remove()
        node.wait_for_all(vm.pid, second)
        main.remove()
        node.wait_for_all(vm.pid, first)
        vm.remove()
        wait(lambda: node.sandbox(vm.id) is None, lambda: f"still there: {node.status()}")
        assert node.nri()["dropped"] == 0


@pytest.mark.parametrize("suite", suites())
def test_a_pod_that_has_ended_is_no_finding_until_it_is_removed(suite: str, cpus: tuple[str, str]) -> None:
    """The kubelet keeps a finished pod's sandbox for hours. One that ended before the watcher started is not shown."""
    with Containerd(suite) as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": cpus[0]})
        jobs = [containerd.pod(name, VM) for name in ("before", "since")]
        for job in jobs:
            job.container("main", cpus=cpus[1])
        containerd.cri.stop_pod(jobs[0].id)
        node.connect()
        wait(lambda: [each["id"] for each in node.status()["sandboxes"]] == [jobs[1].id], lambda: f"{node.status()}")
        containerd.cri.stop_pod(jobs[1].id)
        wait(lambda: node.sandbox(jobs[1].id)["reasons"] == [ENDED], lambda: f"{node.status()}")
        done = node.cli("verify")
        assert (done.returncode, "1 sandbox has ended, not removed by the runtime yet" in done.stdout) == (0, True)
        running = containerd.pod("running", VM)
        running.container("main", cpus=cpus[1])
        os.kill(running.pid, signal.SIGKILL)
        wait(lambda: node.sandbox(running.id)["vmm"] is None, lambda: f"{node.sandbox(running.id)}")
        assert node.cli("verify").returncode == 3, "a container runs, and no VMM is seen"
        for job in jobs:
            job.remove()
        wait(lambda: [each["id"] for each in node.status()["sandboxes"]] == [running.id], lambda: f"{node.status()}")


def test_an_update_that_the_runtime_refuses_changes_nothing(node: CriNode, cpus: tuple[str, str]) -> None:
    _, second = cpus
    node.connect()
    vm = node.containerd.pod("vm", VM)
    main = vm.container("main", cpus=second)
    node.wait_for_all(vm.pid, second)
    with pytest.raises(CriError):
        main.update(cpus="4000")
    stays(vm, second)
    (container,) = node.sandbox(vm.id)["containers"]
    assert container["cpuset"] == second


def test_the_last_of_many_updates_wins(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.connect()
    pods = [node.containerd.pod(f"vm{number}", VM) for number in range(3)]
    mains = [pod.container("main", cpus=second) for pod in pods]
    for _ in range(10):
        for target in (first, second):
            for main in mains:
                main.update(cpus=target)
    for pod, main, target in zip(pods, mains, (first, second, first), strict=True):
        main.update(cpus=target)
        node.wait_for_all(pod.pid, target)
    # The list, and for each pod that it runs, and twice its container's creation and start; each update is asked for,
    # and done. The last one is counted a moment after the runtime has its answer.
    wait(lambda: node.nri()["events"] == 1 + 3 * 5 + 126, node.nri)
    assert node.nri()["overflows"] == 0


def test_what_ran_before_the_watcher_is_learnt_by_synchronizing(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    vm = node.containerd.pod("vm", VM, vcpus=2)
    main = vm.container("main", cpus=second)
    vm.container("side", cpus=first)
    vm.create("later", cpus=first)
    gone = vm.container("gone", cpus=first)
    gone.remove()
    node.connect()
    node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
    names = {each["name"] for each in node.sandbox(vm.id)["containers"]}
    assert {"main", "side"} <= names <= {"main", "side", "later"}
    main.update(cpus=first)
    node.wait_for_all(vm.pid, first)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_happens_while_no_watcher_runs_is_caught_up_with(node: CriNode, cpus: tuple[str, str],
                                                              number: signal.Signals) -> None:
    """Its state file knows of the containers too, and is older."""
    first, second = cpus
    node.connect()
    vm, other = node.containerd.pod("vm", VM, vcpus=2), node.containerd.pod("other", VM)
    main, side = vm.container("main", cpus=second), vm.container("side", cpus=first)
    node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
    node.stop(number) if number == signal.SIGTERM else node.kill()
    main.update(cpus=first)
    side.remove()
    other.remove()
    node.connect()
    node.wait_for_all(vm.pid, first)
    assert [each["name"] for each in node.sandbox(vm.id)["containers"]] == ["main"]
    assert node.sandbox(other.id) is None


def test_containerd_is_followed_over_its_restarts(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.connect()
    vm, other = node.containerd.pod("vm", VM), node.containerd.pod("other", VM)
    main = vm.container("main", cpus=second)
    node.wait_for_all(vm.pid, second)
    pid = other.pid
    node.containerd.kill()
    os.kill(pid, signal.SIGKILL)
    stays(vm, second)  # no runtime to ask is no reason to move
    wait(lambda: node.nri()["state"].startswith("not connected"), lambda: node.nri()["state"])
    node.containerd.start()
    node.wait_for_sync(2)
    wait(lambda: node.sandbox(other.id) is None, lambda: f"its VMM was killed meanwhile: {node.sandbox(other.id)}")
    stays(vm, second)
    main.update(cpus=first)
    node.wait_for_all(vm.pid, first)
    node.containerd.restart()
    main.update(cpus=second)  # perhaps before the watcher is back
    node.wait_for_all(vm.pid, second)


def test_a_runtime_that_hangs_delays_no_other(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.connect()
    vm = node.containerd.pod("vm", VM)
    main = vm.container("main", cpus=second)
    node.wait_for_all(vm.pid, second)

    node.containerd.freeze()
    try:
        assert node.sandbox(vm.id)["verdict"] == "pinned"
        assert node.cli("repin").returncode == 0
    finally:
        node.containerd.thaw()
    main.update(cpus=first)
    node.wait_for_all(vm.pid, first)


def test_a_watcher_that_hangs_delays_an_update_but_does_not_stop_it(cpus: tuple[str, str]) -> None:
    """The runtime drops a plugin that does not answer for two seconds; it comes back and learns what it missed."""
    first, second = cpus
    with Containerd(patient=False) as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": first})
        node.connect()
        vm = containerd.pod("vm", VM)
        main = vm.container("main", cpus=second)
        node.wait_for_all(vm.pid, second)
        assert node.watcher is not None
        before = node.nri()["syncs"]
        node.watcher.send_signal(signal.SIGSTOP)
        try:
            main.update(cpus=first)
            main.update(cpus=second)
            main.update(cpus=first)
            assert seen(vm.pid).all() == {second}
        finally:
            node.watcher.send_signal(signal.SIGCONT)
        node.wait_for_all(vm.pid, first)
        node.wait_for_sync(before + 1)
        main.update(cpus=second)
        node.wait_for_all(vm.pid, second)
