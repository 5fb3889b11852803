"""Hints, errors and help name commands, options and topics: all of them exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from vmpin.cli.main import VERBS, grammar
from vmpin.cli.shell.help import pages

ROOT = Path(__file__).parents[3]
GRAMMAR = grammar()
GLOBAL = {name for option in GRAMMAR.options for name in option.names}
OPTIONS = {command.name: GLOBAL | {name for each in (command, *command.commands) for option in each.options
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


COMMANDS = sorted({(file, tuple(words)) for file, words in commands()})


def test_there_are_many() -> None:
    assert len(COMMANDS) > 100


@pytest.mark.parametrize(("file", "words"), COMMANDS, ids=lambda each: "".join(each)[:60])
def test_what_a_text_names_exists(file: str, words: tuple[str, ...]) -> None:
    rest = list(words)
    while rest and rest[0].startswith("--"):
        option = rest.pop(0)
        assert option.partition("=")[0] in GLOBAL
        if option in ("--config", "--set"):
            rest = rest[1:]
    if not rest or not re.fullmatch(r"[a-z-]+", rest[0]):
        return  # a placeholder, or the program alone
    assert rest[0] in VERBS
    for word in rest[1:]:
        if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word):
            assert word.partition("=")[0] in OPTIONS[rest[0]], word
    if rest[0] == "help" and len(rest) > 1 and re.fullmatch(r"[a-z-]+", rest[1]):
        assert rest[1] in {*VERBS, *pages()} or rest[1].startswith("-")
