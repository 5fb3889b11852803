"""The help at 80 columns, of every verb; and how its texts are laid out."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from vmpin.cli import verbs
from vmpin.cli.help_layout import laid_out
from vmpin.cli.main import main
from vmpin.cli.verbs import grammar, verb_modules


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COLUMNS", "80")
    verbs.terminal_columns.cache_clear()
    yield
    verbs.terminal_columns.cache_clear()


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ending:
        main([*words, "--help"])
    assert ending.value.code == 0
    return capsys.readouterr().out


def examples(text: str) -> list[str]:
    """The commands of indented lines, without their comments."""
    return [re.split(r" {2,}", line.strip())[0] for line in text.splitlines() if re.match(r" +(\S+ )*vmpin ", line)]


SOURCES = {command.name: command.epilog for command in grammar().commands}


@pytest.mark.parametrize("words", [[], *([verb] for verb in verb_modules()), ["guest", "build"]], ids=" ".join)
def test_the_help_fits_80_columns_and_breaks_no_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(words, capsys).splitlines()
    assert [line for line in lines if len(line) > 80] == []
    for command in examples(SOURCES.get(" ".join(words), grammar().epilog)) if len(words) < 2 else ():
        assert any(re.match(rf" +{re.escape(command)}(  |$)", line) for line in lines), command


def test_every_verb_but_those_without_any_has_examples() -> None:
    assert {verb for verb in verb_modules() if not examples(SOURCES[verb])} <= {"version"}


@pytest.mark.parametrize("verb", verb_modules())
def test_only_blanks_differ_from_the_texts_as_they_are_written(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = next(each for each in grammar().commands if each.name == verb)
    text = " ".join(shown([verb], capsys).split())
    assert " ".join(command.about.split()) in text
    assert " ".join(command.epilog.split()) in text


def test_paragraphs_are_filled_and_commands_in_them_stay_whole() -> None:
    text = "a " * 52 + "b\nc d.\nThe next one.\n\nends with `vmpin status -o wide`"
    assert laid_out(text, 24).splitlines() == [
        *["a a a a a a a a a a a a"] * 4, "a a a a b c d.", "The next one.", "", "ends with", "`vmpin status -o wide`"]


def test_a_comment_too_long_goes_on_in_its_column_or_below_a_long_command() -> None:
    text = ("examples:\n  vmpin a      one two three four\n               five\n"
            "  vmpin a --long-option x  six\n  vmpin b")
    assert laid_out(text, 26).splitlines() == [
        "examples:", "  vmpin a  one two three", "           four five", "  vmpin a --long-option x", "           six",
        "  vmpin b"]
    assert laid_out(text, 80) == text
