"""`vmpin help`, and what is said of a command that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from vmpin.cli import status, verbs
from vmpin.cli.main import main
from vmpin.cli.verbs import grammar, verb_modules, without_alias

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


@pytest.mark.parametrize("verb", ["status", "config", "help"])
def test_the_help_of_a_command_is_its_own(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ["help", verb], [verb, "--help"]:
        with pytest.raises(SystemExit) as ending:
            main(words)
        assert ending.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: vmpin {verb} ")


@pytest.mark.parametrize("word", ["--version", "version"])
def test_the_version_is_an_option_and_the_word_stands_for_it(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main([word])
    assert ending.value.code == 0
    assert re.fullmatch(r"vmpin [0-9.]+\S*\n", capsys.readouterr().out)


def test_each_page_that_a_message_names_is_a_topic() -> None:
    named = {match for source in (ROOT / "vmpin").rglob("*.py")
             for match in re.findall(r"docs/([a-z-]+)\.md", source.read_text().replace("firecracker/docs/", ""))}
    assert named - set(TOPICS) == set()


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


@pytest.mark.parametrize(
    "words", [[], *([verb] for verb in verb_modules()), *[["guest", "build"]][:"guest" in verb_modules()]],
    ids=" ".join)
def test_the_help_fits_80_columns_and_breaks_no_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(words, capsys).splitlines()
    assert "  None" not in lines  # argparse's text for a missing one
    assert [line for line in lines if len(line) > 80] == []
    for command in examples(SOURCES.get(" ".join(words), grammar().epilog)) if len(words) < 2 else ():
        assert any(re.match(rf" +{re.escape(command)}(  |$)", line) for line in lines), command


def test_every_verb_has_examples() -> None:
    assert [verb for verb in verb_modules() if not examples(SOURCES[verb])] == []


@pytest.mark.parametrize("verb", verb_modules())
def test_only_blanks_differ_from_the_texts_as_they_are_written(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = next(command for command in grammar().commands if command.name == verb)
    text = " ".join(shown([verb], capsys).split())
    assert " ".join(command.about.split()) in text
    assert " ".join(command.epilog.split()) in text


def listed(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """The verbs that help lists, and those that it lists apart."""
    text = shown(words, capsys)
    apart, end = text.index("run by services and builds:"), text.index("a first look")
    names = [re.findall(r"^ {2,4}([a-z]+)(?: .*)?$", part, re.MULTILINE) for part in (
        text[text.index("  COMMAND"):apart], text[apart:end])]
    return names[0], names[1]


def test_help_lists_apart_what_no_person_types(capsys: pytest.CaptureFixture[str]) -> None:
    verbs_of_people, of_services = listed(["--set", "allocate.mode=on"], capsys)
    assert {*verbs_of_people, *of_services} == {*verb_modules()}
    assert not set(verbs_of_people) & set(of_services)
    assert listed(["--set", "no.such=key"], capsys)[0] == verbs_of_people, "it needs no valid configuration"


def test_a_word_of_other_scripts_is_taken_and_not_listed(monkeypatch: pytest.MonkeyPatch,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(status, "run", lambda args: print(args.explain, args.sandbox, args.set) or 0)
    assert main(["--set", "log.level=error", "explain", "explain"]) == 0
    assert capsys.readouterr().out == "True explain ['log.level=error']\n"
    assert without_alias(["--config", "explain", "explain", "-o", "json"]) == [
        "--config", "explain", "status", "--explain", "-o", "json"]
    assert without_alias(["reconcile", "reconcile"]) == ["repin", "reconcile"]
    assert not {"explain", "reconcile"} & verb_modules().keys()
