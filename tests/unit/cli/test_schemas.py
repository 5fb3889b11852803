"""The schemas of `-o json`: each command has one that describes every member, and each document is checked."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import documents
import pytest
from documents import LOGGING, SCHEMAS, checked, checked_output, name_of, schema, schema_names
from jsonschema import Draft202012Validator

from vmpin.cli.main import main
from vmpin.cli.verbs import verbs_parser

#: One of each form.
COMMANDS = [
    "status", "status shop", "status --all-nodes", "map", "status shop --explain", "verify",
    "verify -l a=b", "verify --others", "isolation --all", "top",
    "doctor", "gather", "plan", "plan --scenario f", "alloc", "alloc set shop policy=none", "repin", "unpin shop",
    "unpin --all --dry-run", "config", "install hook --hooks-dir d", "install service --now", "uninstall", "demo",
    "demo --noise"]


#: Of lines that no command prints: the watcher sends them on its sockets.
STREAMS = {"follow"}


def verbs_with_json() -> set[str]:
    # argparse has no public way to a parser's options and verbs.
    (verbs,) = [action for action in verbs_parser([])._actions
                if isinstance(action, argparse._SubParsersAction)]
    return {verb for verb, parser in verbs.choices.items() for action in every_action(parser)
            if "json" in (action.choices or ()) and verb not in LOGGING}


def every_action(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Those of a verb and of its parts."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for part in action.choices.values():
                yield from every_action(part)


def parts(node: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each subschema with its place."""
    if isinstance(node, dict):
        yield place, node
        for key, value in node.items():
            yield from parts(value, f"{place}/{key}")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from parts(value, f"{place}/{number}")


def test_every_command_with_json_has_a_schema() -> None:
    forms = {name_of([*line.split(), "-o", "json"]) for line in COMMANDS}
    assert forms | STREAMS == set(schema_names())
    assert {line.split()[0] for line in COMMANDS} == verbs_with_json()


@pytest.mark.parametrize("name", schema_names())
def test_a_schema_describes_every_member(name: str) -> None:
    document = schema(name)
    Draft202012Validator.check_schema(document)
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert document["title"].startswith("vmpin ")
    assert "version" in document["required"]
    assert document["properties"]["version"]["const"] >= 1
    for place, part in parts(document):
        if "properties" in part and not place.endswith("/properties"):
            assert part["additionalProperties"] is False, place
            assert set(part["required"]) <= set(part["properties"]), place
            for member, about in part["properties"].items():
                assert len(about["description"]) >= 8, f"{place}/{member}"
    text = json.dumps(document)
    for definition in document.get("$defs", ()):
        assert f"#/$defs/{definition}" in text, definition


def test_the_page_lists_every_schema() -> None:
    page = (SCHEMAS.parent / "json.md").read_text()
    assert re.findall(r"\| \[([a-z-]+)\]\(schemas/\1\.json\) \|", page) == [*dict.fromkeys(
        name_of([*line.split(), "-o", "json"]) for line in COMMANDS)]


def test_help_prints_a_schema_and_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "--schema", "status"]) == 0
    assert json.loads(capsys.readouterr().out) == schema("status")
    assert main(["help", "--schema"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == schema_names()
    assert main(["help", "--schema", "statsu"]) == 2
    assert "did you mean status" in capsys.readouterr().err


def test_a_document_that_differs_from_its_schema_is_noticed() -> None:
    good = {"version": 1, "sandbox": "a", "sentences": ["b"]}
    checked("status-explain", good)
    for bad in ({**good, "new": 1}, {**good, "version": 2}, {"version": 1, "sandbox": "a"}, {**good, "sandbox": 1}):
        with pytest.raises(AssertionError, match="status-explain"):
            checked_output(["status", "--explain", "a", "-o", "json"], json.dumps(bad))


def test_the_labs_node_which_has_no_jsonschema_prints_documents_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, bad = ["status", "--explain", "a", "-o", "json"], '{"version": 2}'
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    documents._validator.cache_clear()
    with pytest.raises(ImportError):
        checked_output(arguments, bad)
    monkeypatch.setenv("VMPIN_LAB_NODE", "1")
    checked_output(arguments, bad)


def test_commands_within_this_process_are_checked(monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "-o", "json"]) == 0
    monkeypatch.setattr("vmpin.config.settings.Config.data", lambda config: {"a.b": {"value": 1}})
    with pytest.raises(AssertionError, match="config"):
        main(["config", "-o", "json"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["a.b"] == {"value": 1}
