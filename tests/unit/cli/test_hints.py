"""Hints, errors and help name commands, options and topics: all of them exist."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from vmpin.cli import plan
from vmpin.cli.help import pages
from vmpin.cli.main import _parsed, _refuse_unknown, main
from vmpin.cli.verbs import grammar, verb_modules
from vmpin.errors import VmpinError

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


#: What makes a finding of the doctor, or an error, of a sentence and a remedy.
REMEDIES = re.compile(r"(warn|bad|ok|unknown|CheckResult|\w+Error)$")
FILLED = {"DIR": "/", "DURATION": "1h", "KEY=VALUE": "policy=none", "PERCENT": "1", "SHELL": "bash"}


def remedies() -> Iterator[tuple[str, str]]:
    """Each sentence and remedy of a finding or an error with its file; values in it are the word `shop`."""
    for path in sorted((ROOT / "vmpin").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and REMEDIES.match(getattr(node.func, "id", "")):
                for text in (literal(given) for given in (*node.args, *(word.value for word in node.keywords))):
                    yield str(path.relative_to(ROOT)), text
            elif isinstance(node, ast.Assign) and path.name.endswith(("_checks.py", "_check.py")):
                yield str(path.relative_to(ROOT)), literal(node.value)


def literal(node: ast.AST) -> str:
    """The text of an expression."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(literal, node.values))
    if isinstance(node, ast.FormattedValue):
        return "shop"
    return "".join(map(literal, ast.iter_child_nodes(node)))


def refused(line: str) -> str:
    """Why the real parsers refuse a command line whose placeholders are filled in; "" where they take it."""
    words = [FILLED.get(word, word.lower() if word.isupper() else word) for word in line.split()]
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            _refuse_unknown(words)
            _parsed(words)
    except SystemExit as ending:  # 0 after --help
        return errors.getvalue().splitlines()[-1] if ending.code else ""
    except VmpinError as err:
        return str(err)
    if words[:2] == ["install", "hook"] and not {"--hooks-dir", "--base-spec"} & set(words):
        return "install hook needs --hooks-dir or --base-spec"
    return ""


def test_a_remedy_has_whole_commands_that_the_parsers_take() -> None:
    texts = [(file, text) for file, text in remedies() if "vmpin " in text]
    commands = {(file, line) for file, text in texts for line in re.findall(
        r"`(?:sudo )?vmpin ((?!shop\b)[^`>]+)", text)}
    assert len(commands) > 20
    assert [(file, line, why) for file, line in sorted(commands) if (why := refused(line))] == []
    bare = re.compile(rf"(?<![`\w-])vmpin (?:{'|'.join(verb_modules())})\b")
    assert [(file, text) for file, text in texts if bare.search(re.sub("`[^`]+`", "", text))] == []
    assert refused("status --frobnicate") != ""
    assert refused("install hook --remove") != ""


#: What commands were called before the first release.
FORMER = ("explain shop", "audit", "allocations", "set shop policy=none", "reconcile")


def test_no_text_names_a_command_by_its_former_name() -> None:
    topics = {*verb_modules(), *pages()}
    for line in FORMER:
        assert refused(line).startswith("there is no command"), "a remedy with it fails"
        assert unknown(line.split(), topics) == line.split()[0], "and so does a page"
    former = re.compile(r"vmpin (explain|audit|allocations|reconcile)\b")
    assert [(file, match[0]) for file, text in texts() for match in former.finditer(" ".join(text.split()))] == []


def test_the_parsers_take_each_command_of_the_documentation() -> None:
    """But those that are only named: a verb, or an option without its value."""
    lines = {(file, " ".join(words)) for file, words in commands()
             if file.endswith((".md", ".yaml")) and len(words) > 1 and words[0] in verb_modules()
             and not words[-1].startswith(("-", "…"))
             and words not in (["guest", "build"], ["install", "hook"], ["alloc", "set"])}
    assert len(lines) > 50
    assert [(file, line, why) for file, line in sorted(lines) if (why := refused(line.replace("…", "/")))] == []


def test_a_plan_names_a_sandbox_without_a_pod_as_status_takes_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(plan, "ask", lambda *given, **named: {"operations": [], "unmanaged": ["ab" * 32],
                                                               "of_features": []})
    monkeypatch.setattr(plan, "known_names", lambda *given: {})
    (tmp_path / "vmpin.yaml").touch()
    assert main(["plan", "--config", str(tmp_path / "vmpin.yaml")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "sandbox abababababab is unmanaged: its threads keep their masks (vmpin status abababababab --explain)")


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 1200


def test_the_table_of_exit_codes_has_every_command() -> None:
    text = (Path(__file__).parents[3] / "docs/exit-codes.md").read_text()
    rows = [line.split(" | ")[0].strip("| ").replace("`", "") for line in text.splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in row.split(", ")) == sorted(verb_modules())
    assert "docs/exit-codes.md" in (Path(__file__).parents[3] / "README.md").read_text()


def test_a_plan_has_what_features_would_change(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
                                               tmp_path: Path) -> None:
    monkeypatch.setattr(plan, "ask", lambda *given, **named: {"operations": [], "unmanaged": [],
                                                               "of_features": ["move IRQ 7 (eth0) to CPUs 1, was 2"]})
    (tmp_path / "vmpin.yaml").touch()
    assert main(["plan", "--config", str(tmp_path / "vmpin.yaml")]) == 0
    assert capsys.readouterr().out == "move IRQ 7 (eth0) to CPUs 1, was 2\n"
