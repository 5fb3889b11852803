"""vmpin leaves: every thread has its original mask, and nothing is left in the run directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from process_masks import by_tid, two_cpus
from real_node import Node
from real_qemu import Qemu
from waiting import wait

pytest_plugins = ["given"]
pytestmark = pytest.mark.root


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
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
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
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        assert node.stop() == 0
        node.cli("unpin", "--all")
        assert by_tid(vm.pid) == before


#: `vmpin unpin --all` that is killed after its second mask, or when all masks are given back and nothing is removed.
KILLED = """
import os, signal, sys
from pathlib import Path
from vmpin.config import loading as settings
from vmpin.reconcile import one_pass
end = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
done, real = [], os.sched_setaffinity
def counted(tid, cpus):
    real(tid, cpus)
    done.append(tid)
    if sys.argv[2] == "masks" and len(done) == 2:
        end()
os.sched_setaffinity = counted
unlink = Path.unlink
def ended(path, *args, **more):
    if path.name == "lock":
        end()
    unlink(path, *args, **more)
if sys.argv[2] == "files":
    Path.unlink, end_at_guests = ended, lambda *_: None
else:
    end_at_guests = end
one_pass.leave(settings.load(Path(sys.argv[1]), {}, {}), end_at_guests)
"""


@pytest.mark.parametrize("by", ["", "a watcher"])
@pytest.mark.parametrize("when", ["masks", "guests"])
def test_a_killed_restoration_does_the_rest_when_it_is_called_again(node: Node, when: str,
                                                                                       by: str) -> None:
    first, second = two_cpus()
    node.configure(node={"shared_pool": first}, metrics={"address": f"unix:{node.run}/metrics.sock"})
    with Qemu(node.id("a"), vcpus=2) as vm:
        before = by_tid(vm.pid)
        node.start()
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
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
        if by:  # which comes meanwhile: nothing was unpinned by hand, so it is to look after them
            node.start()
            node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
            assert node.stop() == 0
        assert node.data("unpin", "--all")["gone"]
        assert by_tid(vm.pid) == before
        assert not node.run.exists()


@pytest.mark.parametrize("by", ["", "a watcher"])
def test_a_kill_after_the_record_was_removed_leaves_the_masks_that_it_had(node: Node, by: str) -> None:
    """Without a record, masks that may be vmpin's become all CPUs."""
    first, second = two_cpus()
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a")) as vm:
        for tid in vm.tids():
            os.sched_setaffinity(tid, {int(second)})
        before = by_tid(vm.pid)
        node.start()
        node.wait_for_all(vm.pid, first)
        node.kill()
        ran = subprocess.run([sys.executable, "-c", KILLED, node.config, "files"], env=node.environment)
        assert ran.returncode == -signal.SIGKILL
        assert not {"state.json", "originals.json"} & set(os.listdir(node.run))
        assert by_tid(vm.pid) == before
        if by:
            node.start()
            node.wait_for_all(vm.pid, first)
            node.kill()
        assert node.data("unpin", "--all")["gone"]
        assert by_tid(vm.pid) == before
        assert not node.run.exists()


def test_a_signal_during_the_start_ends_it_as_configured(node: Node) -> None:
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


def test_what_was_unpinned_by_hand_stays_so_over_a_leaving_that_did_not_end(node: Node) -> None:
    first, _ = two_cpus()
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2) as vm, Qemu(node.id("b"), vcpus=2) as other:
        before = by_tid(vm.pid)
        node.start()
        for each in (vm, other):
            node.container(each.sandbox, "web", first)
            node.wait_for_all(each.pid, first)
        assert node.cli("unpin", vm.sandbox).returncode == 0
        node.kill()
        ran = subprocess.run([sys.executable, "-c", KILLED, node.config, "guests"], env=node.environment)
        assert ran.returncode == -signal.SIGKILL
        node.start()
        node.wait_for_all(other.pid, first)
        node.resyncs()
        assert by_tid(vm.pid) == before
        assert node.stop() == 0
        assert node.data("unpin", "--all")["gone"]


def test_it_leaves_the_directory_it_ran_in_though_another_is_configured(node: Node) -> None:
    first, _ = two_cpus()
    node.configure(node={"shared_pool": first}, watch={"on_exit": "unpin"})
    other = node.top / "other"
    with Qemu(node.id("a"), vcpus=2) as vm:
        before = by_tid(vm.pid)
        node.start()
        node.wait_for_all(vm.pid, first)
        assert node.watcher is not None
        node.configure(paths={"run": str(other)}, watch={"status_group": "root"})
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_log("take a restart")
        node.wait_for_log("configuration loaded again")
        assert node.stop() == 0
        assert by_tid(vm.pid) == before
        assert not node.run.exists()
        assert not other.exists()


#: A watcher whose last sample fails, as does the end of the books: there may be no thread for them (pids.max).
SAMPLELESS = """
import sys
from vmpin.cli.main import main
from vmpin.features.proof.run_time_books import RunTimeBooks
from vmpin.features.proof.sampler import Sampler
def failing(self):
    raise OSError(24, "Too many open files")
def without_threads(self):
    raise RuntimeError("can't start new thread")
Sampler.close, RunTimeBooks.close = failing, without_threads
sys.exit(main(sys.argv[1:]))
"""


def test_a_last_sample_that_fails_keeps_nothing_from_being_given_back(node: Node) -> None:
    first, _ = two_cpus()
    node.configure(node={"shared_pool": first}, watch={"on_exit": "unpin"})
    with Qemu(node.id("a"), vcpus=2) as vm:
        before = by_tid(vm.pid)
        node.command = [sys.executable, "-c", SAMPLELESS]
        node.start()
        node.wait_for_all(vm.pid, first)
        wait(lambda: node.cli("verify", "--since", "1h").returncode == 0, "no samples are taken")
        assert node.stop() == 0
        assert "the last sample failed: OSError(24" in node.last_log()
        assert "not ended in order feature=proof: RuntimeError: can't start new thread" in node.last_log()
        assert by_tid(vm.pid) == before
        assert not node.run.exists()
