"""docs/troubleshooting.md: each symptom is made, shows what the page has, and is gone after what the page answers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from process_masks import by_tid, seen, union
from real_node import Node
from real_qemu import Qemu
from symptoms import see, walks
from waiting import wait

from vmpin.cpuset import CpuSet
from vmpin.features.cluster.kube.reporter_report import OPERATION, encode
from vmpin.features.cluster.reporter.watcher_link import ask
from vmpin.features.cluster.reporter_requests import PAUSE

pytest_plugins = ["given"]
pytestmark = pytest.mark.root

Cpus = tuple[str, str]


@walks("What happened to a pod")
def test_the_log_of_a_pod(node: Node, cpus: Cpus) -> None:
    with Qemu(node.id("a")) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        node.wait_for_all(vm.pid, cpus[1])
        see(node, "What happened to a pod", "tests/pod")


@walks("No watcher runs")
def test_no_watcher(node: Node) -> None:
    see(node, "No watcher runs")
    assert node.cli("doctor", "watcher").stdout.startswith("bad")
    node.start()
    assert node.watcher is not None
    assert node.cli("status").stdout.startswith(f"watcher pid {node.watcher.pid};")


@walks("The watcher is stopped")
def test_a_stopped_watcher(node: Node) -> None:
    node.start()
    assert node.watcher is not None
    pid = node.watcher.pid
    node.watcher.send_signal(signal.SIGSTOP)
    try:
        see(node, "The watcher is stopped", code=1)
        told = node.cli("status").stderr
        assert f"the watcher (pid {pid}) is stopped\n" in told
        assert f"the watcher (pid {pid}) is stopped" in node.cli("doctor", "watcher").stdout
        command = re.findall("`(kill [^`]*)`", told)
        assert command == [f"kill -CONT {pid}"]
        subprocess.run(command[0].split(), check=True)
        wait(lambda: node.cli("status").stdout.startswith(f"watcher pid {pid};"), "it does not go on")
    finally:
        node.watcher.send_signal(signal.SIGCONT)


@walks("The watcher refuses its configuration")
def test_a_wrong_key(node: Node) -> None:
    right = node.config.read_text()
    node.config.write_text("node: {sharedpool: 0}\n")
    see(node, "The watcher refuses its configuration", code=2)
    assert node.cli("watch").returncode == 2
    node.config.write_text(right)
    assert node.cli("config").returncode == 0
    assert "shared_pool:" in node.cli("config", "--example").stdout


@walks("A changed configuration has no effect")
def test_a_configuration_that_was_not_loaded(node: Node) -> None:
    node.start()
    node.configure(policy={"emulator": "shared"})
    see(node, "A changed configuration has no effect")
    assert node.watcher is not None
    node.watcher.send_signal(signal.SIGHUP)
    wait(lambda: node.cli("doctor", "config").stdout.startswith("ok"), "the watcher does not load it")


@walks("A VM is unmanaged")
def test_an_unmanaged_vm(node: Node, cpus: Cpus) -> None:
    with Qemu(node.id("a")) as vm, Qemu(node.id("b")) as other:
        node.start()
        wait(lambda: (found := node.sandbox(vm.sandbox)) and found["verdict"] == "unmanaged", "not unmanaged")
        see(node, "A VM is unmanaged")
        node.container(vm.sandbox, "web", cpus[1])
        node.wait_for_all(vm.pid, cpus[1])
        node.configure(node={"shared_pool": cpus[0]})
        assert node.watcher is not None
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_all(other.pid, cpus[0])


@walks("A VM floats, though its container has CPUs of its own")
def test_a_floating_vm(node: Node, cpus: Cpus) -> None:
    shared, own = cpus
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.container(vm.sandbox, "logs", shared)
        node.container(vm.sandbox, "web", own)
        node.wait_for_all(vm.pid, union(cpus))
        see(node, "A VM floats, though its container has CPUs of its own", vm.sandbox)
        node.configure(node={"shared_pool": shared})
        assert node.watcher is not None
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_vcpus(vm.pid, {0: shared, 1: own})
        wait(lambda: node.sandbox(vm.sandbox)["verdict"] == "pinned", "not pinned")


@walks("A VM is degraded: fewer vCPUs than exclusive CPUs")
def test_too_few_vcpus(node: Node, cpus: Cpus) -> None:
    heading = "A VM is degraded: fewer vCPUs than exclusive CPUs"
    node.configure(policy={"exclusive_annotation": "vmpin/exclusive"})
    with Qemu(node.id("a"), vcpus=1, maxcpus=2) as vm:
        node.start()
        node.container(vm.sandbox, "web", union(cpus), exclusive=True)
        wait(lambda: node.sandbox(vm.sandbox)["verdict"] == "degraded", "not degraded")
        see(node, heading, vm.sandbox)
        vm.add_vcpu()
        wait(lambda: sorted(seen(vm.pid).vcpus.values()) == sorted(cpus), lambda: f"not one-to-one: {seen(vm.pid)}")
        wait(lambda: node.sandbox(vm.sandbox)["verdict"] == "pinned", "not pinned")


@walks("Threads have fewer CPUs than decided")
def test_a_cgroup_with_fewer_cpus(node: Node, cpus: Cpus) -> None:
    with Qemu(node.id("a")) as vm:
        node.start()
        node.container(vm.sandbox, "web", union(cpus))
        node.wait_for_all(vm.pid, union(cpus))
        cgroup = node.cpuset_cgroup(cpus[1])
        (cgroup / "cgroup.procs").write_text(str(vm.pid))
        node.wait_for_all(vm.pid, cpus[1])
        wait(lambda: node.sandbox(vm.sandbox)["verdict"] == "degraded", "not degraded")
        see(node, "Threads have fewer CPUs than decided", vm.sandbox)
        (cgroup / "cpuset.cpus").write_text(union(cpus))
        node.wait_for_all(vm.pid, union(cpus))
        wait(lambda: node.cli("verify").returncode == 0, "not verified")


@walks("Threads are put back again and again")
def test_another_writer(node: Node, cpus: Cpus) -> None:
    with Qemu(node.id("a")) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        node.wait_for_all(vm.pid, cpus[1])
        for tid in by_tid(vm.pid):
            os.sched_setaffinity(tid, CpuSet.parse(cpus[0]))
        node.wait_for_all(vm.pid, cpus[1])
        node.wait_for_log("repaired ")
        see(node, "Threads are put back again and again", vm.sandbox)


@walks("Two pods have the same exclusive CPU")
def test_a_collision(node: Node, cpus: Cpus) -> None:
    shared, own = cpus
    node.configure(node={"shared_pool": shared})
    with Qemu(node.id("a")) as vm, Qemu(node.id("b")) as other:
        node.start()
        for sandbox, container, pod in ((vm.sandbox, "web", "web"), (other.sandbox, "db", "db")):
            state = node.state(sandbox, container, node.bundle(container, own))
            state["annotations"] = {key: pod if key.endswith((".sandbox-name", ".sandbox-uid")) else value
                                    for key, value in dict(state["annotations"]).items()}  # type: ignore[call-overload]
            assert node.hook("createRuntime", state) == b"ok\n"
        wait(lambda: node.status()["node"]["collisions"], "no collision")
        see(node, "Two pods have the same exclusive CPU", vm.sandbox, (1, 0))
        assert " ago" in node.cli("status", "--explain", other.sandbox).stdout
        node.gone(other.sandbox, "db")
        wait(lambda: node.cli("verify").returncode == 0, lambda: node.cli("verify").stdout)


@walks("Messages wait in the spool")
def test_a_spooled_message(node: Node, cpus: Cpus) -> None:
    with Qemu(node.id("a")) as vm:
        node.start()
        node.stop()
        state = node.state(vm.sandbox, "web", node.bundle("web", cpus[1]))
        assert node.call_hook("createRuntime", state).wait() == 0
        see(node, "Messages wait in the spool")
        node.start()
        node.wait_for_all(vm.pid, cpus[1])
        wait(lambda: not list((node.run / "spool").iterdir()), "the message stays")


@walks("The reporter of a node is not Ready")
def test_a_reporter_without_an_api_server(node: Node) -> None:
    node.configure(watch={"status_group": "65532"})
    node.start()
    wait(lambda: node.cli("doctor", "watcher").stdout.startswith("ok"), "the watcher is not well")
    path = node.run / "status" / "vmpin.sock"
    assert ask(path, encode("GET /api/v1/nodes/a: TLS: certificate verify failed"), OPERATION) == "taken"
    see(node, "The reporter of a node is not Ready")
    time.sleep(PAUSE)
    ask(path, encode(""), OPERATION)
    assert node.cli("doctor", "reporter").stdout.startswith("ok")


@walks("The state file is damaged")
def test_a_damaged_state_file(node: Node, cpus: Cpus) -> None:
    with Qemu(node.id("a")) as vm:
        node.configure(node={"shared_pool": cpus[0]})
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        node.stop()
        (node.run / "state.json").write_bytes(b'{"half')
        see(node, "The state file is damaged", code=1)
        node.start()
        node.resyncs()
        assert not node.cli("doctor", "state-file").stdout.startswith("bad")
        assert list(node.run.glob("state.json.*")), "it is set aside"
        assert seen(vm.pid).all() == {cpus[0]}


@walks("No container starts since the hook was installed")
def test_a_hook_without_its_script(node: Node, tmp_path: Path) -> None:
    heading = "No container starts since the hook was installed"
    hooks = tmp_path / "usr/share/containers/oci/hooks.d"
    (tmp_path / "etc/crio").mkdir(parents=True)
    assert node.cli("install", "hook", "--hooks-dir", str(hooks)).returncode == 0
    script = hooks / "vmpin-hook"
    script.unlink()
    root = f"--root={tmp_path}"

    def as_the_nodes() -> None:
        for file in hooks.glob("*.json"):  # as they are when the node's root is mounted elsewhere
            file.write_text(file.read_text().replace(str(tmp_path), ""))

    registered = {file: file.read_text() for file in hooks.glob("*.json")}
    as_the_nodes()
    see(node, heading, "", 1, root)
    for file, text in registered.items():
        file.write_text(text)
    assert node.cli("install", "hook", "--hooks-dir", str(hooks)).returncode == 0
    as_the_nodes()
    assert script.exists()
    interpreter = tmp_path / script.read_text().partition("\n")[0].removeprefix("#!/").split()[0]
    interpreter.parent.mkdir(parents=True, exist_ok=True)
    interpreter.touch()
    assert not node.cli("doctor", "hooks", root).stdout.startswith("bad"), node.cli("doctor", "hooks", root).stdout
    for file, text in registered.items():
        file.write_text(text)
    assert node.cli("install", "hook", "--hooks-dir", str(hooks), "--remove").returncode == 0
    assert list(hooks.iterdir()) == []


@walks("Masks are still set after the watcher has ended")
def test_masks_that_stay(node: Node, cpus: Cpus) -> None:
    with Qemu(node.id("a"), vcpus=2) as vm:
        before = by_tid(vm.pid)
        node.configure(node={"shared_pool": cpus[0]})
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        node.container(vm.sandbox, "logs", cpus[0])
        node.wait_for_vcpus(vm.pid, {0: cpus[0], 1: cpus[1]})
        node.stop()
        see(node, "Masks are still set after the watcher has ended")
        assert "nothing was changed" in node.cli("unpin", "--all", "--dry-run").stdout
        assert node.cli("unpin", "--all").returncode == 0
        assert by_tid(vm.pid) == before
        assert not node.run.exists()
