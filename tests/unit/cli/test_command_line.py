"""What a command line may name, and what it may be started with: directories, files, standard streams that are closed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from vmpin.cli.main import main
from vmpin.cli.output import print_data, print_markdown, table
from vmpin.errors import UsageError
from vmpin.features.common.option_values import directory, new_file

pytest_plugins = ["given_unit"]

COMMAND = [sys.executable, "-m", "vmpin.cli.main"]
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("VMPIN_")}


def started(how: str, *args: str) -> subprocess.CompletedProcess[str]:
    """A command that needs no node, with streams closed as a shell does."""
    return subprocess.run(["sh", "-c", f'exec "$@" {how}', "sh", *COMMAND, *args], env=ENVIRONMENT,
                          capture_output=True, text=True, timeout=120)


# Directories


@pytest.mark.parametrize(("typed", "meant"), [
    ("other", "other"), ("other/", "other"), ("./other", "other"), ("other/../spec", "spec"), ("link", "link"),
    ("link/../spec", "other/spec"), ("none/..", "."), (".", ".")])
def test_a_directory_is_what_the_kernel_takes_it_for(here: Path, typed: str, meant: str) -> None:
    assert directory(typed) == here / meant
    assert directory(f"{here}/{typed}") == here / meant


def test_an_empty_path_is_not_the_current_directory(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="names no directory"):
        directory("")
    before = sorted(here.iterdir())
    assert main(["--config", "", "config"]) == 2, "the default file was not asked for"
    assert capsys.readouterr().out == ""
    assert sorted(here.iterdir()) == before


# Files


@pytest.mark.parametrize("name", ["", ".", "..", "/", "none/", "none/.", "none/..", "other", "other/", "link"])
def test_a_directorys_name_is_no_file_to_write(here: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(repr(name))} names no file to write"):
        new_file(name)


@pytest.mark.parametrize("name", ["new", "./new", "other/../new", "none/new", "link/new", "spec.json", "-"])
def test_any_other_name_is(here: Path, name: str) -> None:
    assert new_file(name) == name


def test_standard_output_is_meant_where_a_directory_has_its_name(here: Path) -> None:
    (here / "-").mkdir()
    assert new_file("-") == "-"


# Streams


@pytest.mark.parametrize("how", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_what_was_started_with_closed_streams_ends_as_with_open_ones(how: str, output: str) -> None:
    done = started(how, "--config", "/dev/null", "config", "-o", output)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (" >&-" not in f" {how}")


def test_an_error_is_not_printed_among_the_output() -> None:
    done = started("2>&-", "--config", "/nonexistent", "config")
    assert (done.returncode, done.stdout) == (2, "")
    assert started("2>&-", "nonsense").stdout == ""


def test_an_error_that_repeats_an_argument_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "/nonexistent/\x1b[31mred", "config"]) == 2
    assert main(["--config", "/dev/null", "--set", "x\x1b]0;t\x07=1", "config"]) == 2
    printed = capsys.readouterr().err
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert printed.startswith("vmpin: /nonexistent/\\x1b[31mred: ")
    assert printed.count("\n") == 3


#: What the streams' numbers lead to, in a program and in one that it starts; and the number of the next file opened.
_CHILD = """\
import os, sys
found = [os.readlink(f"/proc/self/fd/{fd}") if os.path.lexists(f"/proc/self/fd/{fd}") else None for fd in range(3)]
with open(sys.argv[1], "w") as file:
    print(*found, file=file)
"""
_PARENT = f"""\
import os, subprocess, sys
from vmpin.cli.main import main
main(["--config", "/dev/null", "config"])
subprocess.run([sys.executable, "-c", {_CHILD!r}, sys.argv[1]])
opened = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
os.write(opened, str(opened > 2).encode())
"""


def test_no_file_gets_the_number_of_a_closed_stream_here_or_in_a_program_that_is_started(tmp_path: Path) -> None:
    out = tmp_path / "out"
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", _PARENT, str(out)],
                   env=ENVIRONMENT, timeout=120, check=True)
    assert out.read_text() == "/dev/null /dev/null /dev/null\nTrue"


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_data_has_no_character_that_steers_a_terminal(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also none that turns the direction of a line, which YAML would print as it is."""
    name = "\x1b[2J\u202e\u2066é\x9b"
    print_data({"name": name, "half": "\ud800"}, output)
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert all(char.isprintable() or char == "\n" for char in printed)
    assert yaml.safe_load(printed)["name"] == name


@pytest.mark.parametrize("columns", ["0", "-5", "x", "1", "9" * 20])
def test_a_page_is_shown_whatever_the_environment_has_for_a_width(
        columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_markdown("# A heading\n\ntext\n")
    table(["A", "B"], [["a", "b"]])
    assert "text" in "".join(capsys.readouterr().out.split())


# Streams whose reader goes away


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(("words", "gone", "codes"), [
    (["config"], "stdout", {141}), (["config", "-o", "json"], "stdout", {141}),
    # Python's argparse hides the error of a write from 3.11.4 on, and shows it before.
    (["--help"], "stdout", {0, 141}), (["verify", "--help"], "stdout", {0, 141}),
    (["--version"], "stdout", {0, 141}),
    (["config", "--set", "a.b=1"], "stderr", {2}), (["frobnicate"], "stderr", {2, 141}), (["config"], "stderr", {0}),
    (["status"], "stdout", {141}), (["status", "-o", "json"], "stdout", {141})])
def test_a_reader_that_went_away_is_no_error_of_ours(words: list[str], gone: str, codes: set[int], buffered: bool,
                                                      tmp_path: Path) -> None:
    """`vmpin config | head -0`, with everything in the buffer until the end, and with each line written at once."""
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": "" if buffered else "1"}
    nowhere = [word for name in ("run", "kata_go", "kata_rs", "kubelet", "nri")
               for word in ("--set", f"paths.{name}={tmp_path / name}")]
    nowhere += ["--set", "watch.only=none-of-this-machine's"]  # VMs of other tests cause warnings
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.Popen([*COMMAND, *nowhere, *words], env=environment, text=True, stdin=subprocess.DEVNULL,
                                stdout=writing if gone == "stdout" else subprocess.DEVNULL,
                                stderr=writing if gone == "stderr" else subprocess.PIPE)
        printed = done.communicate()[1]
    finally:
        os.close(writing)
    assert done.returncode in codes
    assert not printed


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(("words", "full", "code"), [
    (["config"], "stdout", 1), (["config", "-o", "json"], "stdout", 1), (["help", "exit-codes"], "stdout", 1),
    (["--set", "watch.only=none-x", "--set", "paths.run=/nonexistent/run", "verify"], "stdout", 3),
    (["version"], "stdout", 1), (["--help"], "stdout", 1), (["config", "--help"], "stdout", 1),
    (["config", "--set", "a.b=1"], "stdout", 2), (["config"], "stderr", 0),
    (["config", "--set", "a.b=1"], "stderr", 2), (["frobnicate"], "stderr", 2)])
def test_an_output_on_a_full_disk_is_one_line_and_the_exit_code(words: list[str], full: str, code: int,
                                                                buffered: bool) -> None:
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": "" if buffered else "1"}
    with open("/dev/full", "wb", buffering=0) as disk:
        done = subprocess.run([*COMMAND, *words], env=environment, text=True, stdin=subprocess.DEVNULL, timeout=120,
                              stdout=disk if full == "stdout" else subprocess.PIPE,
                              stderr=disk if full == "stderr" else subprocess.PIPE, check=False)
    assert done.returncode == code
    if full == "stdout" and code != 2:
        assert done.stderr == "vmpin: No space left on device\n  free space there\n"


#: Ctrl-C at the import of a module that the command line loads, before its first statement and while it runs a verb.
_INTERRUPTED = """\
import os, signal, sys
module = sys.argv[1]
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["--config", "/dev/null", *sys.argv[2:]]
from vmpin.cli.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(("module", "code"), [
    ("vmpin.cli.main", -2), ("vmpin.cli.verbs", -2), ("vmpin.config.loading", -2), ("vmpin.cli.config", 130)])
def test_ctrl_c_at_any_moment_ends_a_command_without_a_trace(module: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED, module, "config"], env=ENVIRONMENT, text=True,
                          capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_ctrl_c_that_was_ignored_at_the_start_stays_so() -> None:
    done = subprocess.run(["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", _INTERRUPTED,
                           "vmpin.cli.verbs", "config"], env=ENVIRONMENT, text=True, capture_output=True, timeout=120,
                          check=False)
    assert (done.returncode, done.stderr) == (0, "")
