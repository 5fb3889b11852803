"""The node's wall clock is stepped, by `date -s`, while pods come, change and go: each report is taken, also over
restarts of the watcher. What the rules are is in tests/unit/domain/test_clock_steps.py."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from cri_node import CriNode
from real_containerd import VM, Containerd
from runtime_bundle import cri
from waiting import wait

from lab.node_tests.guest import Guest

HOUR = 3600.0
Step = Callable[[float], None]


@pytest.fixture
def step() -> Iterator[Step]:
    """Steps the clock by so many seconds; it is as it was after the test."""
    ahead = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def to(seconds: float) -> None:
        before = time.time()
        subprocess.run(["date", "-s", f"@{seconds:.3f}"], check=True, capture_output=True)
        assert (time.time() < before) is (seconds < before)

    yield lambda seconds: to(time.time() + seconds)
    to(time.clock_gettime(time.CLOCK_BOOTTIME) + ahead)


@pytest.fixture
def node() -> Iterator[CriNode]:
    with Containerd(accel="kvm", bios=Guest.IDLE.rom()) as containerd, CriNode(containerd) as made:
        made.configure(node={"shared_pool": "0-1"})
        yield made


def restart(node: CriNode) -> None:
    assert node.stop() == 0
    node.connect()


@pytest.mark.release
def test_pods_are_followed_over_steps_and_restarts(node: CriNode, step: Step) -> None:
    node.connect()
    vm = node.containerd.pod("vm", VM, vcpus=2)
    main = vm.container("main", cpus="2-3")
    node.wait_for_vcpus(vm.pid, {0: "2", 1: "3"})
    step(-HOUR)
    main.update(cpus="4-5")
    node.wait_for_vcpus(vm.pid, {0: "4", 1: "5"})
    step(-HOUR)
    restart(node)
    main.update(cpus="6-7")
    node.wait_for_vcpus(vm.pid, {0: "6", 1: "7"})
    step(3 * HOUR)
    main.update(cpus="2-3")
    node.wait_for_vcpus(vm.pid, {0: "2", 1: "3"})
    step(-HOUR)
    main.remove()
    node.wait_for_all(vm.pid, "0-1")
    side = vm.container("side", cpus="4-5")
    node.wait_for_vcpus(vm.pid, {0: "4", 1: "5"})
    step(-HOUR)
    restart(node)
    side.remove()
    node.wait_for_all(vm.pid, "0-1")


@pytest.mark.release
def test_what_hooks_spooled_before_a_step_is_taken_and_ends(node: CriNode, step: Step) -> None:
    """The container owns its CPUs, as they are none of the pool's; it has no process here."""
    sandbox, bundle = node.id("hooked"), node.bundle("main", "6-7", cri(node.id("hooked"), "main"))
    state = node.state(sandbox, "main", bundle)

    def hook(stage: str) -> None:
        ran = node.call_hook(stage, state)
        ran.communicate(timeout=300)
        assert ran.returncode == 0

    def owners() -> dict[str, str]:
        return {each["sandbox"]: each["cpus"] for each in node.status()["node"]["owners"]}

    node.configure(watch={"resync_seconds": 2})  # a hook that misses its deadline in a slow node spools its message
    hook("createRuntime")
    step(-HOUR)
    node.connect()
    wait(lambda: owners() == {sandbox: "6-7"}, lambda: f"not taken: {owners()}\n{node.log()}")
    step(-HOUR)
    restart(node)
    assert owners() == {sandbox: "6-7"}
    hook("poststop")
    wait(lambda: owners() == {}, lambda: f"not ended: {owners()}\n{node.log()}")
