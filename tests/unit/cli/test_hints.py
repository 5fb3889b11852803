"""Hints, errors and help name commands, options and topics: all of them exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from vmpin.cli import plan
from vmpin.cli.help import pages
from vmpin.cli.main import main
from vmpin.cli.verbs import grammar, verb_modules

ROOT = Path(__file__).parents[3]
GRAMMAR = grammar()
GLOBAL = {name for option in GRAMMAR.options for name in option.names}
OPTIONS = {command.name: GLOBAL | {name for part in (command, *command.commands) for option in part.options
                                   for name in option.names} for command in GRAMMAR.commands}
#: In the text of a hint or an example, up to its end or the explanation beside it.
NAMED = re.compile(r"`(?:kubectl )?vmpin ([^`]+)`|^ {2,}vmpin ([^\n]+?)(?= {2,}|$)", re.MULTILINE)


def texts() -> Iterator[tuple[str, str]]:
    """Each text of the product with its file: strings in modules, and what ships beside them."""
    for path in sorted((ROOT / "vmpin").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield str(path.relative_to(ROOT)), node.value
    markdown = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for path in (*sorted((ROOT / "config").rglob("*.yaml")), *markdown):
        # Of Markdown, an example is further in than the lines of a list.
        yield str(path.relative_to(ROOT)), re.sub(r"^ {1,3}(?! )", "", path.read_text(), flags=re.MULTILINE)


def commands() -> Iterator[tuple[str, list[str]]]:
    for file, text in texts():
        for match in NAMED.finditer(text):
            line = re.split(r"\s[|>#;&]|, | \(", match[1] or match[2])[0]
            yield file, line.split()


def unknown(words: Sequence[str], topics: Collection[str]) -> str | None:
    """The word of a command line that does not exist."""
    rest = list(words)
    while rest and rest[0].startswith("--"):
        option = rest.pop(0)
        if option.partition("=")[0] not in GLOBAL:
            return option
        if option in ("--config", "--set"):
            rest = rest[1:]
    if not rest or not re.fullmatch(r"[a-z-]+", rest[0]):
        return None  # a placeholder, or the program alone
    if rest[0] not in verb_modules():
        return rest[0]
    for word in rest[1:]:
        if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word) and word.partition("=")[0] not in OPTIONS[rest[0]]:
            return word
    if rest[0] == "help" and len(rest) > 1 and re.fullmatch(r"[a-z][a-z-]*", rest[1]) and rest[1] not in topics:
        return rest[1]
    return None


def test_what_a_text_names_exists() -> None:
    named = {(file, tuple(words)) for file, words in commands()}
    assert len(named) > 100
    topics = {*verb_modules(), *pages()}
    assert [(file, words, word) for file, words in sorted(named) if (word := unknown(words, topics))] == []
    assert unknown(["status", "--no-such"], topics) == "--no-such"
    assert unknown(["help", "no-such"], topics) == "no-such"


def test_a_plan_names_a_sandbox_without_a_pod_as_explain_takes_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(plan, "ask", lambda *given, **named: {"operations": [], "unmanaged": ["ab" * 32]})
    monkeypatch.setattr(plan, "known_names", lambda *given: {})
    (tmp_path / "vmpin.yaml").touch()
    assert main(["plan", "--config", str(tmp_path / "vmpin.yaml")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "sandbox abababababab is unmanaged: its threads keep their masks (vmpin explain abababababab)")


def test_the_table_of_exit_codes_has_every_command() -> None:
    text = (Path(__file__).parents[3] / "docs/exit-codes.md").read_text()
    rows = [line.split(" | ")[0].strip("| ").replace("`", "") for line in text.splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in row.split(", ")) == sorted(verb_modules())
    assert "docs/exit-codes.md" in (Path(__file__).parents[3] / "README.md").read_text()
