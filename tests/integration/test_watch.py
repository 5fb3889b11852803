"""The watcher end to end: real QEMUs, real containers, real hooks; what is claimed is read from /proc."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from need import need_root, need_tool
from real_node import COMMAND, PATIENCE, Node, by_tid, cri, kept, seen, talk, two_cpus, union, wait
from real_qemu import Qemu

from vmpin.host.sysfs import Sysfs

pytestmark = pytest.mark.root

#: Some user who is not root, in a group that is given nothing.
NOBODY = 65534


@pytest.fixture
def node() -> Iterator[Node]:
    need_root()
    need_tool("qemu-system-x86_64")
    with Node() as made:
        yield made


@pytest.fixture
def cpus() -> tuple[str, str]:
    return two_cpus()


def everything() -> str:
    return str(Sysfs().online())


# Containers


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_a_container_is_followed_from_its_creation_to_its_end(node: Node, cpus: tuple[str, str],
                                                              runtime: str) -> None:
    first, second = cpus
    both = union(cpus)
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=3) as vm:
        node.start()
        node.wait_for_all(vm.pid, first)
        web = node.real(runtime, vm.sandbox, "web", second)
        logs = node.real(runtime, vm.sandbox, "logs", first)
        web.run()
        node.wait_for_all(vm.pid, second)
        logs.run()
        node.wait_for_vcpus(vm.pid, {0: first, 1: first, 2: second}, both)
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
        node.wait_for_vcpus(vm.pid, {0: first, 1: first, 2: second}, both)
        web.delete()
        node.wait_for_all(vm.pid, first)
        assert [entry["name"] for entry in node.sandbox(vm.sandbox)["containers"]] == ["logs"]
        logs.delete()
        wait(lambda: node.sandbox(vm.sandbox)["containers"] == [], "the last container is still there")
        node.wait_for_all(vm.pid, first)
    wait(lambda: node.sandbox(vm.sandbox) is None, "the VM has ended and is still shown")


def test_a_container_that_dies_unheard_is_noticed(node: Node, cpus: tuple[str, str]) -> None:
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
    node.configure(node={"shared_pool": cpus[0]}, policy={"vcpus": "union"})
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
        node.wait_for_vcpus(vm.pid, {0: cpus[0], 1: cpus[1], 7: cpus[0]}, union(cpus))


# Death


def test_no_kill_at_any_moment_loses_what_a_hook_told(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    dice = random.Random(20)  # the machine adds the chance
    with Qemu(node.id("a"), vcpus=2) as vm:
        before = by_tid(vm.pid)
        node.start()
        alive = {"logs"}
        node.container(vm.sandbox, "logs", first)
        for number in range(10):
            calls = [node.call_hook("createRuntime", node.state(
                vm.sandbox, f"web{number}", node.bundle(f"web{number}", second), vm.pid))]
            alive.add(f"web{number}")
            if number % 3 == 2:
                # Its bundle stays: only the hook's word tells of its end.
                calls.append(node.call_hook("poststop", node.state(
                    vm.sandbox, f"web{number - 1}", node.bundle(f"web{number - 1}", second))))
                alive.discard(f"web{number - 1}")
            time.sleep(dice.uniform(0, 0.06))
            node.kill()
            if number % 2:
                node.start(wait_until_ready=False)
                time.sleep(dice.uniform(0.1, 0.5))
                node.kill()
            assert [call.wait(PATIENCE) for call in calls] == [0] * len(calls)
            node.start()
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, union(cpus))

        def known() -> dict[str, str]:
            return {entry["name"]: entry["cpuset"] for entry in node.sandbox(vm.sandbox)["containers"]}

        wanted = {name: first if name == "logs" else second for name in alive}
        wait(lambda: known() == wanted, lambda: f"{known()} is not {wanted}")
        assert node.cli("unpin").returncode == 0
        assert by_tid(vm.pid) == before


def test_a_vmm_that_is_killed_between_two_steps_hurts_nobody(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("b"), vcpus=1) as other:
        node.start()
        for _ in range(5):
            with Qemu(node.id("a"), vcpus=2) as vm:
                calls = [node.call_hook("createRuntime", node.state(
                    vm.sandbox, name, node.bundle(name, second), vm.pid)) for name in ("web", "more")]
                time.sleep(random.uniform(0, 0.06))
                os.kill(vm.pid, signal.SIGKILL)
                for call in calls:
                    assert call.wait(PATIENCE) == 0
        assert not node.ended()
        wait(lambda: node.sandbox(node.id("a")) is None, "the dead VM is still shown")
        node.container(other.sandbox, "c", second)
        node.wait_for_all(other.pid, second)
        with Qemu(node.id("a"), vcpus=1) as again:
            node.wait_for_all(again.pid, second)  # its containers' bundles are there still
    assert "Traceback" not in node.log()


def test_a_second_watcher_refuses(node: Node) -> None:
    node.start()
    done = node.cli("watch")
    assert done.returncode == 1
    assert node.watcher is not None
    assert f"another vmpin (pid {node.watcher.pid}) is at work on {node.run}" in done.stderr
    assert "stop it first" in done.stderr
    assert node.cli("status").returncode == 0, "the first goes on"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly_when_asked(node: Node, cpus: tuple[str, str], number: signal.Signals) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a")) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        node.wait_for_all(vm.pid, cpus[1])
        assert node.stop(number) == 0
        assert sorted(os.listdir(node.run)) == ["lock", "proof", "spool", "state.json"]
        assert os.listdir(node.run / "spool") == []
        assert "stopped; threads keep their masks" in node.log()
        node.wait_for_all(vm.pid, cpus[1])
        done = node.cli("status")
        assert "no watcher runs" in done.stdout
        node.start()
        node.resyncs()
        node.wait_for_all(vm.pid, cpus[1])
        assert "pinned" not in node.last_log(), "a restart changes nothing"


# Configuration


def test_sighup_loads_the_configuration_again(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second})
        assert node.watcher is not None
        node.configure(policy={"vcpus": "union"})
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_all(vm.pid, union(cpus))
        node.wait_for_log("configuration loaded again")
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
        node.resyncs()
        node.wait_for_all(vm.pid, union(cpus))
        node.config.write_text(good)
        assert node.status()["policy"]["vcpus"] == "union"


# The spool and the state file


def test_the_spool_is_taken_up_at_the_start(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a")) as vm:
        state = node.state(vm.sandbox, "web", node.bundle("web", cpus[1]), vm.pid)
        assert node.call_hook("createRuntime", state).wait(PATIENCE) == 0
        assert len(os.listdir(node.run / "spool")) == 1
        node.start()
        node.wait_for_all(vm.pid, cpus[1])
        node.wait_for_log("took messages=1 from the spool")
        wait(lambda: os.listdir(node.run / "spool") == [], "the spool is not emptied")
        node.kill()
        node.start()
        node.resyncs()
        node.wait_for_all(vm.pid, cpus[1])


def test_the_spool_is_taken_up_by_a_running_watcher(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a")) as vm:
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        raw = node.message("createRuntime", node.state(vm.sandbox, "web", node.bundle("web", cpus[1])))
        spool = node.run / "spool"
        (spool / ".half.tmp").write_bytes(raw[:40])
        (spool / "00000000000000000001-1.hook").write_bytes(b"garbage")
        (spool / "00000000000000000002-1.hook").mkdir()
        (spool / "00000000000000000003-1.hook").symlink_to("/dev/zero")
        (spool / f"{time.time_ns():020}-7.hook").write_bytes(raw)
        node.wait_for_all(vm.pid, cpus[1])
        wait(lambda: sorted(os.listdir(spool)) in ([".half.tmp"], [".half.tmp", "00000000000000000002-1.hook"]),
             lambda: os.listdir(spool))
    assert "Traceback" not in node.log()


def test_a_damaged_state_file_is_set_aside(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    file = node.run / "state.json"
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1])
        node.wait_for_all(vm.pid, cpus[1])
        assert node.stop() == 0
        good = file.read_bytes()
        for damage in (good.replace(b'"web"', b'"wob"'), good[: len(good) // 2], b"", b"[" * 100_000, b"\xff\x00",
                       b'{"sha256": 1, "body": []}'):
            file.write_bytes(damage)
            node.start()
            assert f"WARNING {file}: " in node.last_log()
            assert "set aside as state.json.bad, the state is rebuilt from what runs" in node.last_log()
            assert (node.run / "state.json.bad").read_bytes() == damage
            node.wait_for_all(vm.pid, cpus[0])
            assert node.stop() == 0
        state = json.loads(file.read_bytes())
        assert state["body"]["sandboxes"].keys() == {vm.sandbox}


def test_a_full_disk_is_told_once_and_pins_go_on(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    node.run.mkdir()
    node.wrap = [need_tool("unshare"), "-m", "--propagation", "private", "sh", "-c",
                 f'mount -t tmpfs -o size=64k,mode=755 vmpin-test {node.run} && exec "$@"', "sh"]
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
        node.wait_for_all(vm.pid, first)
        assert node.watcher is not None
        inside = Path(f"/proc/{node.watcher.pid}/root{node.run}")
        with contextlib.suppress(OSError), (inside / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        for name, where in (("web", second), ("logs", first), ("more", first)):
            raw = node.message("createRuntime", node.state(vm.sandbox, name, node.bundle(name, where), vm.pid))
            assert talk(inside / "hook.sock", raw) == b"ok\n"
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, union(cpus))
        node.wait_for_log("a hook's message cannot be kept: No space left on device")
        node.wait_for_log("the state cannot be saved: No space left on device")
        node.resyncs()
        log = node.log()
        assert log.count("cannot be kept") == 1
        assert log.count("the state cannot be saved") == 1
        assert [name for name in os.listdir(inside / "spool") if name.endswith(".tmp")] == []
        (inside / "filler").unlink()
        raw = node.message("createRuntime", node.state(vm.sandbox, "last", node.bundle("last", first), vm.pid))
        assert talk(inside / "hook.sock", raw) == b"ok\n"
        node.wait_for_log("the state can be saved again")
        wait(lambda: b"last" in (inside / "state.json").read_bytes(), "the state file is behind")
        assert b"web" in (inside / "state.json").read_bytes()


def test_a_run_directory_that_is_full_from_the_start_is_one_clear_line(node: Node) -> None:
    node.run.mkdir()
    node.wrap = [need_tool("unshare"), "-m", "--propagation", "private", "sh", "-c",
                 f"mount -t tmpfs -o nr_inodes=2 vmpin-test {node.run} && touch {node.run}/lock && "
                 'exec "$@"', "sh"]
    node.start(wait_until_ready=False)
    assert node.watcher is not None
    assert node.watcher.wait(20) == 1
    assert "No space left on device" in node.log()
    assert "Traceback" not in node.log()


# Containers that are no VM's


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_a_container_without_a_vm_is_never_touched_and_its_cpus_count(node: Node, cpus: tuple[str, str],
                                                                      runtime: str) -> None:
    node.configure(policy={"exclusive_annotation": "vmpin/exclusive"})
    with Qemu(node.id("a"), vcpus=2) as vm:
        node.start()
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
            subprocess.Popen(["sleep", "60"]) as sleeper:
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


# The sockets


def ask_as(uid: int, gid: int, path: Path, request: bytes) -> str:
    """What somebody else gets from a socket, or the name of the error."""
    script = ("import socket, sys\ns = socket.socket(socket.AF_UNIX)\n"
              "try:\n s.connect(sys.argv[1]); s.sendall(sys.stdin.buffer.read()); s.shutdown(1)\n"
              " print(s.makefile().read())\nexcept OSError as e: print(type(e).__name__)")
    done = subprocess.run([need_tool("/usr/bin/python3"), "-I", "-c", script, path], input=request, timeout=30,
                          capture_output=True, user=uid, group=gid, extra_groups=[], check=True, cwd="/")
    return done.stdout.decode()


def test_the_sockets_are_roots_alone(node: Node) -> None:
    node.start()
    for name in ("hook.sock", "vmpin.sock"):
        info = (node.run / name).stat()
        assert (stat.S_IMODE(info.st_mode), info.st_uid) == (0o600, 0)
        assert ask_as(NOBODY, NOBODY, node.run / name, b'{"op": "status"}\n') == "PermissionError\n"
    assert stat.S_IMODE((node.run / "spool").stat().st_mode) == 0o700
    state = node.state(node.id("a"), "web", node.bundle("web", "0"))
    assert node.hook("createRuntime", state) == b"ok\n"
    wait((node.run / "state.json").exists, "nothing was kept")
    assert stat.S_IMODE((node.run / "state.json").stat().st_mode) == 0o600
    # Should the mode be loosened by another hand, the peer's uid still tells.
    (node.run / "hook.sock").chmod(0o666)
    (node.run / "vmpin.sock").chmod(0o666)
    assert ask_as(NOBODY, NOBODY, node.run / "hook.sock",
                  node.message("createRuntime", state)) == "refused: not root\n\n"
    assert "not permitted to uid" in ask_as(NOBODY, NOBODY, node.run / "vmpin.sock", b'{"op": "unpin"}\n')
    assert "a hook message from uid=65534 was refused" in node.log()


def test_status_may_be_opened_to_a_group(node: Node) -> None:
    import grp

    group = grp.getgrnam("daemon")
    node.configure(watch={"status_group": "daemon"})
    node.start()
    info = (node.run / "vmpin.sock").stat()
    assert (stat.S_IMODE(info.st_mode), info.st_gid) == (0o660, group.gr_gid)
    assert stat.S_IMODE((node.run / "hook.sock").stat().st_mode) == 0o600
    path = node.run / "vmpin.sock"
    assert json.loads(ask_as(NOBODY, group.gr_gid, path, b'{"op": "status"}\n'))["version"] == 1
    proof = b'{"op": "proof", "since": 60}\n'
    wait(lambda: json.loads(ask_as(NOBODY, group.gr_gid, path, proof)).get("version") == 1, "it tells no proof")
    for operation in ("plan", "reconcile", "unpin"):
        told = json.loads(ask_as(NOBODY, group.gr_gid, path, b'{"op": "%s"}\n' % operation.encode()))
        assert told == {"error": f"{operation}: not permitted to uid {NOBODY}", "hint": "ask root"}
    assert ask_as(NOBODY, NOBODY, path, b'{"op": "status"}\n') == "PermissionError\n"
    assert ask_as(NOBODY, group.gr_gid, node.run / "hook.sock", b"") == "PermissionError\n"


def test_the_group_changes_at_sighup(node: Node) -> None:
    import grp

    node.start()
    assert node.watcher is not None
    path = node.run / "vmpin.sock"
    wrong = "the configuration stays as it was: watch.status_group: no group 'no-such-group'"
    for group, mode, told in (("daemon", 0o660, "configuration loaded again"), ("no-such-group", 0o660, wrong)):
        node.configure(watch={"status_group": group})
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_log(told)
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert path.stat().st_gid == grp.getgrnam("daemon").gr_gid
    node.configure(watch={"status_group": ""})
    node.watcher.send_signal(signal.SIGHUP)
    wait(lambda: stat.S_IMODE(path.stat().st_mode) == 0o600, "the socket stays open to the group")


def test_an_unknown_group_is_refused_by_name(node: Node) -> None:
    node.configure(watch={"status_group": "no-such-group"})
    done = node.cli("watch")
    assert (done.returncode, done.stdout) == (2, "")
    assert "watch.status_group: no group 'no-such-group'" in done.stderr


def test_garbage_costs_nobody_but_its_sender(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a")) as vm:
        node.start()
        good = node.state(vm.sandbox, "web", node.bundle("web", cpus[1]))
        evil = node.message("createRuntime", {**good, "id": "../../etc"})
        for raw, answer in (
                (b"", b""), (b"garbage", b"refused: "), (b"\x00\xff\n{}", b"refused: "),
                (node.message("createRuntime", b""), b"refused: "),
                (node.message("createRuntime", b"not json"), b"refused: "),
                (node.message("createRuntime", b"[" * 100_000), b"refused: "),
                (node.message("createRuntime", b"[1]"), b"refused: "), (evil, b"refused: "),
                (node.message("createRuntime", {**good, "bundle": "/a/../../etc"}), b"refused: "),
                (node.message("createRuntime", {**good, "bundle": "relative"}), b"refused: "),
                (node.message("poweroff", good), b"refused: "),
                (b"vmpin-hook/1 stage=poststop time=-1\n{}", b"refused: ")):
            assert node.send(raw).startswith(answer), raw[:60]
        assert node.send(node.message("createRuntime", b'{"id": "' + b"x" * (10 << 20) + b'"}')) in (
            b"", b"refused: more than 4198400 bytes\n")
        # Odd, but containers: their cpuset is not known.
        for number, cpuset in enumerate(("garbage", "", "7-3", "4096", "99999999", "\x1b[31m", "x," * 10000)):
            name = f"odd{number}"
            assert node.hook("createRuntime", node.state(vm.sandbox, name, node.bundle(name, cpuset))) == b"ok\n"
        gone = node.state(vm.sandbox, "nowhere", node.top / "no-such-bundle")
        assert node.hook("createRuntime", gone) == b"ok\n"
        fifo = node.bundle("fifo", None)
        (fifo / "config.json").unlink()
        os.mkfifo(fifo / "config.json")
        assert node.hook("createRuntime", node.state(vm.sandbox, "fifo", fifo)) == b"ok\n"
        socket_path = node.run / "vmpin.sock"
        for request in (b"\n", b"garbage\n", b"{}\n", b"[]\n", b'{"op": 1}\n', b'{"op": "status", "sandbox": []}\n',
                        b"[" * 60_000 + b"\n", b'{"op": "explode"}\n', b"\xff\xfe\n"):
            assert "error" in json.loads(talk(socket_path, request)), request[:40]
        assert talk(socket_path, b"x" * 200_000) in (b"", b"refused: more than 65536 bytes\n")
        node.wait_for_all(vm.pid, cpus[0])
        assert node.hook("createRuntime", good) == b"ok\n"
        node.wait_for_vcpus(vm.pid, {0: cpus[1]}, union(cpus))
        assert not node.ended()
    log = node.log()
    assert "Traceback" not in log
    assert "\x1b" not in log
    assert "config.json: linux.resources.cpu.cpus: invalid CPU list 'garbage'" in log
    assert max(map(len, log.splitlines())) < 1000


def test_slow_peers_hold_nobody_up(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})

    def seconds(vm: Qemu) -> float:
        """That others wait beside forty slow ones."""
        with contextlib.ExitStack() as stack:
            slow = []
            for number in range(40):
                peer = stack.enter_context(socket.socket(socket.AF_UNIX))
                peer.connect(str(node.run / ("hook.sock" if number % 2 else "vmpin.sock")))
                peer.sendall(b'{"op": "st' if number % 3 else b"vmpin-hook/1 sta")
                slow.append(peer)
            start = time.monotonic()
            node.container(vm.sandbox, "web", cpus[1])
            node.wait_for_all(vm.pid, cpus[1])
            assert json.loads(talk(node.run / "vmpin.sock", b'{"op": "status"}\n'))["version"] == 1
            took = time.monotonic() - start
            for peer in slow:
                peer.settimeout(PATIENCE)
                assert peer.recv(100) == b"", "it was not hung up on"
        node.gone(vm.sandbox, "web")
        node.wait_for_all(vm.pid, cpus[0])
        return took

    with Qemu(node.id("a")) as vm:
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        # A machine that is busy may hold them up: once is enough, as who waits for the slow ones always does.
        assert any(seconds(vm) < 1.5 for _ in range(4))


def test_a_client_that_goes_away_before_its_answer_does_no_harm(node: Node, cpus: tuple[str, str]) -> None:
    """Writing to it is a SIGPIPE, or EPIPE where that is ignored."""
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a")) as vm:
        node.start()
        assert node.watcher is not None
        good = node.message("createRuntime", node.state(vm.sandbox, "web", node.bundle("web", cpus[1])))
        node.watcher.send_signal(signal.SIGSTOP)
        for path, raw in ((node.run / "vmpin.sock", b'{"op": "status"}\n'), (node.run / "hook.sock", good)) * 5:
            with socket.socket(socket.AF_UNIX) as hasty:
                hasty.connect(str(path))
                hasty.sendall(raw)
        node.watcher.send_signal(signal.SIGCONT)
        node.wait_for_all(vm.pid, cpus[1])
        node.resyncs()
        assert not node.ended()
        assert "Traceback" not in node.log()


def test_a_peer_that_does_not_read_holds_nobody_up(node: Node) -> None:
    node.start()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        mute.connect(str(node.run / "vmpin.sock"))
        mute.sendall(b'{"op": "status"}\n')
        assert json.loads(talk(node.run / "vmpin.sock", b'{"op": "status"}\n'))["version"] == 1


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
        assert any("none of them is online and in the thread's cpuset cgroup" in reason
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
        assert any(reason.endswith("threads have less than was asked: their cpuset cgroup has no more")
                   for reason in status["reasons"])
        assert node.cli("verify").returncode == 1
        settled = node.log()
        node.resyncs(4)
        assert node.log() == settled, "it is set again and again"
        assert node.data("plan")["operations"] == []
        # The cgroup is given more: the kernel shows what was asked, and all is well.
        (cgroup / "cpuset.cpus").write_text(union(cpus))
        node.wait_for_all(vm.pid, union(cpus))
        wait(lambda: node.cli("verify").returncode == 0, "still not verified")


def test_a_vm_that_was_in_a_small_cgroup_before_is_left_as_it_is(node: Node, cpus: tuple[str, str]) -> None:
    with Qemu(node.id("a")) as vm:
        (node.cpuset_cgroup(cpus[1]) / "cgroup.procs").write_text(str(vm.pid))
        node.start()
        node.resyncs()
        status = node.sandbox(vm.sandbox)
        assert status["verdict"] == "degraded"
        assert all(thread["actual"] == cpus[1] for thread in status["threads"] if thread["tid"] in by_tid(vm.pid))


# Without a watcher, and giving back


def test_unpin_gives_back_the_very_masks_from_before(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2, maxcpus=4, iothreads=["io1"]) as vm:
        (iothread,) = vm.iothreads()
        os.sched_setaffinity(iothread, {int(second)})
        before = by_tid(vm.pid)
        assert len(set(before.values())) == 2
        node.start()
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, union(cpus))
        new = vm.add_vcpu()
        node.wait_for_vcpus(vm.pid, {0: first, 1: second, new: first}, union(cpus))
        assert node.stop() == 0
        node.start()
        done = node.data("unpin", vm.sandbox)
        assert {entry["outcome"] for entry in done["operations"]} == {"done"}
        after = by_tid(vm.pid)
        assert {tid: after[tid] for tid in before} == before
        assert {after[tid] for tid in after.keys() - before.keys()} == {before[vm.pid]}
        node.resyncs()
        assert by_tid(vm.pid) == after, "it was taken back"
        status = node.sandbox(vm.sandbox)
        assert (status["verdict"], status["mask"]) == ("off", None)
        assert status["reasons"] == ["unpinned by hand: `vmpin reconcile` takes it back"]
        assert node.cli("verify").returncode == 0
        node.kill()
        node.start()
        node.resyncs()
        assert by_tid(vm.pid) == after, "a restart forgot that it was unpinned"
        assert node.cli("reconcile", vm.sandbox).returncode == 0
        # Taken back as if for the first time: of equals, the highest vCPU gets the exclusive CPU.
        node.wait_for_vcpus(vm.pid, {0: first, 1: first, new: second}, union(cpus))
        assert node.stop() == 0
        assert node.cli("unpin").returncode == 0
        assert by_tid(vm.pid) == after, "without a watcher"
        assert not (node.run / "vmpin.sock").exists()


def test_reconcile_without_a_watcher_changes_nothing_twice(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2) as vm:
        for name, where in (("web", second), ("logs", first)):
            state = node.state(vm.sandbox, name, node.bundle(name, where), vm.pid)
            assert node.call_hook("createRuntime", state).wait(PATIENCE) == 0
        planned = [operation["what"] for operation in node.data("plan")["operations"]]
        assert [line for line in planned if "set vcpu 1 " in line and f"to CPUs {second}, was " in line] != []
        done = node.data("reconcile")
        assert done["vms"] == 1
        assert {entry["outcome"] for entry in done["operations"]} == {"done"}
        assert sorted(entry["what"] for entry in done["operations"]) == sorted(planned)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, union(cpus))
        assert node.data("reconcile")["operations"] == []
        assert node.cli("reconcile").stdout == "1 VM sandboxes, nothing to change\n"
        assert node.cli("plan").stdout == "nothing to do: every thread is in its place\n"
        assert node.cli("verify").returncode == 0
        assert os.listdir(node.run / "spool") == []


def test_commands_that_act_stay_away_from_a_watcher_that_does_not_answer(node: Node) -> None:
    node.start()
    assert node.watcher is not None
    node.watcher.send_signal(signal.SIGSTOP)
    try:
        def seconds() -> float:
            start = time.monotonic()
            done = node.cli("reconcile")
            assert done.returncode == 1
            assert "the watcher does not answer within 10 s" in done.stderr
            return time.monotonic() - start

        assert any(seconds() < 15 for _ in range(3))  # a busy machine takes its time to start the command, too
    finally:
        node.watcher.send_signal(signal.SIGCONT)
    (node.run / "vmpin.sock").unlink()
    done = node.cli("reconcile")
    assert done.returncode == 1
    assert "another vmpin" in done.stderr


def test_the_watcher_is_told_of_by_sd_notify(node: Node, tmp_path: Path) -> None:
    """READY when it watches, STOPPING when it ends, as Type=notify wants."""
    path = node.top / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(PATIENCE)

        def hears(word: bytes) -> bool:
            """Among others, such as what systemctl shows as the status: as many as there are."""
            deadline = time.monotonic() + PATIENCE
            while word not in listener.recv(1000):
                assert time.monotonic() < deadline, word
            return True

        watcher = subprocess.Popen([*COMMAND, "--config", str(node.config), "watch"], stderr=subprocess.DEVNULL,
                                   env={**node.environment, "NOTIFY_SOCKET": str(path)})
        try:
            assert hears(b"READY=1")
            watcher.send_signal(signal.SIGHUP)
            assert hears(b"RELOADING=1")
            assert hears(b"READY=1")
            watcher.terminate()
            assert hears(b"STOPPING=1")
            assert watcher.wait(PATIENCE) == 0
        finally:
            watcher.kill()
            watcher.wait()


def test_containers_of_a_pod_are_told_by_crios_annotations_too(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a")) as vm:
        node.start()
        bundle = node.bundle("web", cpus[1])
        state = node.state(vm.sandbox, "web", bundle, vm.pid)
        state["annotations"] = {"io.kubernetes.cri-o.ContainerType": "container",
                                "io.kubernetes.cri-o.SandboxID": vm.sandbox}
        assert node.hook("createRuntime", state) == b"ok\n"
        node.wait_for_all(vm.pid, cpus[1])
        shutil.rmtree(bundle)
        node.wait_for_all(vm.pid, cpus[0])
        assert cri("a", "b")["io.kubernetes.cri.sandbox-id"] == "a"
