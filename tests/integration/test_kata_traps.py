"""What breaks a naive design with Kata Containers: the tests named trap_N stand for its list."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import given_sandboxes
import pytest
from kata_states import Go, nameless, rust, wait_for
from process_masks import by_tid, seen, union
from real_node import Node
from real_qemu import Qemu, need_kvm
from runtime_bundle import cri
from waiting import PATIENCE, wait

from vmpin.features.installer import oci_hook

pytest_plugins = ["given"]
node = given_sandboxes.node
pytestmark = pytest.mark.root


def test_trap_1_katas_qmp_connection_is_left_alone_and_the_vm_confined(node: Node, cpus: tuple[str, str]) -> None:
    """QEMU serves one QMP client, and that is Kata's shim. So its vCPUs are not identified here, and yet confined."""
    with Qemu(node.id("a"), vcpus=2, debug_threads=False, qmp_sockets=1) as vm, \
            socket.socket(socket.AF_UNIX) as shim:
        shim.connect(vm.qmp_path)
        shim.settimeout(PATIENCE)
        assert b'"QMP"' in shim.recv(4096)
        node.start()
        node.container(vm.sandbox, "web", cpus[1], vm.pid)
        node.wait_for_all(vm.pid, cpus[1])
        status = node.sandbox(vm.sandbox)
        assert (status["verdict"], status["found_by"]) == ("waiting", "none")  # as it has just begun
        assert any("cannot all be identified yet" in reason for reason in status["reasons"])
        node.resyncs()
        clients = [line for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(vm.qmp_path)]
        assert len(clients) == 2, "the listening socket, and Kata's"
        shim.sendall(b'{"execute": "qmp_capabilities"}\n')
        assert b'"return"' in shim.recv(4096)
        # When it has gone, QEMU is asked; at the latest when its threads change.
        shim.close()


def test_trap_1_a_qmp_socket_that_is_free_is_asked(node: Node, cpus: tuple[str, str]) -> None:
    with Qemu(node.id("a"), vcpus=2, debug_threads=False, qmp_sockets=1) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1], vm.pid)
        node.container(vm.sandbox, "logs", cpus[0], vm.pid)
        wait(lambda: node.sandbox(vm.sandbox)["found_by"] == "qmp", lambda: node.sandbox(vm.sandbox))
        by_vcpu = {vcpu: tid for tid, vcpu in vm.vcpus().items()}
        wait(lambda: [by_tid(vm.pid)[by_vcpu[vcpu]] for vcpu in (0, 1)] == [{int(cpus[0])}, {int(cpus[1])}],
             lambda: node.sandbox(vm.sandbox))


def test_unnamed_vcpus_of_kvm_are_identified_by_their_system_call(node: Node, cpus: tuple[str, str]) -> None:
    """As under Kata: no thread names, and QMP is not for us."""
    need_kvm()
    with Qemu(node.id("a"), vcpus=2, debug_threads=False, accel="kvm", paused=False) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1], vm.pid)
        node.container(vm.sandbox, "logs", cpus[0], vm.pid)
        by_vcpu = {vcpu: tid for tid, vcpu in vm.vcpus().items()}
        wait(lambda: [by_tid(vm.pid)[by_vcpu[vcpu]] for vcpu in (0, 1)] == [{int(cpus[0])}, {int(cpus[1])}],
             lambda: node.sandbox(vm.sandbox))
        status = node.sandbox(vm.sandbox)
        assert (status["verdict"], status["found_by"]) == ("pinned", "kvm_run")
        assert node.cli("verify").returncode == 0


def test_trap_2_runtime_rs_reports_a_container_only_at_create_container(node: Node, cpus: tuple[str, str]) -> None:
    with Qemu(node.id("a"), vcpus=1, debug_threads=True) as vm:
        rust(node, vm.sandbox)
        node.start()
        state = node.state(vm.sandbox, "web", node.bundle("web", cpus[1]), vm.pid, status="creating")
        assert node.hook("createContainer", state) == b"ok\n"
        node.wait_for_all(vm.pid, cpus[1])
        # poststart comes at every exec, too; its container is the same.
        for _ in range(3):
            assert node.hook("poststart", {**state, "status": "running"}) == b"ok\n"
        assert [entry["name"] for entry in node.sandbox(vm.sandbox)["containers"]] == ["web"]
        assert node.hook("poststop", {**state, "status": "stopped"}) == b"ok\n"
        node.wait_for_all(vm.pid, cpus[0])


@pytest.mark.parametrize("annotated", [True, False])
def test_trap_3_the_go_runtimes_poststart_has_the_sandboxs_id_and_a_threads_pid(node: Node, cpus: tuple[str, str],
                                                                                annotated: bool) -> None:
    first, second = cpus
    with Qemu(node.id("a"), vcpus=2) as vm, Qemu("ignored", vcpus=2, extra=nameless()) as shim:
        thread = shim.tids()[-1]
        assert thread != shim.pid
        before = by_tid(shim.pid)
        node.start()
        for name, where in (("web", second), ("logs", first)):
            bundle = node.bundle(name, where)
            # createRuntime is right: the container's id, and the pid is the hypervisor's.
            assert node.hook("createRuntime", node.state(vm.sandbox, name, bundle, vm.pid)) == b"ok\n"
            late = {"ociVersion": "1.0.2", "id": vm.sandbox, "status": "", "pid": thread, "bundle": str(bundle),
                    "annotations": cri(vm.sandbox, name) if annotated else {}}
            assert node.hook("poststart", late) == b"ok\n"
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        assert {entry["id"] for entry in node.sandbox(vm.sandbox)["containers"]} == {node.id("web"), node.id("logs")}
        late = {**late, "bundle": str(node.top / "bundles" / node.id("web"))}
        assert node.hook("poststop", late) == b"ok\n"
        node.wait_for_all(vm.pid, first)
        assert {entry["id"] for entry in node.sandbox(vm.sandbox)["containers"]} == {node.id("logs")}
        assert by_tid(shim.pid) == before


def test_trap_4_nothing_is_left_in_a_spec_that_would_drop_the_guests_hooks(node: Node) -> None:
    spec = node.top / "spec.json"
    spec.write_text('{"ociVersion": "1.0.2"}')
    hooks = ("install", "hook", "--hooks-dir", str(node.top / "hooks.d"), "--base-spec", str(spec))
    done = node.cli(*hooks, "--out", str(spec))
    assert done.returncode == 0, done.stderr
    assert set(json.loads(spec.read_text())["hooks"]) == set(oci_hook.DEFAULT_STAGES)
    done = node.cli(*hooks, "--out", str(spec), "--remove")
    assert done.returncode == 0, done.stderr
    assert json.loads(spec.read_text()) == {"ociVersion": "1.0.2"}, "an empty `hooks` object counts as one"


def test_trap_5_hotplugged_vcpus_have_ids_with_holes(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(policy={"exclusive_annotation": "vmpin/exclusive"}, node={"shared_pool": None})
    with Qemu(node.id("a"), vcpus=1, maxcpus=8) as vm:
        assert [vm.add_vcpu(), vm.add_vcpu()] == [7, 6]
        node.start()
        node.container(vm.sandbox, "web", union(cpus), exclusive=True)
        node.wait_for_vcpus(vm.pid, {0: union(cpus), 6: first, 7: second}, union(cpus))
        assert [entry["vcpus"] for entry in node.sandbox(vm.sandbox)["containers"]] == ["6-7"]


def test_trap_6_runtime_rs_keeps_no_pid_so_the_command_line_counts(node: Node, cpus: tuple[str, str]) -> None:
    with Qemu(node.id("a"), vcpus=1) as vm, Qemu(node.id("b"), vcpus=1) as other:
        rust(node, vm.sandbox)
        rust(node, node.id("gone"))
        node.start()
        wait_for(node, {vm.sandbox: ("kata-rs", vm.pid), other.sandbox: ("vmm", other.pid),
                        node.id("gone"): ("kata-rs", None)})
        node.container(vm.sandbox, "web", cpus[1], vm.pid)
        node.wait_for_all(vm.pid, cpus[1])
        node.wait_for_all(other.pid, cpus[0])


def test_trap_7_a_cgroup_around_the_whole_vmm_caps_housekeeping(node: Node, cpus: tuple[str, str]) -> None:
    """On cgroup v2 the VMM sits in the sandbox's cgroup: its other threads cannot leave it, and that is said."""
    first, second = cpus
    node.configure(node={"shared_pool": first, "housekeeping": first}, policy={"emulator": "housekeeping"})
    with Qemu(node.id("a"), vcpus=1) as vm:
        cgroup = node.cpuset_cgroup(second)
        (cgroup / "cgroup.procs").write_text(str(vm.pid))
        node.start()
        node.container(vm.sandbox, "web", second, vm.pid)

        def degraded() -> bool:
            status = node.sandbox(vm.sandbox)
            emulators = [thread for thread in status["threads"] if thread["tid"] in seen(vm.pid).others]
            vcpus = [thread for thread in status["threads"] if thread["role"] == "vcpu"]
            return (status["verdict"] == "degraded" and all(thread["ok"] for thread in vcpus)
                    and {(thread["wanted"], thread["actual"], thread["ok"]) for thread in emulators} == {
                        (first, second, False)})

        wait(degraded, lambda: node.sandbox(vm.sandbox))
        node.wait_for_log("none of them is online and in the thread's cpuset cgroup")


def test_trap_8_an_update_without_a_hook_is_followed(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    with Qemu(node.id("a"), vcpus=2) as vm:
        state = Go(node, vm.sandbox, vm.pid)
        state.write(web=second, logs=first)
        node.start()
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        state.write(web=first)
        node.wait_for_all(vm.pid, first)
        # An empty cpuset is "no change": Kata keeps the old one then, and so do we.
        state.write(web=second)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        state.write(web="")
        node.resyncs()
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
