"""What the hook does with its deadline, and with a state, disk or standard stream that hangs or is full."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator

import hook_process
import pytest
from hook_process import STATE, Place, Watcher, one
from need import need_root, need_tool, need_unshare

place = hook_process.place

#: Of a hook that is to come to it, in seconds and as an option; the others have as long as a busy machine may take.
DEADLINE = 0.15
SHORT = "--deadline", "150"
KEPT = "vmpin-hook: no answer within 150 ms, kept in the spool\n"
UNREAD = "vmpin-hook: standard input was not closed in time\n"
HANGS = "vmpin-hook: the spool or standard error hangs\n"


def in_time(attempt: Callable[[], bool]) -> None:
    """At its deadline the hook has GRACE, 20 ms, for the spool and its last words, and a busy machine may take them.
    So each attempt has to end well, and one of them undisturbed."""
    assert any(attempt() for _ in range(60))


def kept_at_the_deadline(place: Place, state: bytes = STATE) -> None:
    file = place.top / "state"  # all there at once, so that none of the deadline is spent on it
    file.write_bytes(state)

    def attempt() -> bool:
        ran = place.run(*SHORT, "poststart", state=b"", wrap=("sh", "-c", f'exec "$@" <{file}', "sh"))
        assert (ran.code, ran.seconds >= DEADLINE) == (0, True)
        assert re.fullmatch(f"({KEPT}|{UNREAD})?({HANGS})?", ran.err)
        if (kept := place.kept()) or KEPT in ran.err:
            one(kept, state=state)
            next(place.spool.iterdir()).unlink()
        return ran.err == KEPT

    in_time(attempt)


def test_a_mute_watcher_costs_the_deadline_and_no_more(place: Place) -> None:
    with Watcher(place.socket, None):
        kept_at_the_deadline(place)


def test_a_watcher_that_answers_too_late_is_mute(place: Place) -> None:
    with Watcher(place.socket, late=True):
        kept_at_the_deadline(place)


def test_a_watcher_that_does_not_even_read_is_mute(place: Place) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.socket))
        listener.listen()
        kept_at_the_deadline(place, os.urandom(3 << 20))


def test_a_backlog_that_is_full_is_a_mute_watcher(place: Place) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(place.socket))
        listener.listen(0)
        waiting.connect(str(place.socket))
        kept_at_the_deadline(place)


@contextlib.contextmanager
def never_ending(data: bytes) -> Iterator[int]:
    """A pipe with `data` in it that is never closed."""
    reading, writing = os.pipe()
    os.write(writing, data)
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def test_a_state_that_never_ends_is_neither_sent_nor_kept(place: Place) -> None:
    def attempt() -> bool:
        done = subprocess.run(place.argv(*SHORT, "poststart"), stdin=stdin, stderr=subprocess.PIPE, timeout=120,
                              env={})
        assert (done.returncode, place.kept()) == (0, [])
        return done.stderr == UNREAD.encode()

    with Watcher(place.socket) as watcher, never_ending(STATE) as stdin:
        in_time(attempt)
    assert watcher.messages == []


def test_a_runtime_that_blocks_signals_does_not_stop_the_deadline(place: Place) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        with Watcher(place.socket, None):
            kept_at_the_deadline(place)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_the_largest_state_arrives_whole(place: Place) -> None:
    state = os.urandom(4 << 20)
    with Watcher(place.socket) as watcher:
        assert place.run("poststart", state=state).code == 0
    one(watcher.messages, state=state)


@pytest.mark.parametrize("size", [0, (4 << 20) + 1, 10_000_000])
def test_no_state_and_a_huge_one_are_one_line_and_not_sent(place: Place, size: int) -> None:
    with Watcher(place.socket) as watcher:
        ran = place.run("poststart", state=b"x" * size)
    assert ran.code == 0
    assert re.fullmatch(rf"vmpin-hook: .* is {size} bytes long, not 1 to 4194304: not sent\n", ran.err)
    assert (watcher.messages, place.kept()) == ([], [])


@pytest.mark.root
def test_a_full_disk_is_one_line_and_leaves_nothing_behind(place: Place) -> None:
    need_root()
    place.spool.mkdir(parents=True)
    script = f'mount -t tmpfs -o size=8k tmpfs {place.spool} || exit 9; "$@"; code=$?; ls -A {place.spool}; exit $code'
    wrap = (*need_unshare("-m", "--propagation", "private"), "sh", "-c", script, "sh")
    ran = place.run("poststart", state=b"x" * 100_000, wrap=wrap)
    assert (ran.code, ran.out) == (0, "")
    assert re.fullmatch(r"vmpin-hook: .*, and not kept: .*No space left on device.*\n", ran.err)


def test_a_file_cut_short_does_not_stay(place: Place) -> None:
    ran = place.run("poststart", wrap=(need_tool("prlimit"), "--fsize=20"))
    assert (ran.code, place.kept()) == (0, [])
    assert re.fullmatch(r"vmpin-hook: .*, and not kept: .*File too large.*\n", ran.err)


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"])
@pytest.mark.parametrize("answer", [b"ok\n", b"refused: no\n", b""])
def test_closed_standard_streams_harm_nothing(place: Place, closed: str, answer: bytes) -> None:
    with Watcher(place.socket, answer) as watcher:
        ran = place.run("poststart", wrap=("sh", "-c", f'exec "$@" {closed}', "sh"))
    assert (ran.code, ran.out) == (0, "")
    if "0" in closed:
        assert (watcher.messages, place.kept()) == ([], [])
    else:
        one(watcher.messages)  # and no line for stderr in it


def test_a_standard_error_without_a_reader_harms_nothing(place: Place) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(place.argv("poststart"), input=STATE, stderr=writing, timeout=120, env={})
    finally:
        os.close(writing)
    assert done.returncode == 0
    one(place.kept())


def test_a_standard_error_that_is_full_costs_the_deadline_and_no_more(place: Place) -> None:
    def attempt() -> bool:
        stdin.seek(0)
        done = subprocess.run(place.argv(*SHORT, "poststart"), stdin=stdin, stderr=writing, timeout=120, env={})
        assert done.returncode == 0
        if kept := place.kept():
            one(kept)
            next(place.spool.iterdir()).unlink()
        return bool(kept)

    reading, writing = os.pipe()
    try:
        os.write(writing, b"x" * fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ))
        with tempfile.TemporaryFile() as stdin:
            stdin.write(STATE)
            in_time(attempt)
    finally:
        os.close(reading)
        os.close(writing)
