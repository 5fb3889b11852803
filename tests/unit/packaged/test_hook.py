"""The hook as the runtimes run it: a real process with an empty environment, real sockets, real file systems."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import socket
import stat
import subprocess
import time
from resource import RUSAGE_CHILDREN, getrusage

import hook_process
import pytest
from hook_process import HOOK, STATE, Place, Watcher, one

place = hook_process.place
STAGES = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]


@pytest.mark.parametrize("stage", STAGES)
def test_the_state_reaches_the_watcher_unchanged(place: Place, stage: str) -> None:
    with Watcher(place.socket) as watcher:
        assert (ran := place.run(stage)).code == 0
    one(watcher.messages, stage)
    assert (ran.out, ran.err, place.kept()) == ("", "", [])


def test_the_header_has_the_time_of_the_run(place: Place) -> None:
    clocks = {"time": time.CLOCK_REALTIME, "boot": time.CLOCK_BOOTTIME}
    before = {name: time.clock_gettime_ns(clock) for name, clock in clocks.items()}
    with Watcher(place.socket) as watcher:
        place.run("poststart")
    header = watcher.messages[0].split(b"\n")[0]
    sent = dict(part.split("=") for part in header.decode().split()[2:])
    assert sent.keys() == clocks.keys()
    for name, clock in clocks.items():
        assert before[name] <= int(sent[name]) <= time.clock_gettime_ns(clock)


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--fail-closed",), 1)])
def test_what_the_watcher_refuses_is_said_and_not_kept(place: Place, flags: tuple[str, ...], code: int) -> None:
    with Watcher(place.socket, b"refused: no bundle \xff\n"):
        ran = place.run(*flags, "poststart")
    assert (ran.code, ran.err) == (code, "vmpin-hook: the watcher refused: no bundle \\xff\n")
    assert place.kept() == []


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--fail-closed",), 1)])
def test_without_a_watcher_the_message_is_kept(place: Place, flags: tuple[str, ...], code: int) -> None:
    ran = place.run(*flags, "createRuntime")
    assert ran.code == code
    assert re.fullmatch(r"vmpin-hook: .*/s: .*No such file or directory, kept in the spool\n", ran.err)
    one(place.kept(), "createRuntime")


def test_fail_closed_exits_0_when_the_watcher_says_ok(place: Place) -> None:
    with Watcher(place.socket) as watcher:
        assert place.run("--fail-closed", "poststart").code == 0
    one(watcher.messages)


def test_the_spool_and_what_is_in_it_belong_to_root_alone(place: Place) -> None:
    place.run("poststart", wrap=("sh", "-c", 'umask 0; exec "$@"', "sh"))
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (place.spool.parent, place.spool, *place.spool.iterdir())]
    assert [oct(mode) for mode in modes] == ["0o755", "0o700", "0o600"]


def test_the_name_in_the_spool_is_the_time_of_the_header(place: Place) -> None:
    place.run("poststart")
    (file,) = place.spool.iterdir()
    assert f" boot={int(file.name[:20])}\n".encode() in file.read_bytes()


def test_a_spool_without_a_place_for_it_is_one_line_and_no_failure(place: Place) -> None:
    ran = place.run("--spool", str(place.top / "no" / "run" / "spool"), "poststart")
    assert ran.code == 0
    assert re.fullmatch(r"vmpin-hook: .*, and not kept: .*No such file or directory.*\n", ran.err)


def test_a_full_spool_takes_no_more(place: Place) -> None:
    place.spool.mkdir(parents=True)
    for number in range(4096):
        (place.spool / f"{number:020}-1.hook").touch()
    ran = place.run("poststart")
    assert ran.code == 0
    assert re.fullmatch(r"vmpin-hook: .*, and not kept: .* is full \(4096 files\)\n", ran.err)
    assert len(place.kept()) == 4096


def test_large_messages_fill_the_spool_sooner(place: Place) -> None:
    """As by annotations, of which a pod's author may write 256 kB."""
    place.spool.mkdir(parents=True)
    for number in range(120):
        (place.spool / f"{number:020}-1.hook").touch()
    large = json.dumps({"id": "x", "annotations": {"a": "b" * (256 << 10)}}).encode()
    assert " is full (127 files)" not in place.run("poststart", state=large).err
    for number in range(120, 128):
        (place.spool / f"{number:020}-1.hook").touch()
    assert " is full (127 files)" in place.run("poststart", state=large).err
    assert "kept in the spool" in place.run("poststart").err


def test_a_socket_without_a_listener_is_a_watcher_away(place: Place) -> None:
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(place.socket))
    assert place.run("poststart").code == 0
    one(place.kept())


@pytest.mark.parametrize("answer", [b"", b"ok", b"okay\n", b"refused: cut off", b"x" * 100_000])
def test_any_other_answer_is_no_answer(place: Place, answer: bytes) -> None:
    with Watcher(place.socket, answer):
        assert place.run("poststart").code == 0
    one(place.kept())


@pytest.mark.parametrize("args", [(), ("bogus",), ("poststart", "poststop"), ("poststart", "--socket"),
                                  ("--deadline", "0", "poststart"), ("--deadline", "soon", "poststart"),
                                  ("--spool", "", "poststart"), ("--verbose", "poststart")])
def test_what_cannot_be_used_is_said_and_fails_only_when_asked_to(place: Place, args: tuple[str, ...]) -> None:
    with Watcher(place.socket) as watcher:
        open_, closed = place.run(*args), place.run("--fail-closed", *args)
    assert (open_.code, closed.code) == (0, 1)
    assert re.fullmatch(r"vmpin-hook: ValueError: .*, see --help\n", open_.err)
    assert (watcher.messages, place.kept()) == ([], [])


def test_help_is_short_and_names_every_option(place: Place) -> None:
    ran = place.run("--help")
    assert (ran.code, ran.err, len(ran.out.splitlines()) < 15) == (0, "", True)
    assert all(word in ran.out for word in (*STAGES, "--socket", "--spool", "--deadline", "--fail-closed"))


def test_an_interrupt_does_not_fail_the_container(place: Place) -> None:
    with Watcher(place.socket, None) as watcher:
        process = subprocess.Popen(place.argv("poststart"), stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={})
        assert process.stdin is not None
        process.stdin.write(STATE)
        process.stdin.close()
        process.stdin = None
        while not watcher.messages:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, b"vmpin-hook: KeyboardInterrupt: \n")


def test_the_hook_is_written_for_python_3_9() -> None:
    ast.parse(HOOK.read_text(), feature_version=(3, 9))
    assert os.access(HOOK, os.X_OK)


def test_the_hook_imports_nothing_that_has_to_be_read_from_disk(place: Place) -> None:
    with Watcher(place.socket):
        done = subprocess.run(["/usr/bin/python3", "-X", "importtime", "-IS", *place.argv("poststart")],
                              input=STATE, stderr=subprocess.PIPE, timeout=120, env={}, check=True)
    bare = subprocess.run(["/usr/bin/python3", "-X", "importtime", "-ISc", "pass"],
                          stderr=subprocess.PIPE, timeout=120, env={}, check=True)
    names = [{line.split("|")[-1].strip() for line in each.stderr.decode().splitlines()} for each in (done, bare)]
    assert names[0] - names[1] <= {"_socket"}


def test_the_hook_takes_no_more_than_one_and_a_half_times_an_empty_python(place: Place) -> None:
    def spent(argv: list[str]) -> tuple[float, int]:
        """Seconds of CPU, and how often it waited for something."""
        before = getrusage(RUSAGE_CHILDREN)
        subprocess.run(argv, input=STATE, env={}, check=True)
        after = getrusage(RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                after.ru_nvcsw - before.ru_nvcsw)

    with Watcher(place.socket) as watcher:
        pairs = [(spent(place.argv("poststart")), spent(["/usr/bin/python3", "-I", "-S", "-c", "pass"]))
                 for _ in range(41)]
    assert len(watcher.messages) == 41
    assert sum(hook[0] for hook, _ in pairs) < 1.5 * sum(bare[0] for _, bare in pairs)
    # Nor does it wait without need: for its input and for the answer.
    assert min(hook[1] - bare[1] for hook, bare in pairs) <= 3
