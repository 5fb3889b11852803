"""docs/troubleshooting.md as data: by heading, the commands that answer it with the lines of their output."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from real_node import Node

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()


class Section(NamedTuple):
    """Commands without `vmpin`, each with lines of its output, and the stated number of commands to the answer."""

    commands: list[tuple[str, list[str]]]
    stated: int | None


def _section(text: str) -> Section:
    commands: list[tuple[str, list[str]]] = []
    for line in re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)[0].splitlines():
        if line.startswith("    $ vmpin "):
            commands.append((line.removeprefix("    $ vmpin "), []))
        else:
            commands[-1][1].append(" ".join(line.split()))
    stated = re.search(r"^Commands to the answer: (\d+)\.$", text, re.MULTILINE)
    return Section(commands, None if stated is None else int(stated[1]))


SECTIONS = {heading: _section(text)
            for heading, text in re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", PAGE, re.MULTILINE)}
#: By heading, the test that makes the symptom.
WALKED: dict[str, Callable[..., None]] = {}


def walks(heading: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def note(test: Callable[..., None]) -> Callable[..., None]:
        WALKED[heading] = test
        return test

    return note


def see(node: Node, heading: str, pod: str = "", code: int | tuple[int, ...] = 0, *more: str,
        wrap: tuple[str, ...] = ()) -> None:
    """Run the commands of a section and no others: each prints its lines; blanks are as wide as a table makes them.

    :param code: the exit code, of each command where it is a tuple.
    :param more: further arguments. :param wrap: what the commands are run by.
    """
    section = SECTIONS[heading]
    codes = code if isinstance(code, tuple) else (code,) * len(section.commands)
    for (command, lines), expected in zip(section.commands, codes, strict=True):
        done = node.cli(*command.replace("POD", pod).split(), *more, wrap=wrap)
        shown = [" ".join(line.split()) for line in (done.stdout + done.stderr).splitlines()]
        for line in lines:
            pattern = re.escape(line).replace("…", ".*")
            assert any(re.fullmatch(pattern, output) for output in shown), (line, done.stdout, done.stderr)
        assert done.returncode == expected, (done.stdout, done.stderr)
