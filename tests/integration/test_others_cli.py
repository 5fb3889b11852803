"""`vmpin verify --others` beside a real VM with an exclusive CPU, and real processes that are on it or kept off it.

On a node that no one set up, every daemon may run on every CPU; so what is asked here is whether *these* processes
are found.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab_node import Lab
from process_masks import by_tid, two_cpus
from real_node import COMMAND, Node
from real_qemu import Qemu
from waiting import PATIENCE, wait

pytest_plugins = ["given_lab"]
pytestmark = pytest.mark.root

KEYS = ["version", "alone", "exclusive", "contested", "findings", "cpus", "ignored", "owners", "seconds", "samples",
        "longest_gap", "resolution", "processes", "threads", "changed", "limits", "pid"]
FINDING = ["pid", "comm", "class", "sandbox", "container", "name", "cgroup", "may", "seconds", "ran", "owners",
           "threads"]


def audit(lab: Lab, *args: str, code: int = 1) -> Any:
    """With --strict: on this node every daemon may run everywhere."""
    return lab.node.data("verify", "--others", "--strict", *args, code=code)


@contextmanager
def process(cpus: str, busy: bool = False, name: str = "") -> Iterator[int]:
    """A process of the test's own that may run there, and does if it is busy."""
    code = f"""\
import os, sys
os.sched_setaffinity(0, {{{cpus}}})
open("/proc/self/comm", "w").write({name or "audited"!r})
print(flush=True)
while {busy}: pass
sys.stdin.read()"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as made:
        try:
            assert made.stdout is not None
            made.stdout.readline()
            stat = Path(f"/proc/{made.pid}/stat")
            wait(lambda: busy or stat.read_text().rpartition(") ")[2].startswith("S"), "it does not sleep")
            yield made.pid
        finally:
            made.kill()


def finding(found: Any, pid: int) -> Any:
    return next((each for each in found["findings"] if each["pid"] == pid), None)


def test_a_thread_that_ran_there_is_found_with_its_seconds(lab: Lab) -> None:
    with process(lab.second, busy=True) as there, process(lab.first, busy=True) as elsewhere:
        def seen_there() -> Any:
            """On a busy machine it may not run in so short a time."""
            found = audit(lab, "--seconds", "0.6")
            return found if finding(found, there)["seconds"] > 0 else None

        # A busy machine may take longer for the last sample, and for reading it once its time was taken.
        found = wait(seen_there, "it is not seen to run")
        one = finding(found, there)
    assert list(found) == KEYS
    assert (found["alone"], found["exclusive"], found["version"]) == (False, lab.second, 1)
    assert found["samples"] >= 2
    assert found["seconds"] > 0.5
    assert list(one) == FINDING
    assert (one["class"], one["comm"], one["may"], one["sandbox"]) == ("host", "audited", lab.second, None)
    assert one["seconds"] > 0
    assert one["ran"] == [{"cpu": int(lab.second), "seconds": one["seconds"]}]
    assert one["threads"] == [{"tid": there, "comm": "audited", "may": lab.second, "ran": one["ran"]}]
    assert one["owners"] == ["tests/pod/web"]
    assert finding(found, elsewhere) is None
    (cpu,) = found["cpus"]
    assert (cpu["cpu"], cpu["owners"]) == (int(lab.second), ["tests/pod/web"])
    assert cpu["others"] >= one["seconds"]
    assert cpu["busy"] > 0
    assert cpu["unseen"] >= 0


def test_threads_that_live_between_two_samples_are_reported_as_unseen(lab: Lab) -> None:
    command = ["taskset", "-c", lab.second, "sh", "-c", "while :; do /bin/true; done"]
    with subprocess.Popen(command) as spawner:
        try:
            # On a busy machine it may not get that much in so short a time.
            wait(lambda: audit(lab, "--seconds", "0.6")["cpus"][0]["unseen"] > 0.05, "nothing of it is unseen")
        finally:
            spawner.kill()


def test_a_thread_that_may_run_there_but_did_not_is_found_by_its_mask(lab: Lab) -> None:
    with process(f"{lab.first},{lab.second}") as both:
        for seconds in ("0", "0.2"):
            one = finding(audit(lab, "--seconds", seconds), both)
            assert (one["may"], one["seconds"], one["ran"]) == (lab.second, 0.0, [])


def test_the_owner_is_at_home_and_another_vm_is_not(lab: Lab) -> None:
    with Qemu(lab.node.id("b"), vcpus=1) as other:
        found = audit(lab, "--seconds", "0")
        assert finding(found, lab.vm.pid) is None
        tids = {thread["tid"] for each in found["findings"] for thread in each["threads"]}
        assert not tids & set(by_tid(lab.vm.pid))
        # The watcher keeps it off that CPU; by hand it is put there.
        lab.node.wait_for_all(other.pid, lab.first)
        assert finding(audit(lab, "--seconds", "0"), other.pid) is None
        lab.node.configure(watch={"resync_seconds": 600})
        lab.node.stop()
        try:
            os.sched_setaffinity(other.pid, {int(lab.second)})
            one = finding(audit(lab, "--seconds", "0"), other.pid)
            assert (one["class"], one["sandbox"], one["may"]) == ("vm", other.sandbox, lab.second)
        finally:
            lab.node.configure(watch={"resync_seconds": 0.2})
            lab.node.start()
    lab.wait_for_masks()


def test_a_process_in_a_containers_cgroup_is_a_containers(lab: Lab) -> None:
    cgroup = lab.node.cpuset_cgroup(lab.second)
    inside = cgroup / ("c" * 64)
    inside.mkdir()
    (inside / "cpuset.cpus").write_text(lab.second)
    (inside / "cpuset.mems").write_text((cgroup / "cpuset.mems").read_text())
    try:
        with process(lab.second) as there:
            (inside / "cgroup.procs").write_text(str(there))
            one = finding(audit(lab, "--seconds", "0"), there)
            assert (one["class"], one["container"], one["cgroup"]) == ("container", "c" * 64, str(inside))
            assert finding(audit(lab, "--seconds", "0", "--ignore", "container"), there) is None
    finally:
        gone(inside)


def test_a_runc_container_is_at_home_on_its_own_cpus_and_another_one_is_not() -> None:
    first, second = two_cpus()
    with Node() as node:
        node.configure(node={"shared_pool": first})
        node.start()
        mine = node.real("runc", node.id("pod"), "db", second)
        other = node.real("runc", node.id("more"), "log", None)
        for bundle in (mine, other):
            bundle.run()
        wait(lambda: node.status()["node"]["exclusive"] == second, "it owns nothing")
        found = node.data("verify", "--others", "--seconds", "0.1", code=1)
        (owner,) = found["owners"]
        assert (owner["kind"], owner["cpus"], owner["container"]) == ("runc", second, mine.id)
        assert finding(found, mine.pid) is None
        one = finding(found, other.pid)
        assert (one["class"], one["may"], one["container"]) == ("container", second, other.cgroup)


def gone(cgroup: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while cgroup.exists():
        try:
            cgroup.rmdir()
        except OSError:  # what was in it is still on its way out
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_kernel_threads_bound_to_the_cpu_are_no_findings_and_this_command_is_one(lab: Lab) -> None:
    found = audit(lab, "--seconds", "0")
    names = {each["comm"] for each in found["findings"] if each["class"] == "kernel"}
    assert not {name for name in names if name.startswith(("ksoftirqd/", "migration/", "cpuhp/"))}
    if not any("PID namespace" in limit for limit in found["limits"]):
        assert "kthreadd" in names
    if int(lab.second) in os.sched_getaffinity(0):
        assert finding(found, found["pid"])["class"] == "host"


def test_alone_is_exit_code_0_and_what_was_left_out_is_reported(lab: Lab) -> None:
    everyone = ("--ignore", "vm", "container", "pause", "--ignore", "host", "kernel")
    found = audit(lab, "--seconds", "0.1", *everyone, code=0)
    assert (found["alone"], found["findings"]) == (True, [])
    assert sum(found["ignored"].values()) > 0
    done = lab.node.cli("verify", "--others", "--seconds", "0.1", *everyone)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("ALONE: within ")
    assert "left out" in done.stdout.splitlines()[0]


def test_a_person_reads_the_answer_first_then_the_evidence(lab: Lab) -> None:
    with process(lab.second, busy=True, name="\x1b[2Jbusy") as there, process(lab.second):
        def shown() -> Any:
            """Once it is among the first rows, which are those that ran most: others may be busy, too."""
            done = lab.node.cli("verify", "--others", "--strict", "--seconds", "0.6")
            return done if f"  {there} " in done.stdout else None

        done = wait(shown, "there is no row of it")
        apart = lab.node.cli("verify", "--others", "--seconds", "0.6", "--ignore", "container", "vm")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert (apart.returncode, apart.stdout.split(":")[0]) == (0, "PODS APART"), apart.stdout
    assert f"no other pod ran on exclusive CPU {lab.second}, and none may; of the node's own " in apart.stdout
    assert " ran there, for " in apart.stdout.splitlines()[0]
    assert lines[2].split() == ["CPUS", "OWNER", "BUSY", "BY", "OWNER", "BY", "KERNEL", "BY", "OTHERS", "UNSEEN"]
    assert lines[3].split()[:2] == [lab.second, "tests/pod/web"]
    (row,) = [line for line in lines if f"  {there} " in line]
    assert row.split()[:5] == [row.split()[0], "s", lab.second, lab.second, "host"]
    assert r"\x1b[2Jbusy" in row
    assert "\x1b" not in done.stdout
    assert "samples, at most " in done.stdout
    assert len(lines) < 40, "however many daemons there are"
    masks = lab.node.cli("verify", "--others", "--seconds", "0", "--ignore", "container", "vm").stdout.splitlines()
    assert masks[0].startswith(f"PODS APART: no other pod may run on exclusive CPU {lab.second}; ")


def test_without_exclusive_cpus_there_is_nothing_to_audit(lab: Lab) -> None:
    with Node() as empty:
        done = empty.cli("verify", "--others", "--seconds", "600")  # which is longer than a command may take
        assert (done.returncode, done.stdout) == (
            0, "no CPU of this node is exclusive: nothing was sampled\n")
        found = empty.data("verify", "--others")
        assert list(found) == KEYS
        assert (found["alone"], found["exclusive"]) == (True, "")


@pytest.mark.parametrize("args", [("--seconds", "-1"), ("--seconds", "nan"), ("--seconds", "x"), ("--seconds", "1e9"),
                                  ("--ignore", "nobody"), ("-o", "yaml"), ("--set", "node.shared_pool=x")])
def test_what_cannot_be_asked_is_exit_code_2(lab: Lab, args: tuple[str, ...]) -> None:
    done = lab.node.cli("verify", "--others", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_a_watcher_that_hangs_up_is_exit_code_3_as_1_is_an_answer() -> None:
    import socket
    import threading

    with Node() as node, socket.socket(socket.AF_UNIX) as made:
        node.run.mkdir()
        made.bind(str(node.run / "vmpin.sock"))
        made.listen()
        made.settimeout(120)
        thread = threading.Thread(target=lambda: made.accept()[0].close())
        thread.start()
        done = subprocess.run([*COMMAND, "--config", str(node.config), "verify", "--others"], env=node.environment,
                              capture_output=True, text=True, timeout=120)
        thread.join()
    assert (done.returncode, done.stdout) == (3, "")
    assert "the watcher hung up" in done.stderr
