"""How the watcher connects to a runtime's NRI, or does without."""

from __future__ import annotations

import os
import time
from pathlib import Path

import given_containerd
import pytest
from cri_node import CriNode
from real_containerd import VM, Containerd, suites
from real_node import COMMAND
from waiting import wait

pytest_plugins = ["given"]
containerd, node = given_containerd.containerd, given_containerd.node
pytestmark = pytest.mark.root


def test_a_runtime_without_nri_is_done_without(cpus: tuple[str, str]) -> None:
    with Containerd(nri=False) as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": cpus[0]})
        node.start()
        vm = containerd.pod("vm", VM)
        vm.container("main", cpus=cpus[1])
        assert node.cli("repin").returncode == 0
        node.wait_for_all(vm.pid, cpus[0])
        assert "NRI" not in node.log()  # by default it is taken where it is


def test_nri_that_is_asked_for_and_not_there_is_reported_once(cpus: tuple[str, str]) -> None:
    with Containerd(nri=False) as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": cpus[0]}, watch={"nri": "on"})
        node.start()
        node.wait_for_log("NRI")
        time.sleep(2)
        assert sum("NRI" in line for line in node.log().splitlines()) == 1, node.log()


def test_nri_that_is_switched_off_is_not_used(node: CriNode, cpus: tuple[str, str]) -> None:
    node.configure(watch={"nri": "off"})
    node.start()
    vm = node.containerd.pod("vm", VM)
    vm.container("main", cpus=cpus[1])
    assert node.cli("repin").returncode == 0
    node.wait_for_all(vm.pid, cpus[0])
    assert node.status()["sources"]["nri"] is None


def test_a_refusal_of_the_plugin_is_logged_once(cpus: tuple[str, str]) -> None:
    """disable_connections: the socket is not even there in some versions, in others nothing answers."""
    with Containerd(refuse_plugins=True) as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": cpus[0]}, watch={"nri": "on"})
        node.start()
        node.wait_for_log("disable")
        time.sleep(2)
        assert sum("NRI" in line for line in node.log().splitlines()) == 1, node.log()
        vm = containerd.pod("vm", VM)
        assert node.cli("repin").returncode == 0
        node.wait_for_all(vm.pid, cpus[0])


def test_a_runtime_that_starts_after_the_watcher_is_found(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    vm = node.containerd.pod("vm", VM)
    main = vm.container("main", cpus=second)
    node.containerd.kill()
    node.containerd.nri_socket.unlink()  # as after a boot
    node.configure(watch={"resync_seconds": 0.5})  # as often it looks
    node.start()
    wait(lambda: node.nri()["state"].startswith("waits"), lambda: node.nri()["state"])
    node.containerd.start()
    node.wait_for_all(vm.pid, second)
    main.update(cpus=first)
    node.wait_for_all(vm.pid, first)


@pytest.mark.parametrize("suite", suites())
def test_the_runtime_may_start_the_watcher_itself(suite: str, cpus: tuple[str, str]) -> None:
    """Pre-installed as an executable: it gets a connected socket and almost no environment, and ends with it. NRI 0.6
    (trixie) does not send such a plugin the list of containers (containerd/nri #43): the watcher asks for it."""
    first, second = cpus
    with Containerd(suite) as containerd, CriNode(containerd) as node:
        node.configure(node={"shared_pool": first})
        vm = containerd.pod("vm", VM)
        main = vm.container("main", cpus=second)
        command = " ".join([*COMMAND, "--config", str(node.config), "watch"])
        plugin = containerd.plugins / "90-vmpin"
        plugin.write_text(f"#!/bin/sh\nexec {command} >>{node.top}/log000 2>&1\n")
        plugin.chmod(0o755)
        before: set[int] = set()
        for had, given in (second, first), (first, second):
            containerd.restart()
            (pid,) = wait(lambda: _plugins(containerd) - before, "the plugin does not run")
            before.add(pid)
            node.wait_for_all(vm.pid, had)
            main.update(cpus=given)
            node.wait_for_all(vm.pid, given)
            containerd.kill()
            wait(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "the plugin outlives its runtime")  # type: ignore[misc]


def _plugins(containerd: Containerd) -> set[int]:
    """The pids of watchers that containerd started."""
    found = set()
    for path in Path("/proc").glob("[1-9]*/environ"):
        try:
            status = (path.parent / "status").read_text()
            environment = path.read_bytes()
            same = os.readlink(path.parent / "ns/pid") == os.readlink(containerd.enclosure.proc / "1/ns/pid")
        except OSError:
            continue
        if b"NRI_PLUGIN_SOCKET=" in environment and same and "\nState:\tZ" not in status:
            found.add(int(path.parent.name))
    return found
