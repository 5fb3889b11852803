"""Commands beside the watcher and without it, and masks given back."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from process_masks import by_tid
from real_node import COMMAND, Node
from real_qemu import Qemu
from runtime_bundle import cri
from waiting import PATIENCE

pytest_plugins = ["given"]
pytestmark = pytest.mark.root


def test_unpin_gives_back_the_very_masks_from_before(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2, maxcpus=4, iothreads=["io1"]) as vm:
        (iothread,) = vm.iothreads()
        os.sched_setaffinity(iothread, {int(second)})
        before = by_tid(vm.pid)
        assert len(set(before.values())) == 2
        node.start()
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        new = vm.add_vcpu()
        node.wait_for_vcpus(vm.pid, {0: first, 1: second, new: first}, first)
        assert node.stop() == 0
        node.start()
        done = node.data("unpin", vm.sandbox)
        assert {entry["outcome"] for entry in done["operations"]} == {"done"}
        after = by_tid(vm.pid)
        assert {tid: after[tid] for tid in before} == before
        assert {after[tid] for tid in after.keys() - before.keys()} == {before[vm.pid]}
        node.resyncs()
        assert by_tid(vm.pid) == after, "it was taken back"
        status = node.sandbox(vm.sandbox)
        assert (status["verdict"], status["mask"]) == ("off", None)
        assert status["reasons"] == ["unpinned by hand: `vmpin repin` manages it again"]
        assert node.cli("verify").returncode == 0
        node.kill()
        node.start()
        node.resyncs()
        assert by_tid(vm.pid) == after, "a restart forgot that it was unpinned"
        assert node.cli("repin", vm.sandbox).returncode == 0
        # Taken back as if for the first time: of equals, the highest vCPU gets the exclusive CPU.
        node.wait_for_vcpus(vm.pid, {0: first, 1: first, new: second}, first)
        assert node.stop() == 0
        assert node.cli("unpin", "--every").returncode == 0
        assert by_tid(vm.pid) == after, "without a watcher"
        assert not (node.run / "vmpin.sock").exists()


def test_reconcile_without_a_watcher_changes_nothing_twice(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2) as vm:
        for name, where in (("web", second), ("logs", first)):
            state = node.state(vm.sandbox, name, node.bundle(name, where), vm.pid)
            assert node.call_hook("createRuntime", state).wait(PATIENCE) == 0
        planned = [operation["what"] for operation in node.data("plan")["operations"]]
        assert [line for line in planned if "set vcpu 1 " in line and f"to CPUs {second}, was " in line] != []
        done = node.data("repin")
        assert done["vms"] == 1
        assert {entry["outcome"] for entry in done["operations"]} == {"done"}
        assert sorted(entry["what"] for entry in done["operations"]) == sorted(planned)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        assert node.data("repin")["operations"] == []
        assert node.cli("repin").stdout == "1 VM, nothing to change\n"
        assert node.cli("plan").stdout == "nothing to do: every thread is in place\n"
        assert node.cli("verify").returncode == 0
        assert os.listdir(node.run / "spool") == []


def test_commands_that_act_stay_away_from_a_watcher_that_does_not_answer(node: Node) -> None:
    node.start()
    assert node.watcher is not None
    node.watcher.send_signal(signal.SIGSTOP)
    try:
        done = node.cli("repin")
        assert done.returncode == 1
        assert f"the watcher (pid {node.watcher.pid}) is stopped" in done.stderr
        # Without its socket either: once the watcher goes on, its next resync brings that back.
        (node.run / "vmpin.sock").unlink()
        done = node.cli("repin")
    finally:
        node.watcher.send_signal(signal.SIGCONT)
    assert done.returncode == 1
    assert "another vmpin" in done.stderr


def test_the_watcher_reports_by_sd_notify(node: Node, tmp_path: Path) -> None:
    """READY when it watches, STOPPING when it ends, as Type=notify wants."""
    path = node.top / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(PATIENCE)

        def arrives(word: bytes) -> bool:
            """Among others, such as what systemctl shows as the status: as many as there are."""
            deadline = time.monotonic() + PATIENCE
            while word not in listener.recv(1000):
                assert time.monotonic() < deadline, word
            return True

        watcher = subprocess.Popen([*COMMAND, "--config", str(node.config), "watch"], stderr=subprocess.DEVNULL,
                                   env={**node.environment, "NOTIFY_SOCKET": str(path)})
        try:
            assert arrives(b"READY=1")
            watcher.send_signal(signal.SIGHUP)
            assert arrives(b"RELOADING=1")
            assert arrives(b"READY=1")
            watcher.terminate()
            assert arrives(b"STOPPING=1")
            assert watcher.wait(PATIENCE) == 0
        finally:
            watcher.kill()
            watcher.wait()


def test_containers_of_a_pod_are_known_by_crios_annotations_too(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a")) as vm:
        node.start()
        bundle = node.bundle("web/userdata", cpus[1])
        state = node.state(vm.sandbox, "web", bundle, vm.pid)
        state["annotations"] = {"io.kubernetes.cri-o.ContainerType": "container",
                                "io.kubernetes.cri-o.SandboxID": vm.sandbox}
        assert node.hook("createRuntime", state) == b"ok\n"
        node.wait_for_all(vm.pid, cpus[1])
        shutil.rmtree(bundle)
        node.wait_for_all(vm.pid, cpus[0])
        assert cri("a", "b")["io.kubernetes.cri.sandbox-id"] == "a"


@pytest.mark.parametrize("lost", ["state.json", "both files"])
@pytest.mark.parametrize("by", ["a watcher", "--every", "--all"])
def test_after_a_kill_and_a_lost_state_masks_that_are_not_known_are_called_so(
        node: Node, cpus: tuple[str, str], lost: str, by: str) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2) as vm:
        everywhere = by_tid(vm.pid)
        os.sched_setaffinity(vm.pid, {int(second)})  # by another program, before vmpin: the main thread's alone
        before = by_tid(vm.pid)
        node.start()
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        node.kill()
        state = node.run / "state.json"
        state.write_bytes(state.read_bytes()[:100])
        if lost == "both files":
            (node.run / "originals.json").unlink()
        if by == "a watcher":
            node.start()
            node.resyncs()
        done = node.data("unpin", "--all" if by == "--all" else "--every")
        threads = len(done["operations"])
        if lost == "both files":
            assert by_tid(vm.pid) == {**everywhere, vm.pid: everywhere[max(everywhere)]}
            assert {entry["original"] for entry in done["operations"]} == {"unknown"}
            assert done["counts"]["unknown"] + done["counts"]["already_free"] == threads > 0
        else:
            assert by_tid(vm.pid) == before
            assert {entry["original"] for entry in done["operations"]} == {"known"}
            assert sum(done["counts"][each] for each in (
                "restored", "already_original", "already_trimmed")) == threads > 0
