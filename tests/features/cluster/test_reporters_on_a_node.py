"""What a running watcher takes from reporters, and what one costs that an attacker has."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

import pytest
from documents import checked
from real_node import Node, talk
from real_qemu import Qemu
from test_watch_sockets import ask_as

from vmpin.features.cluster.kube.watched_annotations import MAX_REQUEST
from vmpin.features.common.kubelet_config import ZONE_KEYS

pytest_plugins = ["given"]
pytestmark = pytest.mark.root


def test_a_member_of_the_group_follows_the_node_and_changes_nothing(node: Node) -> None:
    """A group without a name, as a container's. A watcher that ends does not wait for who follows it."""
    node.configure(watch={"status_group": 65532})
    node.start()
    path = node.run / "status" / "vmpin.sock"
    refused = json.loads(ask_as(65532, 65532, path, b'{"op": "pods", "version": 1, "pods": {}}\n'))
    assert "does not follow annotations" in refused["error"]
    with socket.socket(socket.AF_UNIX) as follower:
        follower.settimeout(120)
        follower.connect(os.fspath(path))
        follower.sendall(b'{"op": "follow", "kubelet": true}\n')
        lines = follower.makefile()
        first = json.loads(lines.readline())
        checked("follow", first)
        assert (first["follow"], first["node"]["ready"], first["sandboxes"]) == ("all", True, [])
        assert set(first["node"]["kubelet"]) <= set(ZONE_KEYS)
        node.stop()
        for line in lines:
            message = json.loads(line)
            checked("follow", message)
            assert (message["follow"], message["sandboxes"], message["gone"]) == ("change", [], [])


def test_pods_data_without_end_costs_a_watcher_little_and_no_mask(node: Node, cpus: tuple[str, str]) -> None:
    """As from a reporter that an attacker has: the largest requests, and connections that end none."""
    node.configure(node={"shared_pool": cpus[0]}, watch={"status_group": 65532})
    pods = {str(number): {"k": "x" * 235} for number in range(256)}
    largest = json.dumps({"op": "pods", "version": 1, "pods": pods}).encode() + b"\n"
    assert MAX_REQUEST * 0.8 < len(largest) <= MAX_REQUEST
    with Qemu(node.id("a")) as vm, contextlib.ExitStack() as stack:
        node.start()
        assert node.watcher is not None
        path = node.run / "status" / "vmpin.sock"
        assert "error" in json.loads(talk(path, largest))
        before = usage(node.watcher.pid)
        for _ in range(30):
            peer = stack.enter_context(socket.socket(socket.AF_UNIX))
            peer.connect(str(path))
            with contextlib.suppress(OSError):
                peer.sendall(largest[:-1])
        answers = [json.loads(talk(path, raw)) for raw in (largest, b"[" * (MAX_REQUEST - 1) + b"\n") * 50]
        assert all("error" in answer for answer in answers)
        node.container(vm.sandbox, "web", cpus[1])
        node.wait_for_all(vm.pid, cpus[1])
        assert usage(node.watcher.pid) - before < 32 << 20
    assert "Traceback" not in node.log()


def usage(pid: int) -> int:
    """Bytes that a process has resident, without what it shares with others."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
