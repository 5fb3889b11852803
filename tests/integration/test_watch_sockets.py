"""The watcher's sockets: who may ask what, and peers that send garbage, nothing, or do not read."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest
from need import need_tool
from real_node import Node, talk
from real_qemu import Qemu
from removal import remove_in_use
from waiting import PATIENCE, wait

pytest_plugins = ["given"]
pytestmark = pytest.mark.root

#: Some user who is not root, in a group that is given nothing.
OTHER_UID = 65534


def ask_as(uid: int, gid: int, path: Path, request: bytes) -> str:
    """What another user gets from a socket, or the name of the error."""
    script = ("import socket, sys\ns = socket.socket(socket.AF_UNIX)\n"
              "try:\n s.connect(sys.argv[1]); s.sendall(sys.stdin.buffer.read()); s.shutdown(1)\n"
              " print(s.makefile().read())\nexcept OSError as e: print(type(e).__name__)")
    done = subprocess.run([need_tool("/usr/bin/python3"), "-I", "-c", script, path], input=request, timeout=120,
                          capture_output=True, user=uid, group=gid, extra_groups=[], check=True, cwd="/")
    return done.stdout.decode()


def test_the_sockets_are_roots_alone(node: Node) -> None:
    node.start()
    for name in ("hook.sock", "vmpin.sock"):
        info = (node.run / name).stat()
        assert (stat.S_IMODE(info.st_mode), info.st_uid) == (0o600, 0)
        assert ask_as(OTHER_UID, OTHER_UID, node.run / name, b'{"op": "status"}\n') == "PermissionError\n"
    assert stat.S_IMODE((node.run / "spool").stat().st_mode) == 0o700
    state = node.state(node.id("a"), "web", node.bundle("web", "0"))
    assert node.hook("createRuntime", state) == b"ok\n"
    wait((node.run / "state.json").exists, "nothing was kept")
    assert stat.S_IMODE((node.run / "state.json").stat().st_mode) == 0o600
    # Should the mode be loosened by another hand, the peer's uid is still checked.
    (node.run / "hook.sock").chmod(0o666)
    (node.run / "vmpin.sock").chmod(0o666)
    assert ask_as(OTHER_UID, OTHER_UID, node.run / "hook.sock",
                  node.message("createRuntime", state)) == "refused: not root\n\n"
    assert "not permitted to uid" in ask_as(OTHER_UID, OTHER_UID, node.run / "vmpin.sock", b'{"op": "unpin"}\n')
    assert "hook message refused: from uid=65534" in node.log()


def test_status_may_be_opened_to_a_group(node: Node) -> None:
    import grp

    group = grp.getgrnam("daemon")
    node.configure(watch={"status_group": "daemon"})
    node.start()
    info = (node.run / "vmpin.sock").stat()
    assert (stat.S_IMODE(info.st_mode), info.st_gid) == (0o660, group.gr_gid)
    assert stat.S_IMODE((node.run / "hook.sock").stat().st_mode) == 0o600
    path = node.run / "vmpin.sock"
    assert json.loads(ask_as(OTHER_UID, group.gr_gid, path, b'{"op": "status"}\n'))["version"] == 1
    proof = b'{"op": "proof", "since": 60}\n'
    wait(lambda: json.loads(ask_as(OTHER_UID, group.gr_gid, path, proof)).get("version") == 1, "no proof comes")
    for operation in ("plan", "reconcile", "unpin", "pods", "reporter"):
        answer_of = json.loads(ask_as(OTHER_UID, group.gr_gid, path, b'{"op": "%s"}\n' % operation.encode()))
        assert answer_of == {"error": f"{operation}: not permitted to uid {OTHER_UID}", "hint": "ask root"}
    assert ask_as(OTHER_UID, OTHER_UID, path, b'{"op": "status"}\n') == "PermissionError\n"
    assert ask_as(OTHER_UID, group.gr_gid, node.run / "hook.sock", b"") == "PermissionError\n"


def test_the_status_socket_answers_what_changes_nothing_to_a_group_without_a_name(node: Node) -> None:
    """As a container's: its directory is all that `vmpin reporter` has of the host."""
    node.configure(watch={"status_group": 65532})
    node.start()
    path = node.run / "status" / "vmpin.sock"
    assert os.listdir(path.parent) == ["vmpin.sock"]
    assert (stat.S_IMODE(path.parent.stat().st_mode), path.parent.stat().st_uid) == (0o755, 0)
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, 65532)
    assert json.loads(ask_as(65532, 65532, path, b'{"op": "status"}\n'))["version"] == 1
    for uid, gid in ((65532, 65532), (0, 0)):
        for operation in ("about", "plan", "reconcile", "unpin", "unpinning", "nonsense"):
            answer = json.loads(ask_as(uid, gid, path, b'{"op": "%s"}\n' % operation.encode()))
            assert answer["error"] == f"{operation}: not answered on this socket"
    assert ask_as(OTHER_UID, OTHER_UID, path, b'{"op": "status"}\n') == "PermissionError\n"
    path.chmod(0o666)  # should the mode be loosened, the kernel's word on the peer remains
    assert ask_as(OTHER_UID, OTHER_UID, path, b'{"op": "status"}\n') in (
        "\n", "ConnectionResetError\n", "BrokenPipeError\n")
    node.stop()
    assert os.listdir(path.parent) == []


def test_the_group_changes_at_sighup(node: Node) -> None:
    import grp

    node.start()
    assert node.watcher is not None
    path = node.run / "vmpin.sock"
    wrong = "configuration not loaded: watch.status_group: no group 'no-such-group'"
    for group, mode, answer_of in (("daemon", 0o660, "configuration loaded again"), ("no-such-group", 0o660, wrong)):
        node.configure(watch={"status_group": group})
        node.watcher.send_signal(signal.SIGHUP)
        node.wait_for_log(answer_of)
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


def test_garbage_affects_its_sender_alone(node: Node, cpus: tuple[str, str]) -> None:
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
                (b"vmpin-hook/1 stage=poststop boot=-1\n{}", b"refused: ")):
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
        node.wait_for_vcpus(vm.pid, {0: cpus[1]}, cpus[0])
        assert not node.ended()
    log = node.log()
    assert "Traceback" not in log
    assert "\x1b" not in log
    assert "config.json: linux.resources.cpu.cpus: invalid CPU list 'garbage'" in log
    assert max(map(len, log.splitlines())) < 1000


def test_slow_peers_delay_no_other(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]})

    def served_before_them(vm: Qemu) -> bool:
        """Others, before all of forty slow ones are hung up on."""
        with contextlib.ExitStack() as stack:
            slow = []
            for number in range(40):
                peer = stack.enter_context(socket.socket(socket.AF_UNIX))
                peer.connect(str(node.run / ("hook.sock" if number % 2 else "vmpin.sock")))
                peer.sendall(b'{"op": "st' if number % 3 else b"vmpin-hook/1 sta")
                slow.append(peer)
            node.container(vm.sandbox, "web", cpus[1])
            node.wait_for_all(vm.pid, cpus[1])
            assert json.loads(talk(node.run / "vmpin.sock", b'{"op": "status"}\n'))["version"] == 1
            there = select.poll()
            for peer in slow:
                there.register(peer, select.POLLIN)
            first = len(there.poll(0)) < len(slow)
            for peer in slow:
                peer.settimeout(PATIENCE)
                assert peer.recv(100) == b"", "it was not hung up on"
        node.gone(vm.sandbox, "web")
        node.wait_for_all(vm.pid, cpus[0])
        return first

    with Qemu(node.id("a")) as vm:
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        # A machine that is busy may hold them up: once is enough, as who waits for the slow ones always does.
        assert any(served_before_them(vm) for _ in range(20))


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


def test_a_peer_that_does_not_read_delays_no_other(node: Node) -> None:
    node.start()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        mute.connect(str(node.run / "vmpin.sock"))
        mute.sendall(b'{"op": "status"}\n')
        assert json.loads(talk(node.run / "vmpin.sock", b'{"op": "status"}\n'))["version"] == 1


# --- the run directory goes ------------------------------------------------------------------------------------------

def test_a_removed_run_directory_comes_back_with_all_that_is_in_it(node: Node, cpus: tuple[str, str]) -> None:
    node.configure(node={"shared_pool": cpus[0]}, metrics={"address": f"unix:{node.run}/metrics.sock"})
    with Qemu(node.id("a")) as vm:
        node.start()
        node.container(vm.sandbox, "web", cpus[1], vm.pid)
        node.wait_for_all(vm.pid, cpus[1])
        wait((node.run / "state.json").exists, "nothing was kept")
        remove_in_use(node.run)
        for name in ("hook.sock", "vmpin.sock", "metrics.sock", "state.json", "spool", "lock"):
            wait((node.run / name).exists, f"{name} does not come back: {node.log()}")
        assert stat.S_IMODE(node.run.stat().st_mode) == 0o755
        assert node.status()["watcher"] == getattr(node.watcher, "pid", None)
        node.container(vm.sandbox, "db", cpus[0], vm.pid)
        wait(lambda: {each["name"] for each in node.sandbox(vm.sandbox)["containers"]} == {"web", "db"}, node.log)
        # What only the hook said is kept over a restart.
        wait(lambda: not list((node.run / "spool").iterdir()), "the spool is not taken in")
        assert node.stop() == 0
        assert not (node.run / "hook.sock").exists()
        node.start()
        assert {each["name"] for each in node.sandbox(vm.sandbox)["containers"]} == {"web", "db"}


def test_a_run_directory_that_cannot_be_made_is_tried_again(node: Node, cpus: tuple[str, str]) -> None:
    """Not even the lock can be taken again: that is not another watcher's doing, and what runs is kept in place."""
    node.configure(node={"shared_pool": cpus[0]})
    with Qemu(node.id("a")) as vm:
        node.start()
        node.wait_for_all(vm.pid, cpus[0])
        node.run.rename(node.top / "away")
        node.run.write_text("in the way")
        node.wait_for_log("run directory cannot be created again")
        os.sched_setaffinity(vm.pid, {int(cpus[1])})
        node.wait_for_all(vm.pid, cpus[0])
        assert not node.ended()
        node.run.unlink()
        wait((node.run / "hook.sock").exists, node.log)
        wait((node.run / "vmpin.sock").exists, node.log)
        assert node.status()["watcher"] == getattr(node.watcher, "pid", None)
        assert "is another watcher's now" not in node.log()


def test_of_two_watchers_in_one_directory_the_one_whose_lock_was_removed_ends(node: Node) -> None:
    node.configure(watch={"resync_seconds": 600})
    node.start()
    first, node.watcher = node.watcher, None
    assert first is not None
    try:
        first.send_signal(signal.SIGSTOP)  # else it may notice before the other has started
        remove_in_use(node.run)
        node.start()
        assert node.status()["watcher"] == getattr(node.watcher, "pid", None)
        first.send_signal(signal.SIGHUP)  # which reads everything again
        first.send_signal(signal.SIGCONT)
        assert first.wait(PATIENCE) == 1
    finally:
        first.kill()
        first.wait()
    assert "the run directory was removed, and another watcher has it now" in node.log()
    # It has touched nothing of the other's.
    assert node.status()["watcher"] == getattr(node.watcher, "pid", None)
    assert node.hook("createRuntime", node.state(node.id("a"), "web", node.bundle("web", "0"))) == b"ok\n"
    assert node.stop() == 0
