"""`vmpin help`, and what is said of a command that does not exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from vmpin.cli.main import main

ROOT = Path(__file__).parents[3]
TOPICS = sorted(page.stem for page in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize(("words", "hint"), [
    (["stauts"], "did you mean status?"), (["--config", "x", "--set=a.b=1", "verfy"], "did you mean verify?"),
    (["frobnicate"], "`vmpin --help` lists them"), (["help", "plcement"], "did you mean placement?"),
    (["help", "isolatoin"], "did you mean isolation? `vmpin help`"),
    (["help", "x"], "`vmpin help` lists the topics")])
def test_a_name_that_does_not_exist_gets_the_nearest_one(words: list[str], hint: str,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert hint in capsys.readouterr().err


def test_the_topics_are_the_pages_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    listed = re.findall(r"^  ([a-z-]+) +(\S.*)$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in listed] == TOPICS
    assert all("#" not in title for _, title in listed)
    assert main(["help", "exit-codes"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "exit-codes.md").read_text()
    assert main(["help", "doctor"]) == 0  # a command's name, too
    assert capsys.readouterr().out == (ROOT / "docs" / "doctor.md").read_text()


@pytest.mark.parametrize("verb", ["status", "version", "help"])
def test_the_help_of_a_command_is_its_own(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ["help", verb], [verb, "--help"]:
        with pytest.raises(SystemExit) as ending:
            main(words)
        assert ending.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: vmpin {verb} ")


def test_the_version_is_a_command_and_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    by_command = capsys.readouterr().out
    with pytest.raises(SystemExit) as ending:
        main(["--version"])
    assert (ending.value.code, capsys.readouterr().out) == (0, by_command)
    assert re.fullmatch(r"vmpin [0-9.]+\S*\n", by_command)
    assert main(["version", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["vmpin"] == by_command.split()[1]


def test_each_page_that_a_message_names_is_a_topic() -> None:
    named = {match for source in (ROOT / "vmpin").rglob("*.py")
             for match in re.findall(r"docs/([a-z-]+)\.md", source.read_text().replace("firecracker/docs/", ""))}
    assert named - set(TOPICS) == set()
