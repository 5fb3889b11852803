"""`vmpin map` of this machine, with a real VM."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import ESCAPE
from need import need_root, need_tool
from process_masks import two_cpus
from real_node import Node
from real_qemu import Qemu
from runtime_bundle import cri


@pytest.mark.root
def test_map_draws_the_node_and_the_vm_on_it(tmp_path: Path) -> None:
    need_root()
    need_tool("qemu-system-x86_64")
    first, second = two_cpus()
    with Node() as node, Qemu(node.id("a"), vcpus=2) as vm:
        node.configure(node={"shared_pool": first})
        node.start()
        for name, cpus in (("web", second), ("logs", first)):
            state = node.state(vm.sandbox, name, node.bundle(name, cpus), vm.pid)
            state["annotations"] = cri(vm.sandbox, f"{name}{ESCAPE}", pod=f"pod{ESCAPE}")
            assert node.hook("createRuntime", state) == b"ok\n"
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        text = node.cli("map").stdout
        assert "NUMA node" in text
        assert " a:v1" in text
        assert "\x1b" not in text
