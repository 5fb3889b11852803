"""What other verbs show of the allocator, and what its own have in common with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vmpin.cli.grammar import read
from vmpin.cli.main import main
from vmpin.cli.verbs import verbs_parser, without_seconds

GIVEN_OUT = """\
topology: {online: "0-7", nodes: {0: "0-3", 1: "4-7"}}
allocate: {reserved: "0"}
pods: [{pod: shop/web, containers: [{container: web, cpus: 2, policy: exclusive}]}]
events: [{create: {pod: shop/db, container: main, cpus: 4, policy: exclusive}}]
"""


def drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    file = tmp_path / "node.yaml"
    file.write_text(GIVEN_OUT)
    assert main(["map", "--scenario", str(file), *more]) == 0
    return capsys.readouterr().out


def test_a_scenario_whose_cpus_are_given_out_is_drawn_by_the_ledger(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = drawn(tmp_path, capsys)
    assert "A shop/web web: CPUs 1-2 (exclusive, runc)" in text
    assert "B shop/db main: CPUs 4-7 (exclusive, runc)" in text
    assert "of this 1 CPU the largest set" in " ".join(text.split())
    data = json.loads(drawn(tmp_path, capsys, "-o", "json"))
    assert (data["reserved"], data["exclusive"]) == ("0", "1-2,4-7")
    assert data["notes"]


def test_the_allocations_can_be_watched() -> None:
    commands = {command.name: command for command in read(verbs_parser([]), "vmpin").commands}
    assert any("--watch" in option.names for option in commands["alloc"].options)


@pytest.mark.parametrize("verb", ["status", "map", "plan", "verify"])
def test_the_help_of_a_verb_that_shows_it_says_so(verb: str) -> None:
    (command,) = [command for command in read(verbs_parser([]), "vmpin").commands if command.name == verb]
    assert "where vmpin gives out the CPUs" in command.epilog


def test_what_a_container_may_ask_for_is_completed() -> None:
    env = {**os.environ, "_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": "/dev/stdout", "_ARGCOMPLETE_IFS": "\n",
           "COMP_LINE": "vmpin alloc set shop ", "COMP_POINT": "21", "COMP_TYPE": "9"}
    ran = subprocess.run([sys.executable, "-m", "vmpin.cli.main"], env=env, capture_output=True, text=True,
                         timeout=120, check=False)
    assert {"policy=", "align="} <= set(ran.stdout.split())


@pytest.mark.parametrize(("mode", "there"), [("off", False), ("observe", True), ("on", True)])
def test_help_lists_it_where_cpus_are_given_out(mode: str, there: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--set", f"allocate.mode={mode}", "--help"])
    assert ("\n    alloc " in capsys.readouterr().out) == there


@pytest.mark.parametrize("words", [[], ["set", "shop", "policy=none"]], ids=" ".join)
def test_where_no_cpus_are_given_out_it_says_what_would(words: list[str], tmp_path: Path,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--config", "/dev/null", "--set", f"paths.run={tmp_path}"]
    assert main([*given, "--set", "allocate.mode=off", "alloc", *words]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()[0]) == ("", "vmpin: vmpin gives out no CPUs")
    assert "set it to observe or on" in printed.err
    assert "`vmpin help allocation`" in printed.err
    assert main([*given, "--set", "allocate.mode=on", "alloc", *words]) == 1
    assert "no watcher runs, and it alone gives out CPUs" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "output", "watch"), [
    ("alloc", "table", None), ("alloc -o wide", "wide", None), ("alloc -w", "table", 2.0),
    ("alloc -w -o json set a policy=none", "json", None), ("alloc set a policy=none -o json", "json", None)])
def test_an_option_may_stand_before_and_after_the_action(words: str, output: str, watch: float | None) -> None:
    line = without_seconds(words.split())
    parsed = verbs_parser(line).parse_args(line)
    assert (parsed.output, parsed.watch) == (output, watch)
