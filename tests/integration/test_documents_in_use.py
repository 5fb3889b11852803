"""Documents of watchers in use are as their schemas say: with a checkpoint, NRI, drift, guests, and an allocator."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import given_containerd
import pytest
from cri import CriError
from cri_node import CriNode
from documents import checked, name_of
from guest_states import wait_for_states
from guest_vmm import GuestVmm
from process_masks import seen, union
from real_containerd import VM, Containerd
from real_node import Node
from waiting import wait

from vmpin.cli.main import main
from vmpin.cpuset import CpuSet

pytest_plugins = ["given"]
containerd, node = given_containerd.containerd, given_containerd.node
pytestmark = pytest.mark.root

#: Commands that print documents, of a watcher with any VM; PODARG stands for one.
COMMANDS = [
    "status", "status PODARG", "status --inspect", "status --direct", "map", "status PODARG --explain", "verify",
    "verify PODARG", "verify --since 1h", "verify --others --seconds 0", "isolation --all",
    "top --count 2 --delay 0.5", "doctor", "gather --dry-run", "plan", "config", "unpin PODARG --dry-run",
    "unpin --every --dry-run", "repin",
    "unpin PODARG", "status", "repin PODARG"]


def documents(node: Node, commands: Sequence[str], argument: str = "") -> dict[str, Any]:
    """What each command printed, checked; the last document of each. In this process: each would start another
    Python, and tests/integration/test_cli_node.py starts them."""
    found = {}
    for command in commands:
        words = [argument if word == "PODARG" else word for word in command.split()] + ["-o", "json"]
        raw = io.BytesIO()
        with contextlib.redirect_stdout(io.TextIOWrapper(raw, "utf-8")), \
                contextlib.redirect_stderr(io.StringIO()) as err:
            code = main(["--config", str(node.config), *words])
            sys.stdout.flush()
            text = raw.getvalue().decode()
        name = name_of(words)
        assert name is not None
        assert code in (0, 1, 3), (command, text, err.getvalue())
        assert text, (command, err.getvalue())
        for document in text.splitlines() if name == "top" else [text]:
            found[command] = json.loads(document)
            checked(name, found[command])
    return found


def test_beside_a_kubelet_and_nri_with_drift_and_a_broken_checkpoint(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": None}, proof={"sample_seconds": 0.2})
    node.checkpoint(first, {"uid-1": {"main": second}, "uid-2": {"main": ""}})
    node.connect()
    vm = node.containerd.pod("vm", VM, vcpus=2, uid="uid-1")
    vm.container("side", cpus=first)
    vm.container("main", cpus=second)
    runc = node.containerd.pod("runc", uid="uid-3")
    runc.container("main", cpus=union(cpus))  # a collision
    node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
    (vcpu, *_) = [tid for tid, name in seen(vm.pid).names.items() if name.startswith("CPU 1")]
    os.sched_setaffinity(vcpu, {int(first)})
    assert node.cli("repin").returncode == 0
    node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
    documents(node, COMMANDS, vm.id)
    node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
    for text in "{", "[]":
        before = node.status()["sources"]["kubelet"]["bad"]
        node.place_checkpoint(text)
        wait(lambda before=before: node.status()["sources"]["kubelet"]["bad"] > before, node.log)  # type: ignore[misc]
    documents(node, ["status", "status PODARG --explain", "verify", "doctor", "plan"], vm.id)
    (node.kubelet / "cpu_manager_state").unlink()
    wait(lambda: node.status()["sources"]["kubelet"]["stale"], node.log)
    found = documents(node, ["status", "status PODARG --explain", "verify", "verify --others --seconds 0", "doctor",
                             "map"], vm.id)
    assert found["status"]["sources"]["kubelet"]["bad"] >= 2
    assert found["status"]["sandboxes"][0]["drift"]


def test_of_a_watcher_that_gives_out_cpus(containerd: Containerd, cpus: tuple[str, str]) -> None:
    _, own = cpus
    rest = str(CpuSet(os.sched_getaffinity(0)) - CpuSet.parse(own))
    with CriNode(containerd) as node:
        node.configure(allocate={"mode": "on", "reserved": rest, "grow_delay_seconds": 0},
                       paths={"cri": str(containerd.top / "cri.sock")}, proof={"sample_seconds": 0.2})
        node.connect()
        whole: dict[str, Any] = {"cpu_shares": 1024, "cpu_quota": 100_000, "cpu_period": 100_000}
        wish = {"cpu-policy.vmpin.io/container.main": "exclusive"}
        pod = containerd.pod("own", annotations=wish)
        pod.create("main", **whole).start()
        with pytest.raises(CriError):
            containerd.pod("second", annotations=wish).create("main", **whole)
        vm = containerd.pod("vm", VM, vcpus=2)
        vm.container("main")
        wait(lambda: node.status()["sandboxes"], node.log)
        found = documents(node, ["alloc", "alloc set own/main policy=none --dry-run", *COMMANDS], vm.id)
        assert found["alloc"]["refused"]
        pod.remove()
        documents(node, ["alloc", "status", "map"])


@pytest.fixture
def guests(cpus: tuple[str, str]) -> Iterator[Node]:
    with Node() as made:
        made.configure(node={"shared_pool": cpus[0]}, proof={"sample_seconds": 0.2})
        yield made


def test_of_a_watcher_with_guests(guests: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    with GuestVmm(guests, "a", {10789: "agent"}) as vm, GuestVmm(guests, "b", {10789: "garbage"}) as other:
        guests.start()
        guests.container(vm.sandbox, "logs", first)
        guests.container(vm.sandbox, "web", second)
        guests.container(other.sandbox, "app", first)
        wait_for_states(guests, vm.sandbox, {"web": "applied", "logs": "applied"})
        found = documents(guests, COMMANDS, vm.sandbox)
        assert found["unpin PODARG"]["guests"]
        guests.kill()
        with contextlib.suppress(FileNotFoundError):
            (guests.run / "state.json").unlink()
            (guests.run / "originals.json").unlink()
        found = documents(guests, ["status", "verify", "doctor", "unpin --every --dry-run", "unpin --all"])
        assert found["unpin --all"]["counts"]["unknown"]


def test_lines_that_are_printed_again_and_again(guests: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    with GuestVmm(guests, "a", {10789: "agent"}) as vm:
        guests.start()
        guests.container(vm.sandbox, "web", second)
        guests.container(vm.sandbox, "logs", first)
        wait_for_states(guests, vm.sandbox, {"web": "applied", "logs": "applied"})
        for verb in "status", "verify", "plan", "doctor", "status PODARG --explain":
            words = [vm.sandbox if word == "PODARG" else word for word in verb.split()]
            for line in guests.lines(2, *words, "--watch", "0.2", "-o", "json"):
                checked(name_of([*words, "-o", "json"]) or "", json.loads(line))
