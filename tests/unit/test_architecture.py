"""docs/architecture.md names files, functions and modules: all of them exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from test_floors import FLOORS, MODULES, own, within

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
#: `path` `Class.method`, as in the tables, and `name` (`path`), as in sentences.
PAIRS = sorted({*re.findall(r"`((?:vmpin|guest|hooks)/[\w/]+\.py)` (?:\| )?`([A-Z]?[\w.]+)`", TEXT),
                *((path, name) for name, path in re.findall(r"`([\w.]+)`\s+\(`([\w/]+\.py)`\)", TEXT))})
FILES = sorted(set(re.findall(r"`((?:vmpin|guest|hooks|tests|config)/[\w/.*-]+)`", TEXT)))


@cache
def names(path: Path) -> set[str]:
    """What a module defines: functions, classes, and both within classes."""
    found = set()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            found.update(f"{node.name}.{each.name}" for each in ast.walk(node)
                         if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each is not node)
    return found


def test_every_named_function_exists() -> None:
    assert [(path, name) for path, name in PAIRS if name not in names(ROOT / path)] == []


def test_every_named_file_exists() -> None:
    assert [path for path in FILES if not list(ROOT.glob(path.removesuffix("/")))] == []


def test_every_word_that_looks_like_a_name_is_defined() -> None:
    """`Class`, `Class.method`, `Class.attribute` and `function_name`, anywhere in the page."""
    paths = [path for top in ("vmpin", "guest") for path in (ROOT / top).rglob("*.py")]
    defined = {name for path in paths for name in names(path)}
    attributes = "\n".join(path.read_text() for path in paths)
    for name in set(re.findall(r"`([A-Z]\w+(?:\.\w+)?)`", TEXT)):
        owner, _, member = name.partition(".")
        assert owner in defined or re.search(rf"^{owner}\b.* = ", attributes, re.MULTILINE), name
        assert not member or name in defined or re.search(rf"self\.{member}\b.* = ", attributes), name


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_table_of_packages_is_that_of_the_floors(page: str) -> None:
    found = re.findall(r"^\| (\d+) \| ((?:`\w+` ?)+)\|", (ROOT / page).read_text(), re.MULTILINE)
    table = {int(floor): set(re.findall(r"`(\w+)`", packages)) for floor, packages in found}
    assert table == {floor: {package for package, its in FLOORS.items() if its == floor} for floor in FLOORS.values()}


def test_what_can_be_left_out_at_a_first_reading_is_what_serves_features_alone() -> None:
    """What else serves features alone stands in vmpin/features."""
    needed, core = set[str](), {module for module in MODULES if not within(module, ["features"])}
    more = {module for module in core if within(module, ["cli", "daemon"])}
    while more:
        needed |= more
        more = {name for module in more for name in own(MODULES[module]) & core} - needed
    section = TEXT[TEXT.index("can be left out at\na first reading"):].split("\n\n")[0]
    listed = {name.replace("/", ".") for name in re.findall(r"`vmpin/([\w/]+)\.py`", section)}
    assert listed == {module for module in core - needed if MODULES[module].name != "__init__.py"}


def test_the_ways_to_a_mask_have_fifteen_stations_at_most() -> None:
    for heading in ("From a changed cpuset to a mask", "From a new thread to its mask"):
        section = TEXT[TEXT.index(f"## {heading}"):].split("\n## ")[0]
        stations = [int(number) for number in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)]
        assert stations == list(range(1, len(stations) + 1))
        assert 5 <= len(stations) <= 15
