"""`--watch`: appended in a pipe, redrawn at a terminal; Ctrl-C ends it, and a later error does not."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vmpin.cli import repetition
from vmpin.cli.grammar import read
from vmpin.cli.main import main
from vmpin.cli.verbs import verbs_parser, without_seconds

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("VMPIN_", "LINES", "COLUMNS"))}
#: What reads, and is worth reading again.
WATCHED = {"status", "verify", "plan"}


@pytest.fixture
def empty(tmp_path: Path) -> list[str]:
    """The options of a node without VMs and without a watcher."""
    return [word for name in ("run", "kata_go", "kata_rs", "kubelet", "nri")
            for word in ("--set", f"paths.{name}={tmp_path / name}")] + [
                "--set", "watch.only=none-of-this-machine's", "--config", "/dev/null"]


@contextmanager
def started(*words: str, terminal: int | None = None, term: str = "xterm") -> Iterator[subprocess.Popen[str]]:
    """:param terminal: its standard output, else pipes."""
    with subprocess.Popen([sys.executable, "-m", "vmpin.cli.main", *words], stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE if terminal is None else terminal, stderr=subprocess.PIPE,
                          env={**ENVIRONMENT, "TERM": term}) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupted(process: subprocess.Popen[str]) -> str:
    """Ctrl-C. :returns: what standard error still had."""
    process.send_signal(signal.SIGINT)
    printed = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    return printed


def lines_until(process: subprocess.Popen[str], count: int, wanted: re.Pattern[str]) -> list[str]:
    """The lines up to the `count`th that is `wanted`."""
    assert process.stdout is not None
    lines: list[str] = []
    while sum(bool(wanted.search(line)) for line in lines) < count:
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        lines.append(line.rstrip("\n"))
    return lines


def test_the_verbs_that_read_have_it() -> None:
    verbs = {command.name for command in read(verbs_parser([]), "vmpin").commands
             if any("--watch" in option.names for option in command.options)}
    assert verbs >= WATCHED


@pytest.mark.parametrize(("typed", "meant"), [
    ("status -w shop", "status --watch=2 shop"), ("status --watch demo/shop -o wide",
                                                  "status --watch=2 demo/shop -o wide"),
    ("status -w 5 shop", "status -w 5 shop"), ("status --watch .5", "status --watch .5"),
    ("status -w -o wide", "status -w -o wide"), ("status shop -w", "status shop -w"), ("status -w3", "status -w3"),
    ("status -w 1.2.3", "status --watch=2 1.2.3")])
def test_a_pod_after_it_is_no_number_of_seconds(typed: str, meant: str) -> None:
    assert without_seconds(typed.split()) == meant.split()


@pytest.mark.parametrize("seconds", ["0", "0.05", "86401", "1e9"])
def test_seconds_have_bounds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["status", f"--watch={seconds}"])
    assert "is not a number of seconds between 0.1 and 86400" in capsys.readouterr().err


def test_in_a_pipe_each_output_has_its_time_above_it(empty: list[str]) -> None:
    with started(*empty, "status", "--watch", "0.1") as process:
        lines = lines_until(process, 3, STAMP)
        assert interrupted(process) == ""
    stamps = [at for at, line in enumerate(lines) if STAMP.fullmatch(line)]
    assert stamps[0] == 0
    assert lines[stamps[0] + 1:stamps[1]] == lines[stamps[1] + 1:stamps[2]] != []


def test_as_json_each_output_is_a_line_and_as_yaml_a_document(empty: list[str]) -> None:
    with started(*empty, "status", "-w", "0.1", "-o", "json") as process:
        lines = lines_until(process, 2, re.compile("."))
        assert interrupted(process) == ""
    assert [json.loads(line)["sandboxes"] for line in lines] == [[], []]
    with started(*empty, "status", "-w", "0.1", "-o", "yaml") as process:
        lines = lines_until(process, 2, re.compile(rf"^--- # {STAMP.pattern}$"))
        assert interrupted(process) == ""
    assert "sandboxes: []" in lines


def test_at_a_terminal_a_page_is_drawn_over_the_one_before(empty: list[str]) -> None:
    ours, its = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen, started(*empty, "verify", "-w", "0.1", terminal=its) as process:
        os.close(its)
        seen = b""
        while seen.count(b"\x1b[H") < 3:
            seen += screen.read(4096)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # EIO, once it has ended
            while True:
                seen += screen.read(4096)
        assert process.wait(120) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""
    text = seen.decode()
    assert text.startswith("\x1b[2J\x1b[H")
    assert text.count("\x1b[2J") == 1, "cleared once: else it flickers"
    pages = text.split("\x1b[H")[1:]
    assert re.match(rf"every 0.1 s: {re.escape(os.uname().nodename)}, {STAMP.pattern}\x1b\[K\r\n", pages[0])
    assert "no VM sandbox runs on this node" in pages[1]
    assert pages[1].endswith("\x1b[J")
    assert pages[-1].endswith("\r\n"), "the prompt gets a line of its own"


def test_at_a_terminal_that_cannot_redraw_pages_are_appended(empty: list[str]) -> None:
    ours, its = pty.openpty()
    words, seen = [*empty, "verify", "-w", "0.1"], b""
    with os.fdopen(ours, "rb", buffering=0) as screen, started(*words, terminal=its, term="dumb"):
        os.close(its)
        while len(STAMP.findall(seen.decode())) < 3:
            seen += screen.read(4096)
    assert b"\x1b" not in seen


def test_what_is_longer_than_the_screen_is_cut_and_counted(monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((80, 6)))
    for count, last in (5, "line 4"), (6, "… 2 more lines"), (100, "… 96 more lines"):
        repetition.draw("".join(f"line {number}\n" for number in range(count)), clear=False)
        drawn = capsys.readouterr().out.removeprefix("\x1b[H").removesuffix("\x1b[J").splitlines()
        assert len(drawn) == 5
        assert drawn[-1] == f"{last}\x1b[K"


def test_an_error_ends_it_at_first_and_is_shown_later(empty: list[str], tmp_path: Path) -> None:
    """A watcher that hangs up, as one does that is restarted."""
    (tmp_path / "run").mkdir()

    def hang_up(listener: socket.socket) -> None:
        listener.bind(str(tmp_path / "run/vmpin.sock"))
        listener.listen()
        listener.settimeout(120)
        listener.accept()[0].close()

    with socket.socket(socket.AF_UNIX) as listener, started(*empty, "status", "-w", "0.1") as process:
        hang_up(listener)
        assert process.stdout is not None
        assert process.stdout.read() == ""
        assert process.stderr is not None
        assert "hung up" in process.stderr.read()
        assert process.wait(120) == 1
    (tmp_path / "run/vmpin.sock").unlink()
    with socket.socket(socket.AF_UNIX) as listener, started(*empty, "status", "-w", "0.1") as process:
        lines_until(process, 2, STAMP)
        hang_up(listener)
        assert process.stderr is not None
        assert re.match(rf"{STAMP.pattern} vmpin: .*: the watcher hung up", process.stderr.readline())
        listener.close()
        lines_until(process, 3, STAMP)
        interrupted(process)


def test_a_plan_is_shown_again(empty: list[str]) -> None:
    with started(*empty, "plan", "--watch", "0.1") as process:
        lines = lines_until(process, 3, STAMP)
        interrupted(process)
    assert lines.count("nothing to do: every thread is in place") == 2
