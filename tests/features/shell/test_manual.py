"""The manual pages: one for every verb, of the same source as the help, and clean for two formatters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from need import need_tool

from vmpin.cli.main import main
from vmpin.cli.verbs import grammar, verb_modules
from vmpin.features.shell.verbs.manual_pages import escaped, pages

ROOT = Path(__file__).parents[3]
PAGES = pages(grammar(), "0.1.0")
#: Of verbs, as `install hook`.
PARTS = [part._replace(name=f"{command.name}-{part.name}") for command in grammar().commands
         for part in command.commands if part.epilog]


def test_every_verb_has_one() -> None:
    parts = {part.name for part in PARTS}
    assert set(PAGES) == {"vmpin.1", *(f"vmpin-{verb}.1" for verb in (*verb_modules(), *parts))}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Each page as text, formatted without an error."""
    place, mandoc = tmp_path_factory.mktemp("man"), need_tool("mandoc")
    for name, text in PAGES.items():
        (place / name).write_text(text, encoding="utf-8")
    lint = subprocess.run([mandoc, "-K", "utf-8", "-T", "lint", "-W", "error", *PAGES], cwd=place,
                          capture_output=True, text=True, timeout=120)
    assert (lint.stdout, lint.stderr) == ("", "")
    texts = {}
    for name in PAGES:
        plain = subprocess.run([mandoc, "-K", "utf-8", "-T", "utf8", "-O", "width=78", name], cwd=place, check=True,
                               capture_output=True, text=True, timeout=120).stdout
        bare = plain
        while "\b" in bare:  # overstruck for bold and underlined
            at = bare.index("\b")
            bare = bare[:at - 1] + bare[at + 1:]
        texts[name] = bare
    return texts


def test_a_page_shows_what_the_parser_takes(shown: dict[str, str]) -> None:
    for command in (*grammar().commands, *PARTS):
        text = " ".join(shown[f"vmpin-{command.name}.1"].split())
        for option in command.options:
            assert all(name in text for name in option.names), (command.name, option)
        assert " ".join(command.epilog.split()) in text, command.name
    for verb in verb_modules():
        assert f"\n       {verb}" in shown["vmpin.1"]


def test_options_can_be_copied(shown: dict[str, str]) -> None:
    """A hyphen that roff made typographic is no option's."""
    assert "--scenario" in shown["vmpin-plan.1"]
    assert shown["vmpin-plan.1"].count("\u2010") == 0


@pytest.mark.parametrize(("text", "roff"), [
    (".TH", r"\&.TH"), ("'x", r"\&\(aqx"), (r"a\nb", r"a\enb"), ("a-b", r"a\-b"), ("`x`", r"\(gax\(ga")])
def test_text_is_no_request(text: str, roff: str) -> None:
    assert escaped(text) == roff


def test_the_program_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "--man", "status"]) == 0
    assert capsys.readouterr().out.startswith('.TH "VMPIN-STATUS" "1"')
    assert main(["help", "--man"]) == 0
    assert capsys.readouterr().out.startswith('.TH "VMPIN" "1"')
    assert main(["help", "--man", "nothing"]) == 2


def test_the_parsers_need_the_standard_library_alone() -> None:
    """The wheel is built where nothing else is installed."""
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, sys.argv[1]); "
                          "from vmpin.cli.verbs import grammar; print(len(grammar().commands))", ROOT],
                         capture_output=True, text=True, timeout=120)
    assert (ran.stderr, ran.stdout) == ("", f"{len(verb_modules())}\n")
