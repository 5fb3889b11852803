"""The hook as the runtimes run it: a real process with an empty environment, real sockets, real file systems."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import os
import re
import select
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest
from need import need_root, need_tool

from vmpin.install import data_files

HOOK = data_files.path("hooks/vmpin-hook")
STAGES = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
#: Not UTF-8, with a NUL, newlines and no newline at the end: the hook must not care.
STATE = b'{"id":"c1","annotations":{"a":"\xff\xfe\x00"}}\n\r\n x'
#: Of a hook that is to come to it, in seconds and as an option; the others have as long as a busy machine may take.
DEADLINE = 0.15
SHORT = "--deadline", "150"
KEPT = "vmpin-hook: no answer within 150 ms, kept in the spool\n"
UNREAD = "vmpin-hook: standard input was not closed in time\n"
HANGS = "vmpin-hook: the spool or standard error hangs\n"


class Watcher:
    """Listens, reads whole messages and gives each the same answer; None is to hold the connection, mute.

    :param late: not before whoever asked has gone.
    """

    def __init__(self, path: Path, answer: bytes | None = b"ok\n", late: bool = False) -> None:
        self.messages: list[bytes] = []
        self._answer = answer
        self._late = late
        self._held: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (self._listener, *self._held):
            each.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                connection, _ = self._listener.accept()
                self._held.append(connection)
                self.messages.append(b"".join(iter(lambda c=connection: c.recv(65536), b"")))  # type: ignore[misc]
                if self._answer is None:
                    continue
                if self._late:
                    left = select.poll()
                    left.register(connection, 0)  # POLLHUP: both directions are closed
                    left.poll()
                with contextlib.suppress(BrokenPipeError):
                    connection.sendall(self._answer)
                connection.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    seconds: float


@dataclass(frozen=True)
class Place:
    """A directory with a socket path and a spool, and the hook pointed at them."""

    top: Path

    @property
    def socket(self) -> Path:
        return self.top / "s"

    @property
    def spool(self) -> Path:
        return self.top / "vmpin" / "spool"

    def argv(self, *args: str) -> list[str]:
        return [str(HOOK), "--socket", str(self.socket), "--spool", str(self.spool), "--deadline", "20000", *args]

    def run(self, *args: str, state: bytes = STATE, wrap: tuple[str, ...] = ()) -> Ran:
        start = time.monotonic()
        done = subprocess.run([*wrap, *self.argv(*args)], input=state, capture_output=True, timeout=120, env={})
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode(), time.monotonic() - start)

    def kept(self) -> list[bytes]:
        """The whole content of the spool; anything but .hook files in it is a failure."""
        files = sorted(self.spool.iterdir()) if self.spool.exists() else []
        assert [each for each in files if not re.fullmatch(r"[0-9]{20}-[0-9]+\.hook", each.name)] == []
        return [each.read_bytes() for each in files]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    need_tool("/usr/bin/python3")
    return Place(tmp_path)


def one(messages: list[bytes], stage: str = "poststart", state: bytes = STATE) -> None:
    assert len(messages) == 1
    header, _, rest = messages[0].partition(b"\n")
    assert re.fullmatch(rf"vmpin-hook/1 stage={stage} time=[0-9]{{19}} boot=[0-9]+", header.decode())
    assert rest == state


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
    """A pipe with `data` in it that nobody closes."""
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
    unshare = need_tool("unshare")
    place.spool.mkdir(parents=True)
    script = f'mount -t tmpfs -o size=8k tmpfs {place.spool} || exit 9; "$@"; code=$?; ls -A {place.spool}; exit $code'
    wrap = (unshare, "-m", "--propagation", "private", "sh", "-c", script, "sh")
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
