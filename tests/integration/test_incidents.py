"""Incidents of docs/troubleshooting.md: the commands that the page names are as many as it states, and their output
alone says what is wrong, on what, and what to do. (Those that the remedy ends, too, are in test_troubleshooting.py.)
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest
import test_troubleshooting
from guest_states import wait_for_states
from guest_vmm import GuestVmm
from need import need_tool, need_unshare
from real_node import Node, talk
from real_qemu import Qemu
from symptoms import SECTIONS, WALKED, see, walks
from test_watch_kubelet import UID, checkpoint, report
from waiting import wait

pytest_plugins = ["given"]
pytestmark = pytest.mark.root

Cpus = tuple[str, str]
#: By heading, where the output that the page shows has what is wrong, on what, and what to do.
ANSWERS = {
    "The watcher is stopped": ("is stopped", "watcher .pid", "`kill -CONT"),
    "The watcher refuses its configuration": ("unknown key", "'node.sharedpool'", "did you mean"),
    "A VM floats, though its container has CPUs of its own":
        ("floating", "web .* shared", "name the shared CPUs: node.shared_pool in"),
    "Threads have fewer CPUs than decided":
        ("keeps 1 VMM off CPUs", "mask .*, but /sys/fs/cgroup/", "find the program"),
    "Threads are put back again and again":
        ("An unknown program", "masks of its threads", "This prints each program .*: bpftrace -e"),
    "Two pods have the same exclusive CPU": ("open to others", "exclusive to .* and ", "correct the wrong one"),
    "The state file is damaged": ("cannot be used|^bad", "state-file", "sets it aside at its next start"),
    "No container starts since the hook was installed":
        ("no container starts", "vmpin-hook: is not there", "`vmpin install hook --hooks-dir DIR`"),
    "The disk is full": ("No space left on device", "/state.json", "free space there"),
    "The saved state is lost": ("LOST STATE", "state.json", "is rebuilt from what runs"),
    "Exclusive CPUs belong to a pod without containers":
        ("no container is known", "CPU … to pod", "check that the kubelet runs"),
    "A guest's agent does not answer": ("does not answer", "no process listens", "put vmpin's agent into the image"),
    "The kubelet's checkpoint cannot be read":
        ("cannot be used", "cpu_manager_state", "remove the file and restart the kubelet"),
    "The watcher may not set masks": ("not permitted", "cannot set thread", "give the service the capability"),
    "No source reports new containers": ("NRI is not connected", "hooks", "`vmpin install hook --hooks-dir DIR`")}


def test_each_section_is_walked() -> None:
    assert {test.__module__ for test in WALKED.values()} == {__name__, test_troubleshooting.__name__}
    assert WALKED.keys() == SECTIONS.keys()


def test_each_incident_states_the_number_of_its_commands() -> None:
    stated = {heading: section.stated for heading, section in SECTIONS.items() if section.stated is not None}
    assert stated == {heading: len(SECTIONS[heading].commands) for heading in stated}
    assert stated.keys() == ANSWERS.keys()
    assert len(stated) >= 10


@pytest.mark.parametrize("heading", ANSWERS)
def test_the_output_of_an_incident_has_what_is_wrong_on_what_and_what_to_do(heading: str) -> None:
    lines = [line for _, lines in SECTIONS[heading].commands for line in lines]
    assert [part for part in ANSWERS[heading] if not any(re.search(part, line) for line in lines)] == []


@walks("What happened to a pod")
def test_the_log_of_a_pod(node: Node, cpus: Cpus) -> None:
    with Qemu(node.id("a")) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        node.wait_for_all(vm.pid, cpus[1])
        node.wait_for_log("pinned sandbox=")
        see(node, "What happened to a pod", "tests/pod")


@walks("The disk is full")
def test_a_full_disk(node: Node, cpus: Cpus) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    node.run.mkdir()
    node.wrap = [*need_unshare("-m", "--propagation", "private"), "sh", "-c",
                 f'mount -t tmpfs -o size=64k,mode=755 vmpin-test {node.run} && exec "$@"', "sh"]
    with Qemu(node.id("a")) as vm:
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        assert node.watcher is not None
        inside = Path(f"/proc/{node.watcher.pid}/root{node.run}")
        with contextlib.suppress(OSError), (inside / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        for name in ("web", "logs", "more"):
            raw = node.message("createRuntime", node.state(vm.sandbox, name, node.bundle(name, cpus[1]), vm.pid))
            assert talk(inside / "hook.sock", raw) == b"ok\n"
        node.wait_for_log("the state cannot be saved: No space left on device")
        see(node, "The disk is full", wrap=(need_tool("nsenter"), "-t", str(node.watcher.pid), "-m", "--"))
        (inside / "filler").unlink()
        wait(lambda: "NOT SAVED" not in node.cli(
            "status", wrap=("nsenter", "-t", str(node.watcher and node.watcher.pid), "-m", "--")).stdout, node.log)


@walks("The saved state is lost")
def test_a_lost_state(node: Node, cpus: Cpus) -> None:
    with Qemu(node.id("a")) as vm:
        node.configure(node={"shared_pool": cpus[0]})
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        node.stop()
        for name in ("state.json", "originals.json"):
            (node.run / name).write_bytes(b'{"half')
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        see(node, "The saved state is lost")
        vm.end()
        node.stop()
        node.start()
        assert "LOST STATE" not in node.cli("status").stdout


@walks("Exclusive CPUs belong to a pod without containers")
def test_cpus_without_an_owner(node: Node, cpus: Cpus) -> None:
    (node.top / "kubelet").mkdir()
    first, second = cpus
    static = {"policyName": "static", "defaultCpuSet": first}
    checkpoint(node, json.dumps({**static, "entries": {"9-9": {"db": second}}}))
    with Qemu(node.id("a")) as vm:
        node.start()
        report(node, vm, "logs", first)
        wait(lambda: node.status()["node"]["unknown_owners"], "all owners are known")
        see(node, "Exclusive CPUs belong to a pod without containers")
        assert "UNKNOWN OWNER: the kubelet's checkpoint gives CPU" in node.cli("status").stdout
        checkpoint(node, json.dumps({**static, "entries": {}}))
        wait(lambda: node.cli("doctor", "collisions").stdout.startswith("ok"), "the owner stays unknown")


@walks("A guest's agent does not answer")
def test_an_agent_that_went(node: Node, cpus: Cpus) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    with GuestVmm(node, "a", {10789: "agent"}) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        wait_for_states(node, vm.sandbox, {"web": "applied"})
        vm.ports({})
        wait(lambda: not node.cli("doctor", "guests").stdout.startswith("ok"), "the agent still answers")
        wait_for_states(node, vm.sandbox, {"web": "no agent"})
        see(node, "A guest's agent does not answer")
        vm.ports({10789: "agent"})
        wait_for_states(node, vm.sandbox, {"web": "applied"})


@walks("The kubelet's checkpoint cannot be read")
def test_an_unreadable_checkpoint(node: Node, cpus: Cpus) -> None:
    (node.top / "kubelet").mkdir()
    first, second = cpus
    good = json.dumps({"policyName": "static", "defaultCpuSet": first, "entries": {UID: {"web": second}}})
    checkpoint(node, good)
    with Qemu(node.id("a")) as vm:
        node.start()
        report(node, vm, "web", second)
        node.wait_for_all(vm.pid, second)
        checkpoint(node, good[:-9])
        node.resyncs()
        see(node, "The kubelet's checkpoint cannot be read", code=1)
        assert node.sandbox(vm.sandbox)["verdict"] == "pinned"
        checkpoint(node, good)
        assert not node.cli("doctor", "kubelet").stdout.startswith("bad")


@walks("The watcher may not set masks")
def test_a_watcher_without_the_right(node: Node, cpus: Cpus) -> None:
    node.wrap = [need_tool("setpriv"), "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"]
    with Qemu(node.id("a")) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        wait(lambda: node.sandbox(vm.sandbox)["verdict"] == "degraded", "not degraded")
        see(node, "The watcher may not set masks", vm.sandbox, (0, 1))
        node.stop()
        node.wrap = []
        node.start()
        node.wait_for_all(vm.pid, cpus[1])
        assert node.cli("doctor", "privileges").stdout.startswith("ok")


@walks("No source reports new containers")
def test_a_node_without_nri_and_hook(node: Node, tmp_path: Path) -> None:
    (tmp_path / "etc/crio").mkdir(parents=True)
    node.start()
    see(node, "No source reports new containers", "", 0, f"--root={tmp_path}")
