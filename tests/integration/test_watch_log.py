"""Each line of a real watcher's log about a sandbox ends in its pod, once the name is known; `vmpin logs` shows it."""

from __future__ import annotations

import os
import signal

import pytest
from named_lines import nameless
from process_masks import by_tid, seen
from real_node import Node
from real_qemu import Qemu
from waiting import wait

pytest_plugins = ["given"]
pytestmark = pytest.mark.root

#: What the story below makes: lines from every part that logs about sandboxes.
KINDS = ("received source=hook", "placed sandbox=", "pinned sandbox=", "started sandbox=", "repaired sandbox=",
         "contention sandbox=", "mask not set sandbox=", "second VMM ignored", "excluded sandbox=", ": set ",
         "hook message not spooled")


def test_every_line_about_a_sandbox_has_its_pod_once_the_name_is_known(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first}, log={"level": "debug"}, watch={"resync_seconds": 0.1},
                   drift={"contention_repairs": 2})
    node.start()
    with Qemu(node.id("a"), vcpus=2, maxcpus=4) as vm, Qemu(node.id("b"), vcpus=1) as other:
        node.wait_for_all(other.pid, first)
        for each in vm, other:
            node.container(each.sandbox, f"web-{each.sandbox[-1]}", first)
            node.wait_for_log(f"sandboxes={each.sandbox} pod=tests/pod op=")
        before = len(node.log())
        node.container(vm.sandbox, "logs", second)
        vm.add_vcpu()
        wait(lambda: sorted(seen(vm.pid).vcpus.values()) == sorted((first, first, second)), lambda: seen(vm.pid))

        def contended() -> bool:
            os.sched_setaffinity(vm.pid, {int(second)})
            return "contention sandbox=" in node.log()

        wait(contended, "never logged")
        (node.run / "spool").rename(node.run / "elsewhere")
        node.container(other.sandbox, "more", first)
        node.wait_for_log("hook message not spooled")
        with Qemu(vm.sandbox, vcpus=1) as double:
            node.wait_for_log(f"second VMM ignored sandbox={vm.sandbox} pid={double.pid}")
        (node.cpuset_cgroup(first) / "cgroup.procs").write_text(str(vm.pid))
        node.wait_for_log("mask not set sandbox=")
        assert node.cli("unpin", other.sandbox).returncode == 0
        assert node.cli("repin").returncode == 1  # the cgroup refuses a mask
        all_of_them = node.settings["watch"]["only"]
        node.configure(watch={"only": f"{vm.sandbox}*"})
        assert node.watcher is not None
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_log(f"excluded sandbox={other.sandbox}")
        node.configure(watch={"only": all_of_them})
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_all(other.pid, first)
        for name in ("web-a", "logs"):
            node.gone(vm.sandbox, name)
        node.stop()
        node.start()
        assert f"placed sandbox={vm.sandbox}" in node.last_log()
        pids = {f"pid={each.pid}" for each in (vm, other)}
    wait(lambda: node.status()["sandboxes"] == [], "the VMs are still there")
    log = node.log()
    containers = {node.id(name) for name in ("web-a", "web-b", "logs", "more")}
    assert [kind for kind in KINDS if kind not in log] == []
    assert nameless(log[before:], frozenset({vm.sandbox, other.sandbox} | containers | pids)) == []


def test_the_log_of_a_watcher_that_writes_to_a_file_is_read_from_there(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]}, log={"level": "debug"})
    with Qemu(node.id("a"), vcpus=1) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[0])
        node.wait_for_log("pod=tests/pod")
        (tid, *_) = by_tid(vm.pid)
        os.sched_setaffinity(tid, {int(cpus[1])})
        node.wait_for_log("repaired sandbox=")
        lines = node.cli("logs", "tests/pod").stdout.splitlines()
        (repair,) = [line for line in lines if "repaired sandbox=" in line]
        operation = repair[repair.index("pod=tests/pod op="):]
        assert any(f"set emulator (thread {tid}" in line and line.endswith(operation) for line in lines)
        assert node.cli("logs", "tests/none").returncode == 1
    assert node.watcher is not None
    node.stop()
