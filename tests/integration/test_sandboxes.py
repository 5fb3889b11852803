"""Which VM is which sandbox: real QEMUs, with the state that Kata's two runtimes leave on disk and say to hooks.

The tests named trap_N stand for the list of what breaks a naive design with Kata Containers.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from need import need_root, need_tool
from real_node import PATIENCE, Node, by_tid, cri, kept, seen, union, wait
from real_qemu import Qemu, need_kvm

from vmpin.install import hook_options

pytest_plugins = ["given"]
pytestmark = pytest.mark.root


@pytest.fixture
def node(cpus: tuple[str, str]) -> Iterator[Node]:
    need_root()
    need_tool("qemu-system-x86_64")
    with Node() as made:
        made.configure(node={"shared_pool": cpus[0]})
        yield made


class Go:
    """What Kata's Go runtime keeps of a sandbox: the keys are Go's field names, and the file is not replaced but
    written anew (O_TRUNC)."""

    def __init__(self, node: Node, sandbox: str, pid: int, vm_uuid: str = "") -> None:
        self.sandbox = sandbox
        self.pid = pid
        self.uuid = vm_uuid
        self.at = node.top / "vc" / "sbs" / sandbox
        self.at.mkdir(parents=True)
        self.cpusets: dict[str, str] = {}
        self.pins = False

    def text(self) -> str:
        pause = {"ID": self.sandbox, "Annotations": {**cri(self.sandbox, ""), "io.kubernetes.cri.container-type":
                                                     "sandbox"}, "Resources": {"cpu": {}}}
        return json.dumps({
            "SandboxContainer": self.sandbox, "State": "running", "PersistVersion": 2,
            "HypervisorState": {"Type": "qemu", "UUID": self.uuid, "Pid": self.pid, "VirtiofsDaemonPid": 0},
            "Config": {"HypervisorType": "qemu", "EnableVCPUsPinning": self.pins, "ContainerConfigs": [pause] + [
                {"ID": name, "Annotations": cri(self.sandbox, name), "Resources": {"cpu": {"cpus": cpus}}}
                for name, cpus in self.cpusets.items()]}})

    def write(self, **cpusets: str) -> None:
        self.cpusets.update(cpusets)
        (self.at / "persist.json").write_text(self.text())

    def state_of(self, container: str, state: str) -> None:
        (self.at / container).mkdir(exist_ok=True)
        (self.at / container / "persist.json").write_text(json.dumps({"State": state}))


def rust(node: Node, sandbox: str, pid: int | None = None) -> Path:
    """What runtime-rs writes once, when a sandbox has started."""
    at = node.top / "kata" / sandbox
    at.mkdir(parents=True)
    (at / "state.json").write_text(json.dumps({
        "sandbox_type": "virt_container",
        "resource": {"endpoint": [], "cgroup_state": {"path": "/x", "sandbox_cgroup_only": True}},
        "hypervisor": {"hypervisor_type": "qemu", "id": sandbox, "pid": pid, "virtiofs_daemon_pid": 0,
                       "netns": None, "config": {}}}))
    return at


def nameless(*more: str) -> list[str]:
    """Arguments that take the sandbox's id off QEMU's command line's last word on its name."""
    return ["-name", "guest,debug-threads=on", *more]


def shown(node: Node) -> dict[str, tuple[str, int | None]]:
    """Runtime and VMM by sandbox."""
    return {entry["id"]: (entry["runtime"], entry["vmm"] and entry["vmm"]["pid"])
            for entry in node.status()["sandboxes"]}


def wait_for(node: Node, wanted: Mapping[str, tuple[str, int | None]]) -> None:
    wait(lambda: shown(node) == wanted, lambda: f"{shown(node)} is not {wanted}")


# The Go runtime


def test_a_kata_that_pins_as_well_is_told_in_status(node: Node) -> None:
    with Qemu(node.id("a"), vcpus=1) as vm:
        state = Go(node, vm.sandbox, vm.pid)
        state.pins = True
        state.write()
        node.start()
        wait_for(node, {vm.sandbox: ("kata-go", vm.pid)})
        assert any("enable_vcpus_pinning" in reason for reason in node.status()["sandboxes"][0]["reasons"])


def test_the_go_runtimes_state_tells_the_vm_and_the_live_cpusets(node: Node, cpus: tuple[str, str]) -> None:
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
    """The sandbox's VMM has ended, and its pid belongs to somebody else by now."""
    with Qemu(node.id("other"), vcpus=1) as other, Qemu("ignored", vcpus=1, extra=nameless()) as stranger, \
            subprocess.Popen(["sleep", "60"]) as sleeper:
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


# Traps


def test_trap_1_katas_qmp_connection_is_left_alone_and_the_vm_confined(node: Node, cpus: tuple[str, str]) -> None:
    """QEMU serves one QMP client, and that is Kata's shim. So its vCPUs are not told here, and yet confined."""
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


def test_unnamed_vcpus_of_kvm_are_told_by_the_call_they_wait_in(node: Node, cpus: tuple[str, str]) -> None:
    """As under Kata: no thread names, and QMP is not for us."""
    need_kvm()
    with Qemu(node.id("a"), vcpus=2, debug_threads=False, accel="kvm", paused=False) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1], vm.pid)
        node.container(vm.sandbox, "logs", cpus[0], vm.pid)
        by_vcpu = {vcpu: tid for tid, vcpu in vm.vcpus().items()}
        wait(lambda: [by_tid(vm.pid)[by_vcpu[vcpu]] for vcpu in (0, 1)] == [{int(cpus[0])}, {int(cpus[1])}],
             lambda: node.sandbox(vm.sandbox), 40)
        status = node.sandbox(vm.sandbox)
        assert (status["verdict"], status["found_by"]) == ("pinned", "kvm_run")
        assert node.cli("verify").returncode == 0


def test_trap_2_runtime_rs_tells_of_a_container_only_at_create_container(node: Node, cpus: tuple[str, str]) -> None:
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
    hooks = ("install-hook", "--hooks-dir", str(node.top / "hooks.d"), "--base-spec", str(spec))
    done = node.cli(*hooks, "--out", str(spec))
    assert done.returncode == 0, done.stderr
    assert set(json.loads(spec.read_text())["hooks"]) == set(hook_options.DEFAULT_STAGES)
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


def test_trap_6_runtime_rs_keeps_no_pid_so_the_command_line_tells(node: Node, cpus: tuple[str, str]) -> None:
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


def test_trap_8_an_update_that_no_hook_tells_is_followed(node: Node, cpus: tuple[str, str]) -> None:
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
        node.container(node.id("thief"), "web", cpus[1], vm.pid)
        node.resyncs()
        assert shown(node)[vm.sandbox] == ("vmm", vm.pid)
        assert node.id("thief") not in shown(node)
        node.wait_for_all(vm.pid, cpus[0])


def test_of_two_vmms_that_claim_one_sandbox_the_elder_has_it(node: Node, cpus: tuple[str, str]) -> None:
    with Qemu(node.id("a"), vcpus=1) as elder:
        node.start()
        wait_for(node, {elder.sandbox: ("vmm", elder.pid)})
        with Qemu(elder.sandbox, vcpus=1) as double:
            before = by_tid(double.pid)
            node.container(elder.sandbox, "web", cpus[1])
            node.wait_for_all(elder.pid, cpus[1])
            node.wait_for_log(f"sandbox={elder.sandbox} has a second VMM pid={double.pid}, which is left alone")
            node.resyncs(2)
            assert by_tid(double.pid) == before
            assert node.log().count("has a second VMM") == 1
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
