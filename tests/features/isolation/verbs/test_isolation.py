"""The arguments of `vmpin isolation`, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmpin.cli.main import main
from vmpin.cli.manual import read
from vmpin.cli.verbs import verbs_parser


def test_a_page_is_not_repeated_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["isolation", "--all", "-w", "-o", "html"]) == 2
    assert "--watch goes with --file FILE" in capsys.readouterr().err


def test_it_can_be_shown_again() -> None:
    command = next(each for each in read(verbs_parser([]), "vmpin").commands if each.name == "isolation")
    assert any("--watch" in option.names for option in command.options)


def test_the_table_of_exit_codes_has_its_verbs() -> None:
    text = (Path(__file__).parents[4] / "docs/exit-codes.md").read_text()
    names = {name.strip("| `") for line in text.splitlines() if line.startswith("| `")
             for name in line.split(" | ")[0].split(", ")}
    assert {"isolation", "top"} <= names
