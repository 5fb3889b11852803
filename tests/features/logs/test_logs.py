"""`vmpin logs`: which lines of a log it shows, and what it says where there is none."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vmpin.cli.main import main
from vmpin.features.logs.verbs import logs

A, B, C = "a" * 64, "b" * 64, "c" * 64
LINES = [
    "12:00:00 INFO    took messages=1 from the spool op=1",
    f"12:00:00 INFO    unmanaged sandbox={A}: no container of it is known op=1",
    "12:00:01 INFO    watching vms=2 run=/run/vmpin",
    "12:00:02 INFO    hook message counted op=2",
    f"12:00:02 INFO    pinned sandbox={A} threads=9 mask=2-3 verdict=pinned pod=demo/shop op=2",
    f"12:00:02 INFO    pinned sandbox={B} threads=5 mask=4 verdict=pinned pod=demo/db op=2",
    "12:00:02 DEBUG   pass why=hook vms=2 set=14 refused=0 ms=3.0 op=2",
    "12:00:03 DEBUG   pass why=resync vms=2 set=0 refused=0 ms=3.0 op=3",
    f"12:00:04 INFO    CPUs given container={C} by=CRI cpus=5 pod=other/shop",
    f"12:00:05 INFO    received source=nri sandboxes={A},{B} pod=demo/shop,demo/db op=4",
    "12:00:09 INFO    took messages=2 from the spool op=1",
    f"12:00:10 WARNING second VMM ignored sandbox={B} pid=7: pid=8 is its VMM pod=demo/db op=2",
]


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[int]]:
    """The numbers of the lines that the command shows of LINES."""
    file = tmp_path / "log"
    file.write_text("".join(f"{line}\n" for line in LINES))

    def run(*words: str) -> list[int]:
        assert main(["--set", f"paths.run={tmp_path}", "logs", "--file", str(file), *words]) == 0
        return [LINES.index(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.mark.parametrize(("words", "numbers"), [
    ([], list(range(len(LINES)))),
    (["demo/shop"], [0, 1, 3, 4, 6, 9]),
    (["shop"], [0, 1, 3, 4, 6, 8, 9]),
    (["-n", "demo", "shop"], [0, 1, 3, 4, 6, 9]),
    (["-n", "other"], [8]),
    (["demo/*"], [0, 1, 3, 4, 5, 6, 9, 11]),
    (["db"], [3, 5, 6, 9, 11]),
    (["bbbbbb"], [3, 5, 6, 9, 11]),
    (["cccc"], [8]),
])
def test_lines_of_a_pod_those_of_its_operations_and_those_before_its_name_are_shown(
        words: list[str], numbers: list[int], shown: Callable[..., list[int]]) -> None:
    assert shown(*words) == numbers


def test_a_log_of_json_lines_is_read_too_and_can_be_limited_in_time(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    lines = [{"time": now - 7200, "level": "info", "module": "m", "message": f"pinned sandbox={A}",
              "pod": "demo/shop"},
             {"time": now - 60, "level": "error", "module": "m", "message": f"mask not set sandbox={A} \x1b[1m",
              "pod": "demo/shop", "op": 4}]
    raw = "".join(f"{json.dumps(line)}\n" for line in lines)
    for words, expected in ([], [0, 1]), (["--since", "1h"], [1]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw.encode())))
        assert main(["logs", "shop", "--file", "-", *words]) == 0
        output = capsys.readouterr().out
        assert [re.split(r"(?:INFO|ERROR) +", line)[1] for line in output.splitlines()] == [
            (f"pinned sandbox={A} pod=demo/shop", f"mask not set sandbox={A} \\x1b[1m pod=demo/shop op=4")[number]
            for number in expected]


@pytest.mark.parametrize(("words", "code", "message"), [
    (["nothing"], 1, "no such line is in"),
    (["shop", "--since", "1h"], 2, "have no date"), (["shop", "--since", "yesterday"], 2, "is not a duration")])
def test_what_cannot_be_shown_is_an_error(words: list[str], code: int, message: str, tmp_path: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log"
    file.write_text("\n".join(LINES))
    assert main(["logs", "--file", str(file), *words]) == code
    assert message in capsys.readouterr().err


def test_a_files_name_is_no_option_of_tails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-log").write_text(f"{LINES[4]}\n")
    assert main(["logs", "--file=-log"]) == 0
    assert capsys.readouterr().out == f"{LINES[4]}\n"


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--file", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_without_a_journal_the_error_names_the_ways_to_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--set", f"paths.run={tmp_path}", "logs", "shop"]) == 1
    said = capsys.readouterr().err
    assert "journalctl: No such file or directory" in said
    assert "--file FILE" in said
    assert "kubectl -n vmpin logs WATCHER_POD | vmpin logs POD --file -" in said


def test_journalctl_takes_the_arguments(tmp_path: Path) -> None:
    """Of an empty directory: it follows lines of this boot alone, of which there is no journal."""
    if (program := shutil.which("journalctl")) is None:
        pytest.skip("needs journalctl")
    for follow, said in (False, (b"", b"")), (True, (b"", b"Data from the specified boot")):
        command = [program, *logs.journal_command("vmpin.service", 1e9, follow)[1:]]
        done = subprocess.run([*command, f"--directory={tmp_path}"], capture_output=True, timeout=600, check=False)
        assert (done.stdout, done.stderr[:len(said[1])]) == said


def test_a_real_journal_is_read_and_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    writer = shutil.which("systemd-journal-remote", path=f"{os.environ['PATH']}:/usr/lib/systemd:/lib/systemd")
    reader = shutil.which("journalctl")
    if writer is None or reader is None:
        pytest.skip("needs systemd-journal-remote and journalctl")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    fields = {"__REALTIME_TIMESTAMP": f"{time.time_ns() // 1000}", "__MONOTONIC_TIMESTAMP": "1000", "_BOOT_ID": boot,
              "PRIORITY": "6", "_PID": "7"}
    journal = "".join("".join(f"{key}={value}\n" for key, value in [*fields.items(), *more]) + "\n" for more in (
        [("_SYSTEMD_UNIT", "vmpin.service"), ("MESSAGE", "took messages=1 from the spool op=2")],
        [("_SYSTEMD_UNIT", "vmpin.service"), ("MESSAGE", f"pinned sandbox={A} threads=1 pod=demo/shop op=2")],
        [("_SYSTEMD_UNIT", "other.service"), ("MESSAGE", "pinned sandbox=x pod=demo/shop op=2")]))
    at = tmp_path / "journal"
    at.mkdir()
    subprocess.run([writer, "-o", str(at / "system.journal"), "-"], input=journal.encode(), capture_output=True,
                   check=True)
    program = tmp_path / "journalctl"
    program.write_text(f'#!/bin/sh\nexec {reader} --directory={at} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    words = ["--set", f"paths.run={tmp_path}", "logs", "demo/shop"]
    expected = ["took messages=1 from the spool op=2", f"pinned sandbox={A} threads=1 pod=demo/shop op=2"]
    assert main([*words, "--since", "1h"]) == 0
    assert [line.split("INFO    ")[1] for line in capsys.readouterr().out.splitlines()] == expected
    with subprocess.Popen([sys.executable, "-m", "vmpin.cli.main", *words, "--follow"], stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().rstrip("\n").split("INFO    ")[1] for _ in expected] == expected
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


def test_the_lines_of_the_journal_are_those_of_the_watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    """As journalctl -o json prints them; another watcher has another pid."""
    def entry(pid: int, priority: int, message: object) -> str:
        return json.dumps({"MESSAGE": message, "PRIORITY": str(priority), "_PID": str(pid),
                           "__REALTIME_TIMESTAMP": "1795694400000000"})

    printed = [entry(1, 6, "Started vmpin.service"), entry(7, 6, f"pinned sandbox={A} pod=demo/shop op=2"),
               entry(8, 3, list(b"not reconciled sandbox=x\xff pod=demo/shop op=2")), entry(8, 6, "pass op=2"),
               entry(8, 6, None), "no JSON"]
    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\ncat <<'E'\n" + "\n".join(printed) + "\nE\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert main(["--set", f"paths.run={tmp_path}", "logs", "demo/shop"]) == 0
    assert [line[20:] for line in capsys.readouterr().out.splitlines()] == [
        f"INFO    pinned sandbox={A} pod=demo/shop op=2", "ERROR   not reconciled sandbox=x� pod=demo/shop op=2",
        "INFO    pass op=2"]


def test_a_journal_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\necho 'No journal files were opened due to insufficient permissions.' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert main(["--set", f"paths.run={tmp_path}", "logs", "demo/shop"]) == 1
    assert "insufficient permissions" in capsys.readouterr().err


def test_a_program_that_says_much_besides_its_lines_is_still_read(tmp_path: Path) -> None:
    """As `tail -F` does over months, at each file that replaces the log; a pipe holds 64 KiB."""
    program = tmp_path / "tail"
    program.write_text(f"#!/bin/sh\nhead -c 200000 /dev/zero >&2\necho '{LINES[4]}'\n")
    program.chmod(0o755)
    printed = subprocess.run([sys.executable, "-m", "vmpin.cli.main", "logs", "demo/shop", "--file", str(program)],
                             env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=True, timeout=60,
                             capture_output=True, text=True).stdout
    assert printed == f"{LINES[4]}\n"


def test_a_log_is_read_without_a_directory_for_temporary_files(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the watcher's container, whose root file system is read-only."""
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    monkeypatch.setattr("tempfile.tempdir", None)
    file = tmp_path / "log"
    file.write_text(f"{LINES[4]}\n")
    assert main(["logs", "demo/shop", "--file", str(file)]) == 0


def test_a_file_is_followed_also_when_it_is_emptied_or_replaced(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(f"{LINES[4]}\n")
    with subprocess.Popen([sys.executable, "-m", "vmpin.cli.main", "logs", "demo/shop", "-f", "--file", str(file)],
                          stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{LINES[4]}\n"
        with file.open("a") as more:
            more.write(f"{LINES[5]}\n{LINES[9][:20]}")
            more.flush()
            more.write(f"{LINES[9][20:]}\n")
        assert process.stdout.readline() == f"{LINES[9]}\n"
        file.write_text("")
        file.write_text(f"{LINES[4]}\n")
        assert process.stdout.readline() == f"{LINES[4]}\n"
        (tmp_path / "new").write_text(f"{LINES[9]}\n")
        (tmp_path / "new").rename(file)
        assert process.stdout.readline() == f"{LINES[9]}\n"
        process.terminate()
