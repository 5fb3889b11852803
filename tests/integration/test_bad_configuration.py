"""A fault in the configuration keeps no one from the way out; only what would set masks by it is refused."""

from __future__ import annotations

import json
import subprocess

import pytest
from process_masks import by_tid
from real_node import Node
from real_qemu import Qemu

pytest_plugins = ["given"]
pytestmark = pytest.mark.root

FAULTS = ["an unknown key", "a wrong type", "broken YAML", "garbage", "a directory"]


def spoil(node: Node, how: str) -> None:
    text = node.config.read_text()
    match how:
        case "an unknown key":
            node.config.write_text(f"{text}polcy: {{vcpus: auto}}\n")
        case "a wrong type":
            node.config.write_text(f"{text}proof: {{sample_seconds: often}}\n")
        case "broken YAML":
            node.config.write_text(f"{text}policy: [\n")
        case "garbage":
            node.config.write_bytes(bytes(range(256)))
        case "a directory":
            node.config.unlink()
            node.config.mkdir()


def run(node: Node, *args: str) -> subprocess.CompletedProcess[str]:
    """The run directory and the sandboxes are named, as of a file that cannot be read nothing is known: other tests'
    VMs are left alone."""
    return node.cli("--set", f"paths.run={node.run}", "--set", f"watch.only={node.id('')}*", *args)


def faulty(done: subprocess.CompletedProcess[str], node: Node) -> str:
    """The output of a command that went on after it printed the fault first."""
    assert done.stderr.startswith(f"vmpin: {node.config}"), done.stderr
    assert "vmpin: going on without that: " in done.stderr
    return done.stdout


@pytest.mark.parametrize("how", FAULTS)
def test_what_sets_no_masks_works_beside_a_watcher_and_without(node: Node, cpus: tuple[str, str], how: str) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2) as vm:
        before = by_tid(vm.pid)
        node.start()
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        spoil(node, how)

        status = run(node, "status", "-o", "json")
        assert [entry["id"] for entry in json.loads(faulty(status, node))["sandboxes"]] == [vm.sandbox]
        assert status.returncode == 0
        assert "the running watcher's configuration is used" in status.stderr
        verify = run(node, "verify")
        faulty(verify, node)
        assert verify.returncode == 0
        doctor = run(node, "doctor", "config", "-o", "json")
        (finding,) = json.loads(faulty(doctor, node))["findings"]
        assert (doctor.returncode, finding["level"]) == (1, "bad")
        for refused in run(node, "repin"), run(node, "watch"):
            assert (refused.returncode, refused.stdout) == (2, "")
            assert refused.stderr.startswith(f"vmpin: {node.config}")
            assert "going on" not in refused.stderr
        assert by_tid(vm.pid) != before

        node.kill()
        left = run(node, "unpin", "--all", "-o", "json")
        assert json.loads(faulty(left, node))["gone"]
        assert left.returncode == 0
        assert by_tid(vm.pid) == before
