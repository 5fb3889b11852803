"""Threads that are born while a VM runs, storms, lost events, and a watcher without proc events."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from typing import Any

import new_thread_steps
import pytest
from need import need_tool
from new_thread_steps import ForkMasks, in_time, new_threads, overruns, start
from process_masks import by_tid, seen
from real_node import Node, talk
from real_qemu import Qemu, need_kvm
from waiting import wait

from vmpin.config.timeouts import TIMEOUTS
from vmpin.cpuset import CpuSet

pytest_plugins = ["given"]
node = new_thread_steps.node
pytestmark = pytest.mark.root

#: A ROM in place of firmware: where a CPU begins, 16 bytes before the end, cli; hlt; and hlt again.
WAITING_ROM = b"\x90" * 0xFFF0 + b"\xfa\xf4\xeb\xfd".ljust(16, b"\x90")


def wait_until_at_rest(node: Node) -> None:
    """A VM that has begun is looked at again, ever more seldom, for some seconds: until there was no look for longer
    than there is between the last two, twice over for a busy machine."""
    seen_last: Any = None
    since = time.monotonic()

    def calm() -> bool:
        nonlocal seen_last, since
        passes = json.loads(talk(node.run / "vmpin.sock", b'{"op":"about"}\n'))["passes"]
        if passes != seen_last:
            seen_last, since = passes, time.monotonic()
        return time.monotonic() - since > 2 * TIMEOUTS.rechecks[-1]

    wait(calm, lambda: f"it looks on: {seen_last}")


def test_a_vcpu_that_is_plugged_in_is_placed_at_once(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    start(node)
    node.container(node.id("a"), "web", second)
    node.container(node.id("a"), "logs", first)
    with Qemu(node.id("a"), vcpus=2, maxcpus=8) as vm:
        node.wait_for_vcpus(vm.pid, {0: first, 1: second})
        assert vm.add_vcpu() == 7
        node.wait_for_vcpus(vm.pid, {0: first, 1: second, 7: first}, first)


def test_a_vcpu_without_a_name_is_found_soon_after(node: Node, cpus: tuple[str, str]) -> None:
    need_kvm()  # KVM shows which they are
    first, second = cpus
    start(node)
    node.container(node.id("a"), "web", second)
    node.container(node.id("a"), "logs", first)

    def masks() -> dict[int, str]:
        return {index: str(CpuSet(os.sched_getaffinity(tid))) for tid, index in vm.vcpus().items()}

    vm = Qemu(node.id("a"), vcpus=2, maxcpus=8, debug_threads=False, accel="kvm", paused=False)
    # Firmware would keep the first vCPU busy, on a busy machine for longer than the watcher looks.
    (vm.dir / "rom").write_bytes(WAITING_ROM)
    vm.argv += ["-bios", str(vm.dir / "rom")]
    with vm:
        wait(lambda: masks() == {0: first, 1: second}, masks)
        wait_until_at_rest(node)
        assert vm.add_vcpu() == 7
        wait(lambda: masks() == {0: first, 1: second, 7: first}, masks)


def test_a_thread_that_is_born_outside_is_put_back_and_counted(node: Node, cpus: tuple[str, str]) -> None:
    """Another hand has moved its creator; the clock that would put that back is far."""
    start(node)

    def counted(name: str) -> bool:
        with Qemu(node.id(name), vcpus=2, maxcpus=8) as vm:
            wait_until_at_rest(node)
            lost, before = overruns(node), new_threads(node, vm.sandbox)
            os.sched_setaffinity(vm.pid, {int(cpus[1])})
            assert vm.add_vcpu() == 7
            node.wait_for_vcpus(vm.pid, {0: cpus[0], 1: cpus[0], 7: cpus[0]})
            after = wait(lambda: ((found := new_threads(node, vm.sandbox))["reported"] == before["reported"] + 1
                                  and found)
                         or overruns(node) > lost, lambda: (before, new_threads(node, vm.sandbox)))
            if overruns(node) > lost:
                return False
            assert (after["inside"], after["outside"]) == (before["inside"], before["outside"] + 1)
            assert after["outside_ms"]["sum"] > before["outside_ms"]["sum"]
            wide = node.cli("status", "-o", "wide").stdout
            # Two, where the watcher had placed QEMU before that made its first thread.
            assert (f"new threads: {after['reported']}, {after['inside']} within their CPUs; "
                    f"{after['outside']} were allowed outside") in wide
            assert "process events reported by the kernel" in wide
            return True

    assert in_time(counted)


def test_storms_of_others_disturb_neither(node: Node, cpus: tuple[str, str]) -> None:
    start(node)

    def nearly_all_inside(name: str) -> bool:
        with ForkMasks() as forks, Qemu(node.id(name), vcpus=4, maxcpus=8) as vm:
            assert vm.add_vcpu() == 7
            node.wait_for_all(vm.pid, cpus[0])
            masks = forks.masks(vm.pid)
        return bool(masks) and masks.count(CpuSet.parse(cpus[0])) >= len(masks) - 2

    storm = subprocess.Popen(["/bin/sh", "-c", "while :; do /bin/true; done"])
    try:
        assert in_time(nearly_all_inside)
    finally:
        storm.kill()
        storm.wait()


def test_what_was_lost_is_looked_for(node: Node, cpus: tuple[str, str]) -> None:
    """The reports of a followed process fill the buffer: those of others are not received."""
    start(node)
    assert node.watcher is not None
    names = "read line; i=0; while [ $i -lt 40000 ]; do echo n$i >/proc/$$/comm; i=$((i + 1)); done"
    with subprocess.Popen(["qemu-system-x86_64", "-c", names, "-name", f"sandbox-{node.id('s')}"],
                          executable="/bin/sh", stdin=subprocess.PIPE) as storm:
        node.wait_for_all(storm.pid, cpus[0])
        wait(lambda: node.sandbox(node.id("s")), "it is not followed")
        node.watcher.send_signal(signal.SIGSTOP)
        storm.communicate(b"go\n")
    with Qemu(node.id("a"), vcpus=2) as vm:
        began = time.monotonic()
        assert seen(vm.pid).all() != {cpus[0]}
        outside_at_least = time.monotonic() - began
        node.watcher.send_signal(signal.SIGCONT)
        node.wait_for_all(vm.pid, cpus[0])
        wait(lambda: node.status()["sources"]["new_threads"]["overruns"] >= 1,
             lambda: node.status()["sources"]["new_threads"])
        node.wait_for_log("lost events: a full pass follows")
        outside = wait(lambda: new_threads(node, vm.sandbox), "no account")
        assert 1 <= outside["outside"] <= len(vm.tids())
        assert outside["outside_ms"]["max"] >= 1000 * outside_at_least - 10  # start times are in ticks


def test_without_proc_events_it_logs_that_once_and_polls(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(watch={"resync_seconds": 0.3})
    node.wrap = [need_tool("unshare"), "--net", need_tool("setpriv"), "--bounding-set=-sys_admin",
                 "--inh-caps=-sys_admin"]
    node.start()
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.wait_for_all(vm.pid, cpus[0])
        found = wait(lambda: new_threads(node, vm.sandbox), "no account")
        assert found["reported"] == 0
        assert 1 <= found["outside"] <= len(vm.tids())  # what was born after its creator was placed is not
        assert found["outside_ms"]["max"] > 0
        state = node.status()["sources"]["new_threads"]["state"]
        assert state.startswith("not reported: it needs the machine's own network namespace, which cannot be entered")
        node.resyncs()
    assert node.log().count("proc connector unavailable") == 1


def test_new_threads_can_be_left_out(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(watch={"births": False})
    node.start()
    with Qemu(node.id("a"), vcpus=2) as vm:
        time.sleep(0.5)
        assert cpus[0] not in seen(vm.pid).all()
        assert node.status()["sources"]["new_threads"] is None
        assert node.cli("repin").returncode == 0
        assert seen(vm.pid).all() == {cpus[0]}
    assert "new_threads" not in node.log()


def test_a_watcher_that_is_killed_right_after_a_vm_began_can_give_everything_back(
        node: Node, cpus: tuple[str, str]) -> None:
    free = frozenset(os.sched_getaffinity(0))
    dice = secrets.SystemRandom()
    for number in range(5):
        start(node)
        with Qemu(node.id(f"a{number}"), vcpus=2) as vm:
            time.sleep(dice.uniform(0, 0.05))
            node.kill()
            start(node)
            node.wait_for_all(vm.pid, cpus[0])
            assert node.cli("unpin", vm.sandbox).returncode == 0
            assert {mask for mask in by_tid(vm.pid).values()} == {free}
            node.kill()


def test_the_account_is_in_the_document(node: Node) -> None:
    start(node)
    with Qemu(node.id("a"), vcpus=1) as vm:
        wait(lambda: new_threads(node, vm.sandbox), "no account")
        sources = node.status()["sources"]["new_threads"]
        assert sources["state"].startswith("reported by the kernel")
        assert sources["events"]["exec"] >= 1
        assert sources["events"]["fork"] >= 1
        assert set(new_threads(node, vm.sandbox)) == {"reported", "inside", "ended", "outside", "outside_ms", "placed",
                                                "placed_ms"}
