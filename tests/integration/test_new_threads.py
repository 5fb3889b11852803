"""VMs that begin while a watcher runs: where each thread is born, as the kernel reports it and as /proc shows it.

The clock has no part in it: the watcher of these tests looks by itself every ten minutes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import kata_shim
import new_thread_steps
import pytest
from kata_shim import Shim
from new_thread_steps import ForkMasks, in_time, new_threads, overruns, start
from process_masks import by_tid
from real_node import Node
from real_qemu import Qemu
from waiting import wait

from vmpin.cpuset import CpuSet

pytest_plugins = ["given"]
node = new_thread_steps.node
pytestmark = pytest.mark.root


def test_every_thread_of_a_vm_is_born_in_its_place(node: Node, cpus: tuple[str, str]) -> None:
    start(node)

    def all_inside(name: str) -> bool:
        before = overruns(node)
        with ForkMasks() as forks, Qemu(node.id(name), vcpus=4, iothreads=["io1"]) as vm:
            node.wait_for_all(vm.pid, cpus[0])
            born = wait(lambda: len((node.sandbox(vm.sandbox) or {}).get("threads", ())) == len(vm.tids())
                        and new_threads(node, vm.sandbox), lambda: node.sandbox(vm.sandbox))
            if overruns(node) > before or born["reported"] < len(vm.tids()):
                return False  # threads that were created before the watcher knew the VMM are not reported
            assert born["inside"] + born["outside"] + born["ended"] == born["reported"]
            assert 0 < born["outside_ms"]["max"] <= born["outside_ms"]["sum"]  # the main thread, from its exec
            assert f"started sandbox={vm.sandbox} role=emulator pid={vm.pid}" in node.log()
            if born["outside"] > 1 or set(forks.masks(vm.pid)) != {CpuSet.parse(cpus[0])}:
                return False
            assert born["outside_ms"]["max"] == born["outside_ms"]["sum"]
            return True

    assert in_time(all_inside)


def qemu(sandbox: str) -> list[str]:
    """The command line of one that another program starts."""
    made = Qemu(sandbox, vcpus=2)
    made.stop()
    return made.argv


def test_a_vm_whose_containers_are_known_is_born_on_their_cpus(node: Node, cpus: tuple[str, str]) -> None:
    start(node)

    def all_there(name: str) -> bool:
        node.container(node.id(name), f"web-{name}", cpus[1])
        with ForkMasks() as forks, Qemu(node.id(name), vcpus=2) as vm:
            node.wait_for_all(vm.pid, cpus[1])
            return set(forks.masks(vm.pid)) == {CpuSet.parse(cpus[1])}

    assert in_time(all_there)


def test_vcpus_are_identified_without_a_clock(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    start(node)
    node.container(node.id("a"), "web", second)
    node.container(node.id("a"), "logs", first)
    with Qemu(node.id("a"), vcpus=3) as vm:
        node.wait_for_vcpus(vm.pid, {0: first, 1: first, 2: second}, first)
        assert node.sandbox(vm.sandbox)["verdict"] == "pinned"


def test_a_vm_that_leaves_its_starter_is_born_in_its_place_and_gets_back_what_that_had(
        node: Node, cpus: tuple[str, str], tmp_path: Path) -> None:
    """QEMU's -daemonize: the VM is a child of the process that was executed, which ends."""
    start(node)
    free = frozenset(os.sched_getaffinity(0))

    def all_inside(name: str) -> bool:
        before, sandbox, file = overruns(node), node.id(name), tmp_path / name
        argv = [*qemu(sandbox), "-daemonize", "-pidfile", str(file)]
        with ForkMasks() as forks:
            subprocess.run(argv, check=True, timeout=120)
            pid = int(file.read_text())
            try:
                wait(lambda: (found := node.sandbox(sandbox)) and (found["vmm"] or {}).get("pid") == pid,
                     lambda: node.sandbox(sandbox))
                node.wait_for_all(pid, cpus[0])
                assert node.cli("unpin", sandbox).returncode == 0
                if overruns(node) > before:
                    return False
                assert set(by_tid(pid).values()) == {free}
            finally:
                os.kill(pid, signal.SIGKILL)
            return set(forks.masks(pid)) == {CpuSet.parse(cpus[0])}

    assert in_time(all_inside)


@contextlib.contextmanager
def virtiofsd(node: Node, name: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = ["virtiofsd", "-c", "read line", "--shared-dir", f"/run/kata-containers/shared/sandboxes/{node.id(name)}/"]
    with subprocess.Popen(argv, executable="/bin/sh", stdin=subprocess.PIPE) as daemon:
        yield daemon


def placed_by_now(node: Node, name: str, cpu: str) -> None:
    """The kernel reports one event after the other: when this virtiofsd has its mask, what was executed before it has
    been looked at."""
    with virtiofsd(node, name) as daemon:
        wait(lambda: os.sched_getaffinity(daemon.pid) == {int(cpu)}, "virtiofsd is not placed")


@pytest.mark.parametrize("action", ["", "start"])
def test_a_shim_counts_every_cpu_until_its_vmm_runs(
        node: Node, cpus: tuple[str, str], tmp_path: Path, action: str) -> None:
    """Kata sizes a VM by its shim's mask; so neither an event, a pass nor a watcher that starts later narrows it."""
    program, free = kata_shim.built(tmp_path), os.sched_getaffinity(0)
    start(node)
    with Shim(program, node.id("a"), free, action) as shim:
        placed_by_now(node, "b", cpus[0])
        assert node.cli("repin").returncode == 0
        assert shim.counts() == {len(free)}
        node.kill()
        start(node)
        placed_by_now(node, "c", cpus[0])
        assert node.cli("repin").returncode == 0
        assert shim.counts() == {len(free)}
        assert node.status()["sandboxes"] == []
        vmm = shim.vmm(qemu(node.id("a")))
        try:
            node.wait_for_all(vmm, cpus[0])
            node.wait_for_all(shim.pid, cpus[0])
            assert node.cli("unpin", node.id("a")).returncode == 0
            assert {*by_tid(vmm).values(), *by_tid(shim.pid).values()} == {frozenset(free)}
        finally:
            os.kill(vmm, signal.SIGKILL)


def test_a_shim_that_becomes_the_vmm_is_placed_at_its_first_vcpu(
        node: Node, cpus: tuple[str, str], tmp_path: Path) -> None:
    program, free = kata_shim.built(tmp_path), os.sched_getaffinity(0)
    start(node)
    with Shim(program, node.id("a"), free) as shim:
        placed_by_now(node, "b", cpus[0])
        assert shim.counts() == {len(free)}
        for number in range(2):
            shim.ask("vcpu", str(number))
        node.wait_for_all(shim.pid, cpus[0])
        found = node.sandbox(node.id("a"))
        assert (found["vmm"]["type"], found["vmm"]["pid"]) == ("dragonball", shim.pid)
        node.container(node.id("a"), "web", cpus[1])
        node.wait_for_all(shim.pid, cpus[1])


def test_a_virtiofsd_is_placed_before_the_vm_is_there(node: Node, cpus: tuple[str, str]) -> None:
    start(node)
    with virtiofsd(node, "a") as daemon:
        wait(lambda: os.sched_getaffinity(daemon.pid) == {int(cpus[0])}, "virtiofsd is not placed")
        node.container(node.id("a"), "web", cpus[1])
        with Qemu(node.id("a"), vcpus=2):
            wait(lambda: os.sched_getaffinity(daemon.pid) == {int(cpus[1])}, "virtiofsd does not follow")
