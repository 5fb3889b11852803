"""Drift with its cause, contention and the proof over time, end to end: real QEMUs, and processes that never sleep,
moved by another hand under a real watcher.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from machine_wide import alone_with
from need import lacking
from process_masks import by_tid, seen, two_cpus, union
from real_node import Node
from real_qemu import Qemu
from waiting import wait

from vmpin.features.common.cpu_times import Schedstat

pytest_plugins = ["given"]
pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def _no_other_numad() -> Iterator[None]:
    """A numad that another test runs would be the cause of drift here, too."""
    with alone_with("numad"):
        yield


class Busy:
    """A process with a VMM's command line and one thread that never sleeps. `ran` is its CPU time, in seconds."""

    def __init__(self, sandbox: str) -> None:
        self.sandbox = sandbox
        self._process = subprocess.Popen(
            ["qemu-system-x86_64", "-c", "while :; do :; done", "-name", f"sandbox-{sandbox}"],
            executable=shutil.which("sh"), stdin=subprocess.DEVNULL)
        self.pid = self._process.pid

    def __enter__(self) -> Busy:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def ran(self) -> float:
        return time.clock_gettime(~self.pid << 3 | 2)

    def run_for(self, seconds: float) -> None:
        """Whatever else the machine does."""
        end = self.ran + seconds
        wait(lambda: self.ran >= end, "it does not run")


def drift(node: Node, sandbox: str) -> dict[str, Any]:
    found = node.sandbox(sandbox)
    return {} if found is None or found["drift"] is None else dict(found["drift"])


def proof(node: Node, since: str = "1h", code: int = 0) -> Any:
    return node.data("verify", "--since", since, code=code)["proof"]


def roles(found: Any, sandbox: str) -> Any:
    return next((each["roles"] for each in found["sandboxes"] if each["id"] == sandbox), {})


# Why


def test_what_another_hand_moved_is_put_back_counted_and_shown(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a"), vcpus=2) as vm, Qemu(node.id("b"), vcpus=1) as other:
        node.start()
        for each in (vm, other):
            node.wait_for_all(each.pid, cpus[0])
        assert node.sandbox(vm.sandbox)["drift"] is None
        threads = by_tid(vm.pid)
        for tid in threads:
            os.sched_setaffinity(tid, {int(cpus[1])})
        node.wait_for_all(vm.pid, cpus[0])
        # Not all may have been moved when the watcher looked.
        wait(lambda: sum(drift(node, vm.sandbox).get("repairs", {}).values()) == len(threads),
             lambda: str(drift(node, vm.sandbox)))
        assert drift(node, vm.sandbox)["repairs"] == {"unknown program": len(threads)}
        assert node.sandbox(other.sandbox)["drift"] is None
        assert re.search(rf"repaired sandbox={vm.sandbox} threads=[0-9]+ cause=unknown program: ", node.log())
        text = node.cli("status", "-o", "wide").stdout
        assert f"threads put back: {len(threads)} by unknown program; the last time: nothing known of" in text


def test_a_program_that_sets_masks_is_named_when_it_runs(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    daemon = node.top / "numad"
    shutil.copy("/bin/sleep", daemon)
    with subprocess.Popen([daemon, "300"]) as rival, Qemu(node.id("a"), vcpus=1) as vm:
        try:
            node.start()
            node.wait_for_all(vm.pid, cpus[0])
            os.sched_setaffinity(vm.pid, {int(cpus[1])})
            node.wait_for_log("repaired sandbox=")
            assert drift(node, vm.sandbox)["repairs"] == {"numad": 1}
            assert drift(node, vm.sandbox)["why"] == f"numad (pid {rival.pid}) runs"
        finally:
            rival.kill()


def test_a_cgroup_that_has_less_than_before_is_the_cause(node: Node, cpus: tuple[str, str]) -> None:
    both = union(cpus)
    cgroup = node.cpuset_cgroup(both)
    node.configure(node={"shared_pool": cpus[0]}, watch={"resync_seconds": 600, "births": False})
    with Qemu(node.id("a"), vcpus=1) as vm:
        for tid in by_tid(vm.pid):
            with contextlib.suppress(OSError):
                (cgroup / ("tasks" if (cgroup / "tasks").exists() else "cgroup.procs")).write_text(str(tid))
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        node.configure(node={"shared_pool": both})
        assert node.watcher is not None
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_all(vm.pid, both)
        assert node.sandbox(vm.sandbox)["drift"] is None
        (cgroup / "cpuset.cpus").write_text(cpus[0])
        wait(lambda: drift(node, vm.sandbox).get("repairs"), "nothing was noticed")
        assert set(drift(node, vm.sandbox)["repairs"]) == {"cpuset"}
        assert seen(vm.pid).all() == {cpus[0]}


# Contention


def test_contention_of_two_writers_is_noticed_and_one_gives_in(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]}, drift={"contention_repairs": 2})
    with Qemu(node.id("a"), vcpus=1) as vm, Qemu(node.id("b"), vcpus=1) as other:
        node.start()
        for each in (vm, other):
            node.wait_for_all(each.pid, cpus[0])
        deadline = time.monotonic() + 120
        while "contention sandbox=" not in node.log():
            os.sched_setaffinity(vm.pid, {int(cpus[1])})
            time.sleep(0.02)
            assert time.monotonic() < deadline
        node.resyncs(5)
        assert os.sched_getaffinity(vm.pid) == {int(cpus[1])}
        assert node.log().count("contention sandbox=") == 1
        assert f"contention sandbox={vm.sandbox} threads=1: put back 2 times within 60 s" in node.log()
        found = node.sandbox(vm.sandbox)
        assert found["verdict"] == "degraded"
        assert any("1 thread is moved by another program again and again" in reason for reason in found["reasons"])
        assert node.cli("verify").returncode == 1
        assert node.sandbox(other.sandbox)["reasons"] == []
        assert len(node.data("repin")["operations"]) == 1  # by hand it is taken up again
        assert os.sched_getaffinity(vm.pid) == {int(cpus[0])}
        assert node.cli("verify").returncode == 0


def test_contention_can_be_persisted_in(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]}, drift={"contention_repairs": 1, "on_contention": "persist"})
    with Qemu(node.id("a"), vcpus=1) as vm:
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        for _ in range(5):
            os.sched_setaffinity(vm.pid, {int(cpus[1])})
            wait(lambda: os.sched_getaffinity(vm.pid) == {int(cpus[0])}, "it is not put back")
        assert "they are put back all the same (drift.on_contention=persist)" in node.log()


# Proof


@pytest.fixture
def sampled(node: Node) -> Node:
    if not Schedstat().precise:
        lacking("needs a kernel with schedstat")
    node.configure(node={"shared_pool": two_cpus()[0]}, proof={"sample_seconds": 0.1})
    return node


def test_what_ran_in_its_place_is_proved(sampled: Node, cpus: tuple[str, str]) -> None:
    with Busy(sampled.id("a")) as vm:
        sampled.start()
        sampled.wait_for_all(vm.pid, cpus[0])
        vm.run_for(0.5)
        found = proof(sampled)
        (account,) = roles(found, vm.sandbox).values()
        assert account["placed"] > 0.4
        assert account["elsewhere"] == 0
        assert account["certain"] > 0.3
        assert found["findings"] == []
        assert found["total"]["placed"] == account["placed"]
        done = sampled.cli("verify", "--since", "10m")
        assert done.returncode == 0, done.stdout
        assert re.search(r"in their place [0-9.]+ s \(100.00 %\), elsewhere 0.000 s; certain ", done.stdout)
        wide = sampled.cli("status", "-o", "wide").stdout
        assert "RAN IN PLACE" in wide
        shown = sampled.data("status", vm.sandbox)["sandboxes"][0]["proof"]
        assert shown["roles"]["emulator"]["placed"] > 0.4
        assert sampled.sandbox(vm.sandbox)["proof"] is None  # asked by the second, the status stays small


def test_what_ran_elsewhere_is_found_with_its_cpu(sampled: Node, cpus: tuple[str, str]) -> None:
    sampled.configure(watch={"resync_seconds": 600, "births": False})
    with Busy(sampled.id("a")) as vm:
        sampled.start()
        sampled.wait_for_all(vm.pid, cpus[0])
        vm.run_for(0.2)
        began = vm.ran
        assert proof(sampled)["findings"] == []  # a sample: what it ran so far is in its place
        os.sched_setaffinity(vm.pid, {int(cpus[1])})
        vm.run_for(0.5)
        sampled.data("repin")
        most = vm.ran - began
        vm.run_for(0.3)
        found = proof(sampled, code=1)
        (account,) = roles(found, vm.sandbox).values()
        assert 0.4 < account["elsewhere"] < most
        assert account["placed"] > 0.4
        assert found["drift"] == {"unknown program": 1}
        (finding,) = found["findings"]
        assert (finding["tid"], finding["cpu"], finding["place"]) == (vm.pid, int(cpus[1]), cpus[0])
        assert finding["seconds"] == account["elsewhere"]
        done = sampled.cli("verify", "--since", "1h")
        assert done.returncode == 1
        assert f"(thread {vm.pid}) ran {finding['seconds']:.3f} s on CPU {cpus[1]}" in done.stdout
        assert "threads put back: 1 by unknown program" in done.stdout
        assert sampled.cli("verify", "--since", "1h", "--tolerate", "99.9").returncode == 0
        assert sampled.cli("verify").returncode == 0  # now it is where it should be


def test_a_repair_between_two_samples_hides_nothing(sampled: Node, cpus: tuple[str, str]) -> None:
    """Both are done at a resync's pace: what was put back in time looks as if it had always been there."""
    sampled.configure(proof={"sample_seconds": 600}, watch={"resync_seconds": 600, "births": False})
    with Busy(sampled.id("a")) as vm:
        sampled.start()
        sampled.wait_for_all(vm.pid, cpus[0])
        wait(lambda: sampled.cli("verify", "--since", "1h").returncode == 0, "it is not sampled")
        os.sched_setaffinity(vm.pid, {int(cpus[1])})
        vm.run_for(0.3)
        sampled.data("repin")
        vm.run_for(0.1)
        (account,) = roles(proof(sampled, code=1), vm.sandbox).values()
        assert account["elsewhere"] > 0.25


def test_the_proof_outlives_the_watcher_and_shows_the_gap(sampled: Node, cpus: tuple[str, str]) -> None:
    with Busy(sampled.id("a")) as vm:
        sampled.start()
        sampled.wait_for_all(vm.pid, cpus[0])
        vm.run_for(0.3)
        before = proof(sampled)
        assert sampled.stop() == 0
        assert (sampled.run / "proof").stat().st_mode & 0o777 == 0o600
        time.sleep(1.5)
        sampled.start()
        sampled.wait_for_all(vm.pid, cpus[0])
        vm.run_for(0.2)
        after = proof(sampled)
        assert after["since"] == before["since"]
        old, new = (next(iter(roles(each, vm.sandbox).values())) for each in (before, after))
        assert new["placed"] >= old["placed"] + 0.1
        assert after["seconds"] - after["watched"] > 1.2
        assert "s were not watched" in sampled.cli("verify", "--since", "1h").stdout
        assert sampled.stop(signal.SIGKILL) == -signal.SIGKILL


def test_a_vm_that_ended_stays_in_the_sum(sampled: Node, cpus: tuple[str, str]) -> None:
    with Busy(sampled.id("a")) as vm:
        sampled.start()
        sampled.wait_for_all(vm.pid, cpus[0])
        vm.run_for(0.3)
        wait(lambda: sum(each["placed"] for each in roles(proof(sampled), vm.sandbox).values()) > 0.2, "not sampled")
    wait(lambda: sampled.sandbox(vm.sandbox) is None, "it is still shown")
    found = wait(lambda: (now := proof(sampled)) and not now["sandboxes"] and now, "it is still in the books")
    assert found["ended"]["roles"]["emulator"]["placed"] > 0.2
    assert "(ended)" in sampled.cli("verify", "--since", "1h").stdout


def test_sampling_can_be_switched_off_and_on(sampled: Node, cpus: tuple[str, str]) -> None:
    sampled.configure(proof={"sample_seconds": "off"})
    with Busy(sampled.id("a")) as vm:
        sampled.start()
        sampled.wait_for_all(vm.pid, cpus[0])
        done = sampled.cli("verify", "--since", "1h")
        assert done.returncode == 2
        assert "the watcher does not sample where threads run\n  set proof.sample_seconds" in done.stderr
        assert sampled.cli("verify").returncode == 0
        assert sampled.data("status", vm.sandbox)["sandboxes"][0]["proof"] is None
        sampled.configure(proof={"sample_seconds": 0.1})
        assert sampled.watcher is not None
        sampled.watcher.send_signal(signal.SIGHUP)
        wait(lambda: sampled.cli("verify", "--since", "1h").returncode == 0, sampled.log)
        vm.run_for(0.2)
        assert proof(sampled)["total"]["placed"] > 0.1


@pytest.mark.parametrize(("args", "said"), [
    (["--since", "yesterday"], "--since yesterday: is not a duration of at most seven days"),
    (["--since", "0m"], "--since 0m: is not a duration"), (["--since", "8d"], "--since 8d: is not a duration"),
    (["--since", "1h", "--tolerate", "x"], "--tolerate x: is not a percentage"),
    (["--tolerate", "101"], "--tolerate 101: is not a percentage")])
def test_a_time_that_is_none_is_refused(node: Node, args: list[str], said: str) -> None:
    node.start()
    done = node.cli("verify", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_without_a_watcher_the_past_is_unknown(node: Node) -> None:
    done = node.cli("verify", "--since", "1h")
    assert done.returncode == 3
    assert "no watcher runs, and only a watcher records where threads ran" in done.stderr
