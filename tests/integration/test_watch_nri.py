"""The watcher as an NRI plugin of a real containerd: VM pods beside runc pods, and the kubelet's checkpoint. What is
claimed of a thread is read from /proc. No resync happens in these tests unless one asks for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cri import CriError
from cri_node import CriNode
from nri_peer import delivering
from real_containerd import VM, Containerd, Pod
from real_node import COMMAND, seen, union, wait

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.sources.nri.connect import connect_to
from vmpin.sources.nri.nri_events import NriEvent, NriUpdate, Synced
from vmpin.sources.nri.plugin import NriPlugin

pytest_plugins = ["given"]
pytestmark = pytest.mark.root

#: Seconds in which something that must not happen would have.
MOMENT = 0.5


@pytest.fixture
def containerd() -> Iterator[Containerd]:
    with Containerd() as made:
        yield made


@pytest.fixture
def node(containerd: Containerd, cpus: tuple[str, str]) -> Iterator[CriNode]:
    """The first CPU is the shared pool."""
    with CriNode(containerd) as made:
        made.configure(node={"shared_pool": cpus[0]})
        yield made


def stays(pod: Pod, *what: str) -> None:
    """Every thread keeps to one of these CPU lists for a moment."""
    until = time.monotonic() + MOMENT
    while time.monotonic() < until:
        assert seen(pod.pid).all() <= set(what)
        time.sleep(0.02)


@pytest.mark.parametrize("suite", ["trixie", "sid"])
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
    events = node.nri()["events"]
    for _ in range(10):
        for target in (first, second):
            for main in mains:
                main.update(cpus=target)
    for pod, main, target in zip(pods, mains, (first, second, first), strict=True):
        main.update(cpus=target)
        node.wait_for_all(pod.pid, target)
    assert node.nri()["events"] == events + 126  # each is asked for, and done
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
    stays(vm, second)  # nobody to ask is no reason to move
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


def test_a_runtime_that_hangs_keeps_nobody_waiting(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.connect()
    vm = node.containerd.pod("vm", VM)
    main = vm.container("main", cpus=second)
    node.wait_for_all(vm.pid, second)

    node.containerd.freeze()
    try:
        assert node.sandbox(vm.id)["verdict"] == "pinned"
        assert node.cli("reconcile").returncode == 0
    finally:
        node.containerd.thaw()
    main.update(cpus=first)
    node.wait_for_all(vm.pid, first)


def test_a_watcher_that_hangs_delays_an_update_but_does_not_stop_it(node: CriNode, cpus: tuple[str, str]) -> None:
    """The runtime drops a plugin that does not answer for two seconds; it comes back and learns what it missed."""
    first, second = cpus
    node.connect()
    vm = node.containerd.pod("vm", VM)
    main = vm.container("main", cpus=second)
    node.wait_for_all(vm.pid, second)
    assert node.watcher is not None
    node.watcher.send_signal(signal.SIGSTOP)
    try:
        main.update(cpus=first)
        main.update(cpus=second)
        main.update(cpus=first)
        assert seen(vm.pid).all() == {second}
    finally:
        node.watcher.send_signal(signal.SIGCONT)
    node.wait_for_all(vm.pid, first)
    node.wait_for_sync(2)
    main.update(cpus=second)
    node.wait_for_all(vm.pid, second)


# Beside runc


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
    told: list[NriEvent] = []
    other = NriPlugin(connect_to(node.containerd.nri_socket), delivering(told.append), name="other", index="10")
    other.reconnect({ContainerId(each): NriUpdate(CpuSet.parse(cpus)) for each in containers})
    other.start()
    try:
        wait(lambda: any(isinstance(event, Synced) and event.updated for event in told), lambda: f"not moved: {told}")
        yield
    finally:
        other.stop()


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
    events = node.nri()["events"]
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


@pytest.mark.parametrize("suite", ["trixie", "sid"])
def test_a_container_that_ends_by_itself_gives_its_cpus_back(suite: str, cpus: tuple[str, str]) -> None:
    """Nobody asked the runtime to stop it; so with a VMM that was killed. It ends when its CPUs were seen to be its
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


# What the kubelet says


def test_the_checkpoint_tells_the_pool_and_whose_cpus_are_exclusive(node: CriNode, cpus: tuple[str, str]) -> None:
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
        done = node.cli("audit", "--seconds", "0", "-o", "json", *more)
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


def test_the_checkpoint_is_heeded_without_a_runtime_that_tells_anything(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    both = union(cpus)
    node.configure(node={"shared_pool": None}, watch={"nri": "off"})
    node.checkpoint(both)
    node.start()
    vm = node.containerd.pod("vm", VM)
    assert node.cli("reconcile").returncode == 0
    node.wait_for_all(vm.pid, both)
    node.checkpoint(first, {"uid-2": {"main": second}})
    node.wait_for_all(vm.pid, first)


@pytest.mark.parametrize("text", ["", "{", '{"policyName":"static","defaultCpuSet":"x"}', "[]"])
def test_a_checkpoint_that_is_none_leaves_the_last_one_and_is_told(node: CriNode, cpus: tuple[str, str],
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


def test_a_kubelet_without_the_static_policy_gives_nobody_a_cpu(node: CriNode, cpus: tuple[str, str]) -> None:
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


def drifted(node: CriNode, cpus: tuple[str, str]) -> Callable[[], str]:
    """A runc container that the kubelet gave the second CPU, and whose cgroup somebody gave the first."""
    first, second = cpus
    node.configure(node={"shared_pool": None}, watch={"resync_seconds": 0.3})
    node.checkpoint(first, {"uid-1": {"main": second}})
    node.connect()
    main = node.containerd.pod("web", uid="uid-1").container("main", cpus=second)
    wait(lambda: node.status()["node"]["owners"], lambda: f"nobody owns a CPU: {node.status()}")
    (main.cgroup / "cpuset.cpus").write_text(first)
    return main.cgroup_cpus


def repairs(node: CriNode) -> dict[str, int]:
    return dict(node.status()["sources"]["repairs"])


@pytest.mark.parametrize("by_cri", [True, False], ids=["cri", "nri"])
def test_a_runc_container_that_drifted_is_given_back_its_cpus_when_asked_for(node: CriNode, cpus: tuple[str, str],
                                                                             by_cri: bool) -> None:
    socket = node.containerd.top / ("cri.sock" if by_cri else "none.sock")
    node.configure(policy={"runc_repair": True}, paths={"cri": str(socket)})
    now = drifted(node, cpus)
    wait(lambda: now() == cpus[1] and repairs(node)["done"], lambda: f"still {now()}\n{node.log()}")

    wait(lambda: not node.status()["node"]["disagreements"], lambda: f"not read back: {node.status()}")
    before = repairs(node)
    node.resyncs(5)
    assert repairs(node) == before, node.log()
    assert not before["failed"]
    assert ("by=CRI" if by_cri else "by=NRI") in node.log()


def test_a_runc_container_that_drifted_is_left_alone_and_told_of(node: CriNode, cpus: tuple[str, str]) -> None:
    now = drifted(node, cpus)
    node.wait_for_log("disagree")
    assert now() == cpus[0]
    assert repairs(node) == {"done": 0, "failed": 0}


# How it connects


def test_a_runtime_without_nri_is_done_without(cpus: tuple[str, str]) -> None:
    with Containerd(nri=False) as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": cpus[0]})
        node.start()
        vm = containerd.pod("vm", VM)
        vm.container("main", cpus=cpus[1])
        assert node.cli("reconcile").returncode == 0
        node.wait_for_all(vm.pid, cpus[0])
        assert "NRI" not in node.log()  # by default it is taken where it is


def test_nri_that_is_asked_for_and_not_there_is_told_once(cpus: tuple[str, str]) -> None:
    with Containerd(nri=False) as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": cpus[0]}, watch={"nri": "on"})
        node.start()
        node.wait_for_log("NRI")
        time.sleep(2)
        assert sum("NRI" in line for line in node.log().splitlines()) == 1, node.log()


def test_nri_that_is_switched_off_is_not_used(node: CriNode, cpus: tuple[str, str]) -> None:
    node.configure(watch={"nri": "off"})
    node.start()
    vm = node.containerd.pod("vm", VM)
    vm.container("main", cpus=cpus[1])
    assert node.cli("reconcile").returncode == 0
    node.wait_for_all(vm.pid, cpus[0])
    assert node.status()["sources"]["nri"] is None


def test_plugins_that_are_refused_are_told_why_once(cpus: tuple[str, str]) -> None:
    """disable_connections: the socket is not even there in some versions, in others nobody answers."""
    with Containerd(refuse_plugins=True) as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": cpus[0]}, watch={"nri": "on"})
        node.start()
        node.wait_for_log("disable")
        time.sleep(2)
        assert sum("NRI" in line for line in node.log().splitlines()) == 1, node.log()
        vm = containerd.pod("vm", VM)
        assert node.cli("reconcile").returncode == 0
        node.wait_for_all(vm.pid, cpus[0])


def test_a_runtime_that_starts_after_the_watcher_is_found(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    vm = node.containerd.pod("vm", VM)
    main = vm.container("main", cpus=second)
    node.containerd.kill()
    node.containerd.nri_socket.unlink()  # as after a boot
    node.configure(watch={"resync_seconds": 0.5})  # as often it looks
    node.start()
    wait(lambda: node.nri()["state"].startswith("waits"), lambda: node.nri()["state"])
    node.containerd.start()
    node.wait_for_all(vm.pid, second)
    main.update(cpus=first)
    node.wait_for_all(vm.pid, first)


@pytest.mark.parametrize("suite", ["trixie", "sid"])
def test_the_runtime_may_start_the_watcher_itself(suite: str, cpus: tuple[str, str]) -> None:
    """Pre-installed as an executable: it gets a connected socket and almost no environment, and ends with it. NRI 0.6
    (trixie) does not tell such a plugin what there is (containerd/nri #43): the watcher asks by itself."""
    first, second = cpus
    with Containerd(suite, patient=True) as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": first})
        vm = containerd.pod("vm", VM)
        main = vm.container("main", cpus=second)
        command = " ".join([*COMMAND, "--config", str(node.config), "watch"])
        plugin = containerd.plugins / "90-vmpin"
        plugin.write_text(f"#!/bin/sh\nexec {command} >>{node.top}/log000 2>&1\n")
        plugin.chmod(0o755)
        before: set[int] = set()
        for had, given in (second, first), (first, second):
            containerd.restart()
            (pid,) = wait(lambda: _plugins(containerd) - before, "the plugin does not run")
            before.add(pid)
            node.wait_for_all(vm.pid, had)
            main.update(cpus=given)
            node.wait_for_all(vm.pid, given)
            containerd.kill()
            wait(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "the plugin outlives its runtime")  # type: ignore[misc]


def _plugins(containerd: Containerd) -> set[int]:
    """The pids of watchers that containerd started."""
    found = set()
    for path in Path("/proc").glob("[1-9]*/environ"):
        try:
            status = (path.parent / "status").read_text()
            environment = path.read_bytes()
            same = os.readlink(path.parent / "ns/pid") == os.readlink(containerd.enclosure.proc / "1/ns/pid")
        except OSError:
            continue
        if b"NRI_PLUGIN_SOCKET=" in environment and same and "\nState:\tZ" not in status:
            found.add(int(path.parent.name))
    return found
