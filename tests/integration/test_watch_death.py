"""Kills at any moment, full disks and damaged files: the watcher loses nothing that a hook reported."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from need import need_unshare
from process_masks import by_tid
from real_node import Node, talk
from real_qemu import Qemu
from waiting import PATIENCE, wait

pytest_plugins = ["given"]
pytestmark = pytest.mark.root


# Death


def test_no_kill_at_any_moment_loses_a_hook_message(node: Node, cpus: tuple[str, str]) -> None:
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
                # Its bundle stays: only the hook's message reports its end.
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
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)

        def known() -> dict[str, str]:
            return {entry["name"]: entry["cpuset"] for entry in node.sandbox(vm.sandbox)["containers"]}

        wanted = {name: first if name == "logs" else second for name in alive}
        wait(lambda: known() == wanted, lambda: f"{known()} is not {wanted}")
        assert node.cli("unpin", "--every").returncode == 0
        assert by_tid(vm.pid) == before


def test_a_container_whose_end_was_not_reported_before_a_kill_has_ended(node: Node, cpus: tuple[str, str]) -> None:
    """Its message is all there is: the state file is written a moment later, and the bundle is gone by then."""
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a")) as vm:
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        for number in range(30):
            name = f"web{number}"
            bundle = node.bundle(name, cpus[1])
            assert node.hook("createRuntime", node.state(vm.sandbox, name, bundle, vm.pid)) == b"ok\n"
            node.kill()
            spooled = os.listdir(node.run / "spool")
            shutil.rmtree(bundle)
            node.start()
            if spooled:  # else the state was saved before the kill
                break
        assert len(spooled) == 1
        node.resyncs()
        wait(lambda: node.sandbox(vm.sandbox)["containers"] == [], lambda: node.sandbox(vm.sandbox))
        node.wait_for_all(vm.pid, cpus[0])


def test_a_vmm_that_is_killed_between_two_steps_affects_no_other(node: Node, cpus: tuple[str, str]) -> None:
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


@pytest.mark.parametrize("ended", ["before it set a mask", "after that"])
def test_masks_from_before_are_known_unless_a_watcher_without_a_record_may_have_set_them(
        node: Node, cpus: tuple[str, str], ended: str) -> None:
    """A watcher that ends between its lock and its first record has set none."""
    first, second = cpus
    node.configure(node={"shared_pool": first})
    with Qemu(node.id("a"), vcpus=2) as vm:
        for tid in vm.tids():
            os.sched_setaffinity(tid, {int(second)})
        subprocess.run([sys.executable, "-c", "import os, sys; from pathlib import Path; from vmpin.host import lock\n"
                        "path = Path(sys.argv[1])\nlock.Lock(path).__enter__()\n"
                        "if sys.argv[2] == 'after that': lock.note_use(path)\nos._exit(9)",
                        str(node.run / "lock"), ended], check=False, timeout=PATIENCE)
        node.start()
        node.container(vm.sandbox, "web", second)
        node.container(vm.sandbox, "logs", first)
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        node.kill()
        assert node.cli("unpin", "--all").returncode == 0
        assert set(by_tid(vm.pid).values()) == (
            {frozenset({int(second)})} if ended == "before it set a mask" else {frozenset(os.sched_getaffinity(0))})


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
        wait((node.run / "isolation").exists, "no samples are taken")
        assert node.stop(number) == 0
        assert sorted(os.listdir(node.run)) == ["isolation", "lock", "originals.json", "proof", "spool", "state.json",
                                                "status"]
        assert os.listdir(node.run / "spool") == []
        assert "stopped; threads keep their masks" in node.log()
        node.wait_for_all(vm.pid, cpus[1])
        done = node.cli("status")
        assert "no watcher runs" in done.stdout
        node.start()
        node.resyncs()
        node.wait_for_all(vm.pid, cpus[1])
        assert "pinned" not in node.last_log(), "a restart changes nothing"


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
            assert f"LOST STATE: {file}: " in node.cli("status").stdout
            node.wait_for_all(vm.pid, cpus[0])
            assert node.stop() == 0
        state = json.loads(file.read_bytes())
        assert state["body"]["sandboxes"].keys() == {vm.sandbox}


def test_a_full_disk_is_reported_once_and_pins_go_on(node: Node, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(node={"shared_pool": first})
    node.run.mkdir()
    node.wrap = [*need_unshare("-m", "--propagation", "private"), "sh", "-c",
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
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        node.wait_for_log(f" path={node.run}/spool: No space left on device")
        node.wait_for_log("the state cannot be saved: No space left on device")
        for words in ["status"], ["status", vm.sandbox]:
            assert f"NOT SAVED: {node.run}/state.json: the state cannot be saved: No space left on device; until" in (
                " ".join(node.cli("--set", f"paths.run={inside}", *words).stdout.split()))
        node.resyncs()
        log = node.log()
        assert log.count("hook message not spooled") == 1
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
    node.wrap = [*need_unshare("-m", "--propagation", "private"), "sh", "-c",
                 f"mount -t tmpfs -o nr_inodes=2 vmpin-test {node.run} && touch {node.run}/lock && "
                 'exec "$@"', "sh"]
    node.start(wait_until_ready=False)
    assert node.watcher is not None
    assert node.watcher.wait(120) == 1
    assert "No space left on device" in node.log()
    assert "Traceback" not in node.log()
