"""vmpin leaves: every thread has its mask from before, and nothing is left in the run directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from need import need_root, need_tool
from real_node import Node, by_tid, two_cpus, union, wait
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


#: `vmpin unpin --all` that is killed after its second mask, or when all masks are given back and nothing is removed.
KILLED = """
import os, signal, sys
from pathlib import Path
from vmpin import config, oneshot
end = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
done, real = [], os.sched_setaffinity
def counted(tid, cpus):
    real(tid, cpus)
    done.append(tid)
    if sys.argv[2] == "masks" and len(done) == 2:
        end()
os.sched_setaffinity = counted
oneshot.leave(config.load(Path(sys.argv[1]), {}, {}), end)
"""


@pytest.mark.parametrize("when", ["masks", "guests"])
def test_who_is_killed_while_it_gives_masks_back_does_the_rest_when_it_is_called_again(node: Node, when: str) -> None:
    first, second = two_cpus()
    node.configure(node={"shared_pool": first}, metrics={"address": f"unix:{node.run}/metrics.sock"})
    with Qemu(node.id("a"), vcpus=2) as vm:
        before = by_tid(vm.pid)
        node.start()
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, union((first, second)))
        wait(lambda: (node.run / "metrics.sock").exists(), "no metrics")
        node.kill()
        # What a kill in the middle of a write leaves, and a file that was no state.
        for name in (".state.json.new", ".proof.new", "state.json.bad"):
            (node.run / name).write_text("{")
        ran = subprocess.run([sys.executable, "-c", KILLED, node.config, when], env=node.environment)
        assert ran.returncode == -signal.SIGKILL
        assert (by_tid(vm.pid) == before) is (when == "guests")
        assert (node.run / "state.json").exists()
        assert (node.run / "metrics.sock").exists()
        assert node.data("unpin", "--all")["gone"]
        assert by_tid(vm.pid) == before
        assert not node.run.exists()


def test_who_is_told_to_end_while_it_begins_leaves_as_it_was_told_to(node: Node) -> None:
    first, second = two_cpus()
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2) as vm:
        before = by_tid(vm.pid)
        node.start()
        node.container(vm.sandbox, "web", second)
        node.wait_for_all(vm.pid, second)
        node.kill()
        node.configure(watch={"on_exit": "unpin"})
        node.run.joinpath("lock").unlink()
        node.start(wait_until_ready=False)
        wait(lambda: (node.run / "lock").exists() or node.ended(), "the watcher does not start")
        assert node.stop() == 0, node.last_log()
        assert by_tid(vm.pid) == before
        assert not node.run.exists()
