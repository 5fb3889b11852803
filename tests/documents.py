"""Each JSON document that a test sees is checked against its schema in docs/schemas.

`checked_output` is called with what a command printed: by the helpers that run the command line as a user does, and,
for commands that a test runs within its own process, by `recorded` (conftest). Documents on their way from the watcher
to a command, and lines of the log, are not checked; in the lab's node none is, as its image has no jsonschema.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parents[1] / "docs" / "schemas"
#: Verbs whose -o json is lines of the log.
LOGGING = ("watch", "reporter")
_WITH_VALUE = ("--config", "--set")
_ALL_NODES = ("--all-nodes", "--node", "--selector", "-l", "--kubeconfig", "--context")


def schema_names() -> list[str]:
    return sorted(path.stem for path in SCHEMAS.glob("*.json"))


def name_of(arguments: Sequence[str]) -> str | None:
    """The schema of what this command prints; None where that is no single JSON document."""
    words, rest = [], iter(arguments)
    for each in rest:
        if each in _WITH_VALUE:
            next(rest, None)
        else:
            words.append(each)
    verb = next((each for each in words if not each.startswith("-")), "")
    if not _has(words, "-o", "json") or verb in LOGGING or any(
            each in ("-w", "--watch") or each.startswith("--watch=") for each in words):
        return None
    if any(each.partition("=")[0] in _ALL_NODES for each in words):
        return f"{verb}-all-nodes"
    if verb == "status" and "--explain" in words:
        return "status-explain"
    if verb == "verify" and "--others" in words:
        return "verify-others"
    if verb == "alloc" and "set" in words:
        return "alloc-set"
    if verb == "plan" and any(each.startswith("--scenario") for each in words):
        return "plan-scenario"
    if verb == "unpin" and "--dry-run" in words:
        return "unpin-dry-run"
    if verb == "demo" and "--noise" in words:
        return "demo-noise"
    # The archive, or the OCI spec, is the output.
    if (verb == "gather" and _has(words, "--out", "-")) or (verb == "install" and "--base-spec" in words):
        return None
    if verb == "install":
        return "install-hook" if "hook" in words else "install-service"
    return verb


def _has(words: Sequence[str], flag: str, value: str) -> bool:
    return any(pair == (flag, value) for pair in itertools.pairwise(words)) or f"{flag}{value}" in words


@functools.cache
def schema(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


@functools.cache
def _validator(name: str) -> Any:
    from jsonschema import Draft202012Validator  # few tests see a document
    return Draft202012Validator(schema(name))


def checked(name: str, document: Any) -> None:
    """:raises AssertionError: with each difference, and where it is in the document."""
    wrong = [f"{error.json_path}: {error.message[:300]}" for error in _validator(name).iter_errors(document)]
    assert not wrong, f"docs/schemas/{name}.json:\n" + "\n".join(wrong[:10])


def checked_output(arguments: Sequence[str], output: str) -> None:
    """Check what a command printed, if that is a document; an error is on standard error, and this then empty."""
    name = None if os.environ.get("VMPIN_LAB_NODE") else name_of(arguments)
    if name is not None and output:
        for document in output.splitlines() if name == "top" else [output]:  # it prints one for each refresh
            checked(name, json.loads(document))


class _Recording:
    """A text stream that keeps what is written to it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.texts: list[str] = []

    def write(self, text: str) -> int:
        self.texts.append(text)
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def recorded(arguments: Sequence[str]) -> Iterator[None]:
    """Check what is printed in it, as `checked_output` does."""
    if name_of(arguments) is None:
        yield
        return
    recording = _Recording(sys.stdout)
    with contextlib.redirect_stdout(recording):
        yield
    checked_output(arguments, "".join(recording.texts))
