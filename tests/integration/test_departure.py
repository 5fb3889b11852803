"""vmpin leaves: every thread has its mask from before, and nothing is left in the run directory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from need import need_root, need_tool
from real_node import Node, by_tid, two_cpus, union
from real_qemu import Qemu

pytestmark = pytest.mark.root


@pytest.fixture
def node() -> Iterator[Node]:
    need_root()
    need_tool("qemu-system-x86_64")
    with Node() as made:
        yield made


@pytest.mark.parametrize("by", ["on_exit", "unpin --all"])
def test_every_mask_is_given_back_and_nothing_is_left(node: Node, by: str) -> None:
    first, second = two_cpus()
    node.configure(node={"shared_pool": first}, watch={"on_exit": "unpin" if by == "on_exit" else "keep"})
    with Qemu(node.id("a"), vcpus=2, iothreads=["io1"]) as vm:
        (iothread,) = vm.iothreads()
        os.sched_setaffinity(iothread, {int(second)})
        before = by_tid(vm.pid)
        node.start()
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, union((first, second)))
        if by == "on_exit":
            node.kill()  # one that is killed leaves them, and the next one gives them back
            node.start()
        else:
            refused = node.cli("unpin", "--all")
            assert refused.returncode == 1
            assert "another vmpin" in refused.stderr
        assert node.stop() == 0
        if by != "on_exit":
            assert by_tid(vm.pid) != before
            done = node.data("unpin", "--all")
            assert done["gone"]
            assert {entry["outcome"] for entry in done["operations"]} == {"done"}
        assert by_tid(vm.pid) == before
        assert not node.run.exists()
        # A watcher that comes after that begins anew.
        node.start()
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, union((first, second)))
        assert node.stop() == 0
        node.cli("unpin", "--all")
        assert by_tid(vm.pid) == before
