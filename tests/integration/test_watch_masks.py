"""Masks that the watcher finds changed, repairs, gives back or leaves alone: real VMs, read from /proc."""

from __future__ import annotations

import os
import signal

import pytest
from process_masks import by_tid, union
from real_node import Node
from real_qemu import Qemu
from waiting import wait

pytest_plugins = ["given"]
pytestmark = pytest.mark.root


def test_drift_is_repaired_at_the_next_resync(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        for tid in by_tid(vm.pid):
            os.sched_setaffinity(tid, {int(cpus[1])})
        node.wait_for_all(vm.pid, cpus[0])
        node.wait_for_log("repaired sandbox=")


def test_a_plan_repairs_nothing_and_says_so(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]}, watch={"resync_seconds": 600, "births": False})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        os.sched_setaffinity(vm.pid, {int(cpus[1])})
        for _ in range(2):
            (operation,) = node.data("plan")["operations"]
            assert (operation["tid"], operation["cpus"], operation["was"]) == (vm.pid, cpus[0], cpus[1])
        assert os.sched_getaffinity(vm.pid) == {int(cpus[1])}
        assert "repaired" not in node.log()
        assert [entry["tid"] for entry in node.data("repin")["operations"]] == [vm.pid]
        assert "repaired sandbox=" in node.log()


def test_drift_is_seen_at_once_and_repaired_when_asked(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]}, watch={"resync_seconds": 600, "births": False})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        assert node.cli("verify").returncode == 0
        (victim,) = [tid for tid, vcpu in vm.vcpus().items() if vcpu == 1]
        os.sched_setaffinity(victim, {int(cpus[1])})
        done = node.cli("verify")
        assert done.returncode == 1
        assert "1 of " in done.stdout
        assert f"{victim}" in done.stdout
        found = node.data("verify", code=1)
        assert [(entry["tid"], entry["wanted"], entry["actual"]) for entry in found["drift"]] == [
            (victim, cpus[0], cpus[1])]
        assert node.sandbox(vm.sandbox)["verdict"] == "degraded"
        assert len(node.data("plan")["operations"]) == 1
        assert node.cli("repin").returncode == 0
        assert by_tid(vm.pid)[victim] == {int(cpus[0])}
        assert node.cli("verify").returncode == 0


def test_masks_set_by_hand_stay_until_a_container_is_known(node: Node, cpus: tuple[str, str]) -> None:
    second = cpus[1]
    with Qemu(node.id("a"), vcpus=2, maxcpus=4) as vm:
        for tid, vcpu in vm.vcpus().items():
            os.sched_setaffinity(tid, {int(cpus[vcpu])})
        by_hand = by_tid(vm.pid)
        node.start()
        node.wait_for_log("unmanaged sandbox=")
        new = vm.add_vcpu()
        assert node.data("repin")["operations"] == []
        assert {tid: mask for tid, mask in by_tid(vm.pid).items() if tid in by_hand} == by_hand
        (born,) = (tid for tid, vcpu in vm.vcpus().items() if vcpu == new)
        assert by_tid(vm.pid)[born] == by_hand[vm.pid]
        status = node.sandbox(vm.sandbox)
        assert (status["verdict"], status["mask"]) == ("unmanaged", None)
        assert (status["drift"], status["new_threads"]) == (None, None)
        assert "no container of it is known" in " ".join(status["reasons"])
        assert {thread["wanted"] for thread in status["threads"]} == {None}
        assert "is left alone" in node.cli("status", "--explain", vm.sandbox).stdout
        verified = node.cli("verify")
        assert (verified.returncode, verified.stdout) == (3, "")
        assert "no thread of 1 VM has a mask to be compared with: nothing was compared (no con" in verified.stderr
        assert node.data("plan") == {"version": 1, "operations": [], "unmanaged": [vm.sandbox],
                                     "of_features": []}
        assert node.log().count("unmanaged sandbox=") == 1

        node.container(vm.sandbox, "web", second)
        node.wait_for_all(vm.pid, second)
        assert node.sandbox(vm.sandbox)["verdict"] == "floating"
        node.gone(vm.sandbox, "web")
        wait(lambda: node.sandbox(vm.sandbox)["verdict"] == "degraded", "it should have lost its container")
        assert node.data("repin")["operations"] == []
        # What is given back is what it had at the moment when it was managed.
        assert node.cli("unpin", vm.sandbox).returncode == 0
        assert node.cli("verify").returncode == 0  # nothing is compared, as the operator wants it
        assert {tid: mask for tid, mask in by_tid(vm.pid).items() if tid in by_hand} == by_hand


def test_a_narrower_watch_only_gives_the_masks_from_before_back(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a"), vcpus=2) as vm, Qemu(node.id("b"), vcpus=2) as other:
        before = by_tid(vm.pid)
        node.start()
        for each in (vm, other):
            node.container(each.sandbox, f"web-{each.sandbox}", cpus[0])
            node.wait_for_all(each.pid, cpus[0])
        assert node.watcher is not None
        planned = node.data("unpin", vm.sandbox, "--dry-run")
        assert (planned["suspended"], len(planned["operations"])) == ([vm.sandbox], len(before))
        node.wait_for_all(vm.pid, cpus[0])
        all_of_them = node.settings["watch"]["only"]
        node.configure(watch={"only": f"{other.sandbox}*"})
        node.watcher.send_signal(signal.SIGHUP)
        wait(lambda: by_tid(vm.pid) == before, lambda: f"{by_tid(vm.pid)} is not {before}\n{node.log()}")
        node.wait_for_log(f"configuration loaded again: watch.only: {all_of_them} -> {other.sandbox}*")
        node.wait_for_log(f"excluded sandbox={vm.sandbox} only={other.sandbox}*")
        node.resyncs()
        node.wait_for_all(other.pid, cpus[0])
        assert by_tid(vm.pid) == before
        assert [entry["id"] for entry in node.status()["sandboxes"]] == [other.sandbox]
        node.configure(watch={"only": all_of_them})
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_all(vm.pid, cpus[0])
        assert node.cli("unpin", "--every").returncode == 0
        assert by_tid(vm.pid) == before


def test_a_cgroup_that_has_less_is_reported_and_not_fought(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.wait_for_all(vm.pid, first)
        cgroup = node.cpuset_cgroup(second)
        (cgroup / "cgroup.procs").write_text(str(vm.pid))
        # Nothing of what is wanted is allowed: EINVAL.
        node.wait_for_log("cannot set thread")
        node.resyncs()
        status = node.sandbox(vm.sandbox)
        assert status["verdict"] == "degraded"
        assert {(thread["wanted"], thread["actual"], thread["ok"]) for thread in status["threads"]
                if thread["tid"] in by_tid(vm.pid)} == {(first, second, False)}
        assert any(f"belong on {first}, but their cpuset cgroup has only {second}" in reason
                   for reason in status["reasons"])
        logged = node.log().count("cannot set thread")
        node.resyncs()
        assert node.log().count("cannot set thread") == logged, "each refusal is logged once"
        # A part of it is: the kernel trims.
        node.container(vm.sandbox, "web", union(cpus))
        node.wait_for_log(f"cannot honour {union(cpus)} for ")
        node.resyncs(1)
        status = node.sandbox(vm.sandbox)
        assert status["verdict"] == "degraded"
        inside = [thread for thread in status["threads"] if thread["tid"] in by_tid(vm.pid)]
        assert {(thread["wanted"], thread["actual"], thread["ok"]) for thread in inside} == {
            (union(cpus), second, False)}
        assert any(reason.endswith("threads have fewer CPUs than decided: their cpuset cgroup has no others")
                   for reason in status["reasons"])
        assert node.cli("verify").returncode == 1
        settled = node.log().splitlines()
        node.resyncs(4)
        more = [line for line in node.log().splitlines()[len(settled):] if "proc connector lost" not in line]
        assert more == [], "it is set again and again"
        assert node.data("plan")["operations"] == []
        # The cgroup is given more: the kernel shows what was asked, and all is well.
        (cgroup / "cpuset.cpus").write_text(union(cpus))
        node.wait_for_all(vm.pid, union(cpus))
        wait(lambda: node.cli("verify").returncode == 0, "still not verified")


def test_a_container_without_a_cpuset_beside_an_exclusive_one_cannot_leave_its_cpus(
        node: Node, cpus: tuple[str, str]) -> None:
    """As Kata has it on cgroup v2: the whole VMM is in a cgroup that has the CPUs of containers with a cpuset only."""
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2) as vm:
        cgroup = node.cpuset_cgroup(second)
        (cgroup / "cgroup.procs").write_text(str(vm.pid))
        node.start()
        node.container(vm.sandbox, "main", second)
        node.container(vm.sandbox, "side", None)

        def explained() -> bool:
            status = node.sandbox(vm.sandbox)
            return status["verdict"] == "degraded" and any(
                f"belong on {first}, but their cpuset cgroup has only {second}: that is the union of its containers' "
                "cpusets, and " in reason and "give it a cpuset" in reason for reason in status["reasons"])

        wait(explained, lambda: node.sandbox(vm.sandbox))
        verified = node.cli("verify")
        assert verified.returncode == 1
        assert "because of the cpuset cgroup (CGROUP)" in verified.stdout
        assert "misplaced" not in verified.stdout
        assert f"as its cpuset cgroup has only {second}" in node.cli("status", "--explain", vm.sandbox).stdout
        (cgroup / "cpuset.cpus").write_text(union(cpus))
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        assert node.sandbox(vm.sandbox)["verdict"] == "pinned"


def test_a_vm_that_was_in_a_small_cgroup_before_is_left_as_it_is(node: Node, cpus: tuple[str, str]) -> None:
    with Qemu(node.id("a")) as vm:
        (node.cpuset_cgroup(cpus[1]) / "cgroup.procs").write_text(str(vm.pid))
        node.start()
        node.container(vm.sandbox, "web", None)
        wait(lambda: (found := node.sandbox(vm.sandbox)) and found["mask"], "it is not managed")
        status = node.sandbox(vm.sandbox)
        assert status["verdict"] == "degraded"
        assert all(thread["actual"] == cpus[1] for thread in status["threads"] if thread["tid"] in by_tid(vm.pid))
