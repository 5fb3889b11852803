"""The watcher end to end: real QEMUs, real containers, real hooks; what is claimed is read from /proc."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from real_node import Node, by_tid, kept, seen, union, wait
from real_qemu import Qemu

from vmpin.host.sysfs import Sysfs

pytest_plugins = ["given"]
pytestmark = pytest.mark.root


def everything() -> str:
    return str(Sysfs().online())


# Containers


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_a_container_is_followed_from_its_creation_to_its_end(node: Node, cpus: tuple[str, str],
                                                              runtime: str) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=3) as vm:
        node.start()
        node.wait_for_all(vm.pid, first)
        web = node.real(runtime, vm.sandbox, "web", second)
        logs = node.real(runtime, vm.sandbox, "logs", first)
        web.run()
        node.wait_for_all(vm.pid, second)
        logs.run()
        node.wait_for_vcpus(vm.pid, {0: first, 1: first, 2: second}, first)
        status = node.sandbox(vm.sandbox)
        assert status["verdict"] == "pinned"
        assert status["pod"] == {"namespace": "tests", "name": "pod", "uid": "11-22"}
        assert {entry["name"]: (entry["cpuset"], entry["exclusive"], entry["vcpus"])
                for entry in status["containers"]} == {"web": (second, True, "2"), "logs": (first, False, "0-1")}
        assert node.cli("verify").returncode == 0
        web.update(first)
        node.wait_for_all(vm.pid, first)
        assert node.sandbox(vm.sandbox)["verdict"] == "floating"
        web.update(second)
        node.wait_for_vcpus(vm.pid, {0: first, 1: first, 2: second}, first)
        web.delete()
        node.wait_for_all(vm.pid, first)
        assert [entry["name"] for entry in node.sandbox(vm.sandbox)["containers"]] == ["logs"]
        logs.delete()
        wait(lambda: node.sandbox(vm.sandbox)["containers"] == [], "the last container is still there")
        node.wait_for_all(vm.pid, first)
    wait(lambda: node.sandbox(vm.sandbox) is None, "the VM has ended and is still shown")


def test_a_container_whose_end_is_not_reported_is_noticed(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        web = node.real("crun", vm.sandbox, "web", second)
        web.run()
        node.wait_for_all(vm.pid, second)
        os.kill(web.pid, signal.SIGKILL)
        node.wait_for_all(vm.pid, first)


# Rules, on real threads


@pytest.mark.parametrize(("vcpus", "expected", "verdict"), [
    (1, "shares", "degraded"), (2, "one-to-one", "pinned"), (3, "spare", "pinned")])
def test_two_exclusive_cpus(node: Node, cpus: tuple[str, str], vcpus: int, expected: str, verdict: str) -> None:
    first, second = cpus
    both = union(cpus)
    wanted = {"shares": {0: both}, "one-to-one": {0: first, 1: second}, "spare": {0: both, 1: first, 2: second}}
    node.configure(policy={"exclusive_annotation": "vmpin/exclusive"})
    with Qemu(node.id("a"), vcpus=vcpus) as vm:
        node.start()
        node.container(vm.sandbox, "web", both, exclusive=True)
        node.wait_for_vcpus(vm.pid, wanted[expected], both)
        status = wait(lambda: (found := node.sandbox(vm.sandbox))["verdict"] == verdict and found, verdict)
        if verdict == "degraded":
            assert status["reasons"] == ["1 vCPUs for 2 exclusive CPUs: no one-to-one, each exclusive container has "
                                         "its own share of the vCPUs"]
        else:
            assert status["reasons"] == []


def test_union_puts_every_vcpu_on_the_sandbox_mask(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]},
                   policy={"vcpus": "union", "iothreads": "sandbox", "emulator": "sandbox"})
    with Qemu(node.id("a"), vcpus=3) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        node.container(vm.sandbox, "logs", cpus[0])
        node.wait_for_all(vm.pid, union(cpus))
        assert node.sandbox(vm.sandbox)["verdict"] == "floating"


def test_each_role_follows_its_own_policy(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first, "housekeeping": first},
                   policy={"iothreads": second, "vhost": "housekeeping", "emulator": "shared"})
    with Qemu(node.id("a"), vcpus=1, iothreads=["io1"], vhost=1) as vm:
        node.start()
        node.container(vm.sandbox, "web", second)
        node.wait_for_vcpus(vm.pid, {0: second})

        def by_role() -> dict[str, set[str]]:
            found: dict[str, set[str]] = {}
            for thread in node.sandbox(vm.sandbox)["threads"]:
                found.setdefault(thread["role"], set()).add(seen(vm.pid).others.get(thread["tid"], "vcpu"))
            return found

        wait(lambda: by_role() == {"vcpu": {"vcpu"}, "iothread": {second}, "vhost": {first}, "emulator": {first}},
             by_role)


def test_roles_that_are_off_are_left_alone(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]}, policy={"vcpus": "off", "emulator": "off", "iothreads": "off"})
    with Qemu(node.id("a"), vcpus=2, iothreads=["io1"]) as vm:
        before = by_tid(vm.pid)
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        node.resyncs()
        assert by_tid(vm.pid) == before
        assert node.sandbox(vm.sandbox)["verdict"] == "off"


# Drift


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
        assert [entry["tid"] for entry in node.data("reconcile")["operations"]] == [vm.pid]
        assert "repaired sandbox=" in node.log()


def test_a_vm_that_was_killed_is_not_shown_as_running(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(watch={"resync_seconds": 600})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        assert node.sandbox(vm.sandbox)["vmm"]["pid"] == vm.pid
        os.kill(vm.pid, signal.SIGKILL)
        wait(lambda: Path(f"/proc/{vm.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", "it lives on")
        assert node.sandbox(vm.sandbox) is None


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
        assert node.cli("reconcile").returncode == 0
        assert by_tid(vm.pid)[victim] == {int(cpus[0])}
        assert node.cli("verify").returncode == 0


def test_a_vcpu_plugged_in_later_is_placed(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a"), vcpus=2, maxcpus=8) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        node.container(vm.sandbox, "logs", cpus[0])
        node.wait_for_vcpus(vm.pid, {0: cpus[0], 1: cpus[1]})
        assert vm.add_vcpu() == 7
        node.wait_for_vcpus(vm.pid, {0: cpus[0], 1: cpus[1], 7: cpus[0]}, cpus[0])


# Nothing says where it belongs


def test_masks_set_by_hand_stay_until_a_container_is_known(node: Node, cpus: tuple[str, str]) -> None:
    second = cpus[1]
    with Qemu(node.id("a"), vcpus=2, maxcpus=4) as vm:
        for tid, vcpu in vm.vcpus().items():
            os.sched_setaffinity(tid, {int(cpus[vcpu])})
        by_hand = by_tid(vm.pid)
        node.start()
        node.wait_for_log("unmanaged sandbox=")
        new = vm.add_vcpu()
        assert node.data("reconcile")["operations"] == []
        assert {tid: mask for tid, mask in by_tid(vm.pid).items() if tid in by_hand} == by_hand
        (born,) = (tid for tid, vcpu in vm.vcpus().items() if vcpu == new)
        assert by_tid(vm.pid)[born] == by_hand[vm.pid]
        status = node.sandbox(vm.sandbox)
        assert (status["verdict"], status["mask"], status["drift"], status["birth"]) == ("unmanaged", None, None, None)
        assert "no container of it is known" in " ".join(status["reasons"])
        assert {thread["wanted"] for thread in status["threads"]} == {None}
        assert "is left alone" in node.cli("explain", vm.sandbox).stdout
        verified = node.cli("verify")
        assert verified.returncode == 0
        assert "is unmanaged: its threads keep their masks" in verified.stdout
        assert node.data("verify")["unmanaged"] == [vm.sandbox]
        assert node.data("plan") == {"operations": [], "unmanaged": [vm.sandbox]}
        assert node.log().count("unmanaged sandbox=") == 1

        node.container(vm.sandbox, "web", second)
        node.wait_for_all(vm.pid, second)
        assert node.sandbox(vm.sandbox)["verdict"] == "floating"
        node.gone(vm.sandbox, "web")
        wait(lambda: node.sandbox(vm.sandbox)["verdict"] == "degraded", "it should have lost its container")
        assert node.data("reconcile")["operations"] == []
        # What is given back is what it had at the moment when it was managed.
        assert node.cli("unpin", vm.sandbox).returncode == 0
        assert {tid: mask for tid, mask in by_tid(vm.pid).items() if tid in by_hand} == by_hand


# Configuration


def test_sighup_loads_the_configuration_again(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first}, policy={"emulator": "sandbox"})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second})
        assert node.watcher is not None
        node.configure(policy={"vcpus": "union"})
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_vcpus(vm.pid, {0: union(cpus), 1: union(cpus)})
        node.wait_for_log("configuration loaded again: policy.vcpus: auto -> union")
        good = node.config.read_text()
        node.config.write_text(good.replace("policy:", "polizy:"))
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_log(f"the configuration stays as it was: {node.config}: unknown section 'polizy'")
        node.config.write_text(good.replace("union", "onion"))
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_log("'onion' is none of auto, union, off")
        node.config.unlink()
        node.watcher.send_signal(signal.SIGHUP)
        wait(lambda: node.log().count("the configuration stays as it was") == 3, node.log)
        node.config.write_text("")
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_log(f"the configuration stays as it was: {node.config}: sets no key any more")
        node.resyncs()
        node.wait_for_vcpus(vm.pid, {0: union(cpus), 1: union(cpus)})
        node.config.write_text(good)
        assert node.status()["policy"]["vcpus"] == "union"


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
        assert (planned["held"], len(planned["operations"])) == ([vm.sandbox], len(before))
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


# Containers that are no VM's


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_a_container_without_a_vm_is_never_touched_and_its_cpus_count(node: Node, cpus: tuple[str, str],
                                                                      runtime: str) -> None:
    node.configure(policy={"exclusive_annotation": "vmpin/exclusive"})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.container(vm.sandbox, "web", None)
        plain = node.real(runtime, node.id("plain"), "plain", cpus[1], {"vmpin/exclusive": "true"})
        plain.run()
        before = by_tid(plain.pid)
        rest = str(Sysfs().online() - Sysfs().online().parse(cpus[1]))
        node.wait_for_all(vm.pid, rest)
        status = node.status()
        assert status["node"]["exclusive"] == cpus[1]
        assert status["node"]["shared_pool"] == rest
        assert [entry["id"] for entry in status["sandboxes"]] == [vm.sandbox]
        node.resyncs()
        assert by_tid(plain.pid) == before
        assert node.id("plain") not in node.log()
        plain.delete()
        node.wait_for_all(vm.pid, everything())


def test_a_pid_in_a_hook_is_never_pinned(node: Node, cpus: tuple[str, str]) -> None:
    """Only a process that is a VMM by its own command line, and no other's, is a sandbox's VM."""
    node.configure(node={"shared_pool": cpus[0]})
    before = {pid: by_tid(pid) for pid in (1, os.getpid())}
    with Qemu(node.id("a"), vcpus=2) as vm, Qemu(node.id("b")) as other, \
            subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            node.start()
            for number, pid in enumerate((1, os.getpid(), os.getppid(), sleeper.pid, other.pid, 2, 0, -1, 1 << 40)):
                name = f"c{number}"
                for stage in ("createRuntime", "poststart"):
                    state = node.state(vm.sandbox, name, node.bundle(name, cpus[1]), pid)
                    assert node.hook(stage, state) == b"ok\n"
            node.resyncs()
            assert kept(1, before[1])
            assert kept(os.getpid(), before[os.getpid()])
            assert len(os.sched_getaffinity(sleeper.pid)) == len(os.sched_getaffinity(0))
            status = {entry["id"]: entry for entry in node.status()["sandboxes"]}
            assert {sandbox: entry["vmm"]["pid"] for sandbox, entry in status.items()} == {
                vm.sandbox: vm.pid, other.sandbox: other.pid}
            tids = {thread["tid"] for entry in status.values() for thread in entry["threads"]}
            assert tids <= {*by_tid(vm.pid), *by_tid(other.pid)}
            # Nor does what such a process may use widen the sandbox's mask.
            assert status[vm.sandbox]["mask"] == cpus[1]
            node.wait_for_all(vm.pid, cpus[1])
        finally:
            sleeper.kill()


# Cgroups


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
        assert any(f"belong on {first}, and their cpuset cgroup has {second} only" in reason
                   for reason in status["reasons"])
        told = node.log().count("cannot set thread")
        node.resyncs()
        assert node.log().count("cannot set thread") == told, "each refusal is told once"
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

        def told() -> bool:
            status = node.sandbox(vm.sandbox)
            return status["verdict"] == "degraded" and any(
                f"belong on {first}, and their cpuset cgroup has {second} only: that is the union of its containers' "
                "cpusets, and " in reason and "give it a cpuset" in reason for reason in status["reasons"])

        wait(told, lambda: node.sandbox(vm.sandbox))
        verified = node.cli("verify")
        assert verified.returncode == 1
        assert "because of their cpuset cgroup (CGROUP)" in verified.stdout
        assert "misplaced" not in verified.stdout
        assert f"as its cpuset cgroup has {second} only" in node.cli("explain", vm.sandbox).stdout
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
