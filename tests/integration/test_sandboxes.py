"""Which VM is which sandbox: real QEMUs, with the state that Kata's two runtimes leave on disk and say to hooks.

The tests named trap_N stand for the list of what breaks a naive design with Kata Containers.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid

import given_sandboxes
import pytest
from kata_states import Go, nameless, shown, wait_for
from process_masks import by_tid, kept, seen
from real_node import Node
from real_qemu import Qemu

pytest_plugins = ["given"]
node = given_sandboxes.node
pytestmark = pytest.mark.root


def test_a_kata_that_pins_as_well_is_shown_in_status(node: Node) -> None:
    with Qemu(node.id("a"), vcpus=1) as vm:
        state = Go(node, vm.sandbox, vm.pid)
        state.pins = True
        state.write()
        node.start()
        wait_for(node, {vm.sandbox: ("kata-go", vm.pid)})
        assert any("enable_vcpus_pinning" in reason for reason in node.status()["sandboxes"][0]["reasons"])


def test_the_go_runtimes_state_has_the_vm_and_the_live_cpusets(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    with Qemu(node.id("a"), vcpus=2) as vm:
        state = Go(node, vm.sandbox, vm.pid)
        state.write(web=second, logs=first)
        node.start()
        wait_for(node, {vm.sandbox: ("kata-go", vm.pid)})
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        status = node.sandbox(vm.sandbox)
        assert status["pod"] == {"namespace": "tests", "name": "pod", "uid": "11-22"}
        assert {entry["id"]: (entry["cpuset"], entry["pause"], entry["source"]) for entry in status["containers"]} == {
            vm.sandbox: (None, True, "kata"), "web": (second, False, "kata"), "logs": (first, False, "kata")}
        # Kata lists a stopped container until it is removed; its own file says that it has stopped.
        state.state_of("web", "stopped")
        node.wait_for_all(vm.pid, first)
        state.state_of("web", "running")
        del state.cpusets["logs"]
        state.write()
        node.wait_for_all(vm.pid, second)
        shutil.rmtree(state.at)
        node.resyncs()
        wait_for(node, {vm.sandbox: ("kata-go", vm.pid)})
    wait_for(node, {})


def test_a_factory_vm_is_known_by_its_uuid(node: Node, cpus: tuple[str, str]) -> None:
    """A VM from Kata's factory was started under another id, before there was a sandbox."""
    vm_uuid = str(uuid.uuid4())
    sandbox = node.id("a")
    with Qemu(node.id("factory"), vcpus=1, extra=["-uuid", vm_uuid]) as vm:
        Go(node, sandbox, vm.pid, vm_uuid).write(web=cpus[1])
        node.start()
        wait_for(node, {sandbox: ("kata-go", vm.pid)})
        node.wait_for_all(vm.pid, cpus[1])


def test_a_vm_named_by_state_alone_is_known_by_its_uuid(node: Node, cpus: tuple[str, str]) -> None:
    vm_uuid = str(uuid.uuid4())
    sandbox = node.id("a")
    with Qemu("ignored", vcpus=1, extra=nameless("-uuid", vm_uuid)) as vm:
        Go(node, sandbox, vm.pid, vm_uuid).write(web=cpus[1])
        node.start()
        wait_for(node, {sandbox: ("kata-go", vm.pid)})
        node.wait_for_all(vm.pid, cpus[1])


def test_a_stale_pid_in_the_state_is_refused(node: Node, cpus: tuple[str, str]) -> None:
    """The sandbox's VMM has ended, and its pid belongs to another process by now."""
    with Qemu(node.id("other"), vcpus=1) as other, Qemu("ignored", vcpus=1, extra=nameless()) as stranger, \
            subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            before = {pid: by_tid(pid) for pid in (stranger.pid, sleeper.pid, 1)}
            for number, pid in enumerate((other.pid, stranger.pid, sleeper.pid, 1, 1 << 21, 0, os.getpid())):
                Go(node, node.id(f"stale{number}"), pid, str(uuid.uuid4())).write(web=cpus[1])
            node.start()
            node.wait_for_all(other.pid, cpus[0])
            node.resyncs()
            assert all(kept(pid, masks) for pid, masks in before.items())
            for sandbox, found in shown(node).items():
                assert found == (("vmm", other.pid) if sandbox == other.sandbox else ("kata-go", None))
            stale = node.sandbox(node.id("stale0"))
            assert (stale["verdict"], stale["reasons"], stale["threads"]) == ("off", ["its VMM does not run"], [])
        finally:
            sleeper.kill()


def test_a_half_written_state_is_read_again(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    with Qemu(node.id("a"), vcpus=1) as vm:
        state = Go(node, vm.sandbox, vm.pid)
        state.write(web=second)
        whole = state.text()
        file = state.at / "persist.json"
        file.write_text(whole[: len(whole) // 2])
        node.start()
        node.wait_for_log(f"{file}: is not JSON")
        node.wait_for_all(vm.pid, first)
        file.write_text(whole)
        node.wait_for_all(vm.pid, second)
        # What was read before is better than nothing.
        for part in ("", whole[:100], whole[:-1]):
            file.write_text(part)
            node.resyncs(2)
            node.wait_for_all(vm.pid, second)
        node.wait_for_log(": its last state is used")
        file.write_text("[]")
        file.unlink()
        os.mkfifo(file)
        node.resyncs(2)
        assert node.status()["version"] == 1, "it reads a FIFO"
        file.unlink()
        state.write(web=first)
        node.wait_for_all(vm.pid, first)
    assert "Traceback" not in node.log()


def test_a_state_that_is_rewritten_all_the_time_does_not_disturb(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(watch={"resync_seconds": 0.1})
    with Qemu(node.id("a"), vcpus=1) as vm:
        state = Go(node, vm.sandbox, vm.pid)
        state.write(web=cpus[1])
        node.start()
        node.wait_for_all(vm.pid, cpus[1])
        for _ in range(300):
            state.write()
            assert seen(vm.pid).all() == {cpus[1]}


# Hooks, and doubles


def test_a_vmm_without_a_name_is_known_by_a_hooks_pid(node: Node, cpus: tuple[str, str]) -> None:
    sandbox = node.id("a")
    with Qemu("ignored", vcpus=1, extra=nameless()) as vm, Qemu("ignored", vcpus=1, extra=nameless()) as stranger:
        before = by_tid(stranger.pid)
        node.start()
        node.container(sandbox, "web", cpus[1], vm.pid)
        wait_for(node, {sandbox: ("vmm", vm.pid)})
        node.wait_for_all(vm.pid, cpus[1])
        assert node.stop() == 0
        node.start()
        wait_for(node, {sandbox: ("vmm", vm.pid)})
        assert by_tid(stranger.pid) == before


def test_a_hook_cannot_take_a_vmm_that_has_another_name(node: Node, cpus: tuple[str, str]) -> None:
    with Qemu(node.id("a"), vcpus=1) as vm:
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        node.container(node.id("second"), "web", cpus[1], vm.pid)
        node.resyncs()
        assert shown(node)[vm.sandbox] == ("vmm", vm.pid)
        assert node.id("second") not in shown(node)
        node.wait_for_all(vm.pid, cpus[0])


def test_of_two_vmms_that_claim_one_sandbox_the_elder_has_it(node: Node, cpus: tuple[str, str]) -> None:
    with Qemu(node.id("a"), vcpus=1) as elder:
        node.start()
        wait_for(node, {elder.sandbox: ("vmm", elder.pid)})
        with Qemu(elder.sandbox, vcpus=1) as double:
            before = by_tid(double.pid)
            node.container(elder.sandbox, "web", cpus[1])
            node.wait_for_all(elder.pid, cpus[1])
            node.wait_for_log(f"second VMM ignored sandbox={elder.sandbox} pid={double.pid}")
            node.resyncs(2)
            assert by_tid(double.pid) == before
            assert node.log().count("second VMM ignored") == 1
            os.kill(elder.pid, signal.SIGKILL)
            wait_for(node, {elder.sandbox: ("vmm", double.pid)})
            node.wait_for_all(double.pid, cpus[1])


def test_a_vm_that_is_no_sandbox_is_never_touched(node: Node) -> None:
    with Qemu("ignored", vcpus=2, extra=nameless()) as vm:
        before = by_tid(vm.pid)
        node.start()
        node.resyncs()
        assert by_tid(vm.pid) == before
        assert shown(node) == {}


def test_a_sandbox_of_another_pattern_is_not_even_looked_at(node: Node) -> None:
    with Qemu("x" + node.id("a"), vcpus=1) as vm:
        before = by_tid(vm.pid)
        node.start()
        node.resyncs()
        assert by_tid(vm.pid) == before
        assert shown(node) == {}


def test_a_kata_sandbox_of_another_pattern_is_not_shown_either(node: Node, cpus: tuple[str, str]) -> None:
    with Qemu("x" + node.id("a"), vcpus=1) as vm:
        Go(node, vm.sandbox, vm.pid).write(web=cpus[1])
        before = by_tid(vm.pid)
        node.start()
        node.resyncs()
        assert by_tid(vm.pid) == before
        assert shown(node) == {}


def test_a_name_that_is_no_id_is_no_sandbox(node: Node) -> None:
    with Qemu("ignored", extra=["-name", f"sandbox-{node.prefix}a b,,c,debug-threads=on"]) as vm:
        before = by_tid(vm.pid)
        node.start()
        node.resyncs()
        assert by_tid(vm.pid) == before
        assert shown(node) == {}
