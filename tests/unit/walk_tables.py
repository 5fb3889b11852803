"""The tables of walks in docs/architecture.md, and a walk held against its table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from test_floors import FLOORS, MODULES, own
from walks import Walk

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
PATHS = {module: str(path.relative_to(ROOT / "vmpin")) for module, path in MODULES.items()}


def stations(heading: str) -> list[tuple[str, str]]:
    """The stations of a table: (file below vmpin, function)."""
    section = TEXT[TEXT.index(f"## {heading}"):].split("\n## ")[0]
    return re.findall(r"^\| \d+ \| `vmpin/([\w/]+\.py)` \| `([\w.]+)`", section, re.MULTILINE)


@cache
def imports() -> dict[str, set[str]]:
    """The files that each file imports, itself or by way of others."""
    reach = {PATHS[module]: {PATHS[name] for name in own(path) if name in PATHS} for module, path in MODULES.items()}
    grown = True
    while grown:
        grown = False
        for files in reach.values():
            more = set().union(*(reach[file] for file in files)) - files
            grown |= bool(more)
            files |= more
    return reach


def check(name: str, walk: Walk, table: Iterable[tuple[str, str]]) -> None:
    """A walk runs through the stations of its table in order, and keeps to the page's figures."""
    calls = [call[:2] for call in walk.calls]
    at = -1
    for station in table:
        assert station in calls[at + 1:], f"{name}: {station} is not run through, or before the station above it"
        at = calls.index(station, at + 1)
    [(files, climbs)] = re.findall(rf"^\| {re.escape(name)} \| (\d+) \| (\d+) \|", TEXT, re.MULTILINE)
    crossed, climbed = walk.files(*(file for file, _ in table)), walk.climbs(imports(), FLOORS)
    assert len(crossed) <= int(files), crossed
    assert len(climbed) <= int(climbs), climbed
