"""A watcher that gives no answer: the commands say so, and those that can do without it offer --direct."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vmpin.cli import control_client
from vmpin.cli.grammar import read
from vmpin.cli.main import main
from vmpin.cli.verbs import verb_modules as ALL
from vmpin.cli.verbs import verbs_parser
from vmpin.config import loading as settings
from vmpin.errors import WatcherError, WatcherStopped

#: Each reads the node in its own process where it is asked to. `--others` comes with the feature of `vmpin isolation`.
VERBS = [words for words in (
    ["status"], ["status", "-o", "json"], ["verify"], ["plan"], ["map"], ["verify", "--others", "--seconds", "0"],
    ["top", "-o", "json", "-c", "1", "-d", "0.5"]) if ("isolation" if "--others" in words else words[0]) in ALL()]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command sets up the logging of its process, which here is that of all tests."""
    ours, root = logging.getLogger("vmpin"), logging.root
    before = ours.level, root.level, root.handlers[:]
    yield
    ours.setLevel(before[0])
    root.setLevel(before[1])
    root.handlers[:] = before[2]


@pytest.fixture
def flags(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Of a node whose watcher takes connections and hangs up, without an answer or with the test's."""
    (tmp_path / "run").mkdir()
    paths = [f"--set=paths.{key}={tmp_path / key}" for key in ("run", "kata_go", "kata_rs", "kubelet", "nri")]
    answer: bytes = getattr(request, "param", b"")

    def hang_up() -> None:
        with contextlib.suppress(OSError):
            while True:
                with listener.accept()[0] as client, contextlib.suppress(OSError):
                    if answer:
                        client.recv(65536)
                        client.sendall(answer)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "run" / "vmpin.sock"))
        listener.listen(8)
        (tmp_path / "vmpin.yaml").touch()
        thread = threading.Thread(target=hang_up)
        thread.start()
        yield ["--config", str(tmp_path / "vmpin.yaml"), *paths, "--set=watch.only=nothing-of-this-machine"]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_watcher_that_does_not_answer_is_no_watcher_that_is_not_there(tmp_path: Path) -> None:
    config = settings.load(None, {}, {"paths.run": str(tmp_path)})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(config.paths.control_socket))
        listener.listen(8)
        with pytest.raises(WatcherError, match="the watcher does not answer within 0 s") as caught:
            control_client.ask_raw(config, {"op": "about"}, deadline=0.05)
        assert caught.value.hint == "read its log: journalctl -u vmpin"
    assert control_client.ask_raw(config, {"op": "about"}) is None


def test_an_answer_that_drips_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "WHOLE", 0.2)
    config = settings.load(None, {}, {"paths.run": str(tmp_path)})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(config.paths.control_socket))
        listener.listen(8)

        def drip() -> None:
            with listener.accept()[0] as client, contextlib.suppress(OSError):
                for _ in range(600):
                    client.sendall(b"{")
                    time.sleep(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(WatcherError, match="has not ended in time"):
            control_client.ask_raw(config, {"op": "about"})
        thread.join()


@pytest.mark.parametrize(("run", "why"), [("{file}", "Not a directory"), ("{file}" + "x" * 120, "path too long")])
def test_a_place_that_can_have_no_socket_is_named(tmp_path: Path, run: str, why: str,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    place = run.format(file=tmp_path / "file")
    assert main(["--set", f"paths.run={place}", "verify"]) == 3
    printed = capsys.readouterr().err
    assert printed.startswith(f"vmpin: {place}/vmpin.sock: ")
    assert why in printed


#: A watcher's lock and socket, of a process that is stopped (SIGSTOP).
_STOPPED = """\
import fcntl, os, signal, socket, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
listener.listen(1)
print(flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.parametrize("waiting", [0, 5])
def test_a_watcher_that_is_stopped_is_named_with_the_command_that_continues_it(waiting: int, tmp_path: Path) -> None:
    """Also where the clients before took all places: the next one cannot even connect."""
    config = settings.load(None, {}, {"paths.run": str(tmp_path)})
    with subprocess.Popen([sys.executable, "-c", _STOPPED, str(config.paths.lock_file),
                           str(config.paths.control_socket)], stdout=subprocess.PIPE) as child, \
            contextlib.ExitStack() as clients:
        assert child.stdout is not None
        child.stdout.readline()
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        for _ in range(waiting):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(str(config.paths.control_socket))
        with pytest.raises(WatcherStopped) as caught:
            control_client.ask_raw(config, {"op": "about"}, has_direct=True)
        child.kill()
    assert str(caught.value) == f"the watcher (pid {child.pid}) is stopped"
    assert caught.value.hint.startswith(f"`kill -CONT {child.pid}` continues it (a service: `systemctl kill ")
    assert "--direct reads the node without it" in caught.value.hint


def test_each_verb_with_the_flag_is_tried_here() -> None:
    having = {command.name for command in read(verbs_parser([]), "vmpin").commands
              if any("--direct" in option.names for option in command.options)}
    assert having & set(ALL()) == {words[0] for words in VERBS}


def test_an_explanation_is_found_without_an_answer_too(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*flags, "status", "--explain", "shop"]) != 0
    assert "--direct reads the node without it" in capsys.readouterr().err
    assert main([*flags, "status", "--explain", "shop", "--direct"]) == 2
    assert "no VM sandbox 'shop' is on this node" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_without_an_answer_it_says_so_and_direct_does_without(flags: list[str], verb: list[str],
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*flags, *verb]) != 0
    printed = capsys.readouterr()
    assert "the watcher hung up" in printed.err
    assert "--direct reads the node without it" in printed.err
    assert main([*flags, *verb, "--direct"]) == 0
    assert "hung up" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["repin"], ["unpin", "--every"], ["unpin", "abc"]], ids=" ".join)
def test_what_acts_offers_no_way_around_the_watcher(flags: list[str], verb: list[str],
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*flags, *verb]) == 1
    printed = capsys.readouterr().err
    assert "the watcher hung up" in printed
    assert "--direct" not in printed


@pytest.mark.parametrize("flags", [
    b"\0\x1b[2J", b"1\n", b"null\n", b"[]\n", b"refused: more than 7 bytes\n", b'{"version":1,"sandboxes":[{"id":"a',
    b"{", b'{"error":}\n', b'{"error":"\xff"}\n', b'{"version":}\n', b'{"a":' * 50_000, b"{}\n",
    b'{"version":"x","sandboxes":"abc","node":5,"sources":[]}\n'], indirect=True)
@pytest.mark.parametrize("verb", [["status"], ["verify"], ["plan"], ["repin"]], ids=" ".join)
def test_an_answer_that_is_none_is_one_error(flags: list[str], verb: list[str],
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """As where the watcher is killed while it answers, or is of another version."""
    assert main([*flags, *verb]) in (1, 3 if verb == ["verify"] else 1)
    printed = capsys.readouterr()
    assert printed.err.startswith("vmpin: ")
    assert printed.err.count("\n") <= 2
    assert all(char.isprintable() or char == "\n" for char in printed.out + printed.err)


@pytest.mark.parametrize("flags", [b'{"version":1,"sandboxes":[{"id":"a'], indirect=True)
def test_half_an_answer_is_not_passed_on(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*flags, "status", "-o", "json"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "the answer is incomplete, or no watcher's: b'{\"version\":1,\"sandboxes\":[{\"id\":\"a'" in printed.err


def test_an_answer_without_an_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings.load(None, {}, {"paths.run": str(tmp_path)})
    monkeypatch.setattr(control_client, "MAX_ANSWER", 3 << 20)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(config.paths.control_socket))
        listener.listen(8)

        def send() -> None:
            with listener.accept()[0] as client, contextlib.suppress(OSError):
                while True:
                    client.sendall(b" " * 65536)

        thread = threading.Thread(target=send)
        thread.start()
        with pytest.raises(WatcherError, match="the answer has more than 3 MiB"):
            control_client.ask_raw(config, {"op": "about"})
        thread.join()


@pytest.mark.parametrize("flags", [b'{"sandboxes":"abc"}\n'], indirect=True)
def test_what_was_not_foreseen_shows_its_place_where_that_is_asked_for(
        flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([*flags, "status"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("vmpin: unexpected AttributeError: ")
    assert "VMPIN_DEBUG=1" in printed
    monkeypatch.setenv("VMPIN_DEBUG", "1")
    with pytest.raises(AttributeError):
        main([*flags, "status"])
