"""The watcher end to end: real QEMUs, real containers, real hooks; what is claimed is read from /proc."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from need import need_reaper
from process_masks import by_tid, kept, seen, union
from real_node import Node
from real_qemu import Qemu
from waiting import wait

from vmpin.host.sysfs import Sysfs

pytest_plugins = ["given"]
pytestmark = pytest.mark.root


def everything() -> str:
    return str(Sysfs().online())


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_a_container_is_followed_from_its_creation_to_its_end(node: Node, cpus: tuple[str, str],
                                                              runtime: str) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=3) as vm:
        node.start()
        node.wait_for_all(vm.pid, first)
        web = node.real(runtime, vm.sandbox, "web", second)
        logs = node.real(runtime, vm.sandbox, "logs", first)
        web.run()
        node.wait_for_all(vm.pid, second)
        logs.run()
        node.wait_for_vcpus(vm.pid, {0: first, 1: first, 2: second}, first)
        status = node.sandbox(vm.sandbox)
        assert status["verdict"] == "pinned"
        assert status["pod"] == {"namespace": "tests", "name": "pod", "uid": "11-22"}
        assert {entry["name"]: (entry["cpuset"], entry["exclusive"], entry["vcpus"])
                for entry in status["containers"]} == {"web": (second, True, "2"), "logs": (first, False, "0-1")}
        assert node.cli("verify").returncode == 0
        web.update(first)
        node.wait_for_all(vm.pid, first)
        assert node.sandbox(vm.sandbox)["verdict"] == "floating"
        web.update(second)
        node.wait_for_vcpus(vm.pid, {0: first, 1: first, 2: second}, first)
        web.delete()
        node.wait_for_all(vm.pid, first)
        assert [entry["name"] for entry in node.sandbox(vm.sandbox)["containers"]] == ["logs"]
        logs.delete()
        wait(lambda: node.sandbox(vm.sandbox)["containers"] == [], "the last container is still there")
        node.wait_for_all(vm.pid, first)
    wait(lambda: node.sandbox(vm.sandbox) is None, "the VM has ended and is still shown")


def test_a_container_whose_end_is_not_reported_is_noticed(node: Node, cpus: tuple[str, str]) -> None:
    need_reaper()
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        web = node.real("crun", vm.sandbox, "web", second)
        web.run()
        node.wait_for_all(vm.pid, second)
        os.kill(web.pid, signal.SIGKILL)
        node.wait_for_all(vm.pid, first)


# Rules, on real threads


@pytest.mark.parametrize(("vcpus", "expected", "verdict"), [
    (1, "shares", "degraded"), (2, "one-to-one", "pinned"), (3, "spare", "pinned")])
def test_two_exclusive_cpus(node: Node, cpus: tuple[str, str], vcpus: int, expected: str, verdict: str) -> None:
    first, second = cpus
    both = union(cpus)
    wanted = {"shares": {0: both}, "one-to-one": {0: first, 1: second}, "spare": {0: both, 1: first, 2: second}}
    node.configure(policy={"exclusive_annotation": "vmpin/exclusive"})
    with Qemu(node.id("a"), vcpus=vcpus) as vm:
        node.start()
        node.container(vm.sandbox, "web", both, exclusive=True)
        node.wait_for_vcpus(vm.pid, wanted[expected], both)
        status = wait(lambda: (found := node.sandbox(vm.sandbox))["verdict"] == verdict and found, verdict)
        if verdict == "degraded":
            assert status["reasons"] == ["1 vCPU for 2 exclusive CPUs: no one-to-one, each exclusive container has "
                                         "its own share of the vCPUs"]
        else:
            assert status["reasons"] == []


def test_union_puts_every_vcpu_on_the_sandbox_mask(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]},
                   policy={"vcpus": "union", "iothreads": "sandbox", "emulator": "sandbox"})
    with Qemu(node.id("a"), vcpus=3) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        node.container(vm.sandbox, "logs", cpus[0])
        node.wait_for_all(vm.pid, union(cpus))
        assert node.sandbox(vm.sandbox)["verdict"] == "floating"


def test_each_role_follows_its_own_policy(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first, "housekeeping": first},
                   policy={"iothreads": second, "vhost": "housekeeping", "emulator": "shared"})
    with Qemu(node.id("a"), vcpus=1, iothreads=["io1"], vhost=1) as vm:
        node.start()
        node.container(vm.sandbox, "web", second)
        node.wait_for_vcpus(vm.pid, {0: second})

        def by_role() -> dict[str, set[str]]:
            found: dict[str, set[str]] = {}
            for thread in node.sandbox(vm.sandbox)["threads"]:
                found.setdefault(thread["role"], set()).add(seen(vm.pid).others.get(thread["tid"], "vcpu"))
            return found

        wait(lambda: by_role() == {"vcpu": {"vcpu"}, "iothread": {second}, "vhost": {first}, "emulator": {first}},
             by_role)


def test_roles_that_are_off_are_left_alone(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]}, policy={"vcpus": "off", "emulator": "off", "iothreads": "off"})
    with Qemu(node.id("a"), vcpus=2, iothreads=["io1"]) as vm:
        before = by_tid(vm.pid)
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        node.resyncs()
        assert by_tid(vm.pid) == before
        assert node.sandbox(vm.sandbox)["verdict"] == "off"


def test_a_vm_that_was_killed_is_not_shown_as_running(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(watch={"resync_seconds": 600})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        assert node.sandbox(vm.sandbox)["vmm"]["pid"] == vm.pid
        os.kill(vm.pid, signal.SIGKILL)
        wait(lambda: Path(f"/proc/{vm.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", "it lives on")
        assert node.sandbox(vm.sandbox) is None


def test_a_vcpu_plugged_in_later_is_placed(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a"), vcpus=2, maxcpus=8) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        node.container(vm.sandbox, "logs", cpus[0])
        node.wait_for_vcpus(vm.pid, {0: cpus[0], 1: cpus[1]})
        assert vm.add_vcpu() == 7
        node.wait_for_vcpus(vm.pid, {0: cpus[0], 1: cpus[1], 7: cpus[0]}, cpus[0])


def test_sighup_loads_the_configuration_again(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first}, policy={"emulator": "sandbox"})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second})
        assert node.watcher is not None
        node.configure(policy={"vcpus": "union"})
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_vcpus(vm.pid, {0: union(cpus), 1: union(cpus)})
        node.wait_for_log("configuration loaded again: policy.vcpus: auto -> union")
        good = node.config.read_text()
        node.config.write_text(good.replace("policy:", "polizy:"))
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_log(f"configuration not loaded: {node.config}: unknown section 'polizy'")
        node.config.write_text(good.replace("union", "onion"))
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_log("'onion' is none of auto, union, off")
        node.config.unlink()
        node.watcher.send_signal(signal.SIGHUP)
        wait(lambda: node.log().count("configuration not loaded") == 3, node.log)
        node.config.write_text("")
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_log(f"configuration not loaded: {node.config}: no longer sets any key")
        node.resyncs()
        node.wait_for_vcpus(vm.pid, {0: union(cpus), 1: union(cpus)})
        node.config.write_text(good)
        assert node.status()["policy"]["vcpus"] == "union"


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_a_container_without_a_vm_is_never_touched_and_its_cpus_count(node: Node, cpus: tuple[str, str],
                                                                      runtime: str) -> None:
    node.configure(policy={"exclusive_annotation": "vmpin/exclusive"})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.container(vm.sandbox, "web", None)
        plain = node.real(runtime, node.id("plain"), "plain", cpus[1], {"vmpin/exclusive": "true"})
        plain.run()
        before = by_tid(plain.pid)
        rest = str(Sysfs().online() - Sysfs().online().parse(cpus[1]))
        node.wait_for_all(vm.pid, rest)
        status = node.status()
        assert status["node"]["exclusive"] == cpus[1]
        assert status["node"]["shared_pool"] == rest
        assert [entry["id"] for entry in status["sandboxes"]] == [vm.sandbox]
        node.resyncs()
        assert by_tid(plain.pid) == before
        assert node.id("plain") not in node.log()
        plain.delete()
        node.wait_for_all(vm.pid, everything())


def test_a_pid_in_a_hook_is_never_pinned(node: Node, cpus: tuple[str, str]) -> None:
    """Only a process that is a VMM by its own command line, and no other's, is a sandbox's VM."""
    node.configure(node={"shared_pool": cpus[0]})
    before = {pid: by_tid(pid) for pid in (1, os.getpid())}
    with Qemu(node.id("a"), vcpus=2) as vm, Qemu(node.id("b")) as other, \
            subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            node.start()
            for number, pid in enumerate((1, os.getpid(), os.getppid(), sleeper.pid, other.pid, 2, 0, -1, 1 << 40)):
                name = f"c{number}"
                for stage in ("createRuntime", "poststart"):
                    state = node.state(vm.sandbox, name, node.bundle(name, cpus[1]), pid)
                    assert node.hook(stage, state) == b"ok\n"
            node.resyncs()
            assert kept(1, before[1])
            assert kept(os.getpid(), before[os.getpid()])
            assert len(os.sched_getaffinity(sleeper.pid)) == len(os.sched_getaffinity(0))
            status = {entry["id"]: entry for entry in node.status()["sandboxes"]}
            assert {sandbox: entry["vmm"]["pid"] for sandbox, entry in status.items()} == {
                vm.sandbox: vm.pid, other.sandbox: other.pid}
            tids = {thread["tid"] for entry in status.values() for thread in entry["threads"]}
            assert tids <= {*by_tid(vm.pid), *by_tid(other.pid)}
            # Nor does what such a process may use widen the sandbox's mask.
            assert status[vm.sandbox]["mask"] == cpus[1]
            node.wait_for_all(vm.pid, cpus[1])
        finally:
            sleeper.kill()
