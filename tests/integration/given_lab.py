"""A pytest plugin (`pytest_plugins`): a watcher and one VM, the same for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_node import Lab
from need import need_root, need_tool
from process_masks import two_cpus
from real_node import Node
from real_qemu import Qemu


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    need_root()
    need_tool("qemu-system-x86_64")
    first, second = two_cpus()
    with Node() as node, Qemu(node.id("a"), vcpus=2) as vm:
        made = Lab(node, vm, first, second)
        node.configure(node={"shared_pool": first})
        node.start()
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        made.wait_for_masks()
        yield made
