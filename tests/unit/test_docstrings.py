"""Each module's docstring says what stays out of it and who calls it, and the modules that it names exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

PRODUCT = Path(__file__).parents[2] / "vmpin"
#: Verbs are called by the command line.
MODULES = sorted(str(path.relative_to(PRODUCT).with_suffix("")).replace("/", ".")
                 for path in PRODUCT.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))
CALLERS = re.compile(r"\bcalls? this\b|\b(?:called|used|made|run|owned|created|filled|kept|taken|read|imported|shown|"
                     r"prepared|shared|started|sent) (?:and \w+ )?by\b|\bcallers\b|`vmpin |called at|\bask for\b|"
                     r"\basks? of\b|\bwatcher\b|\breconciler\b", re.IGNORECASE)
#: "What stays out: texts (annotations), … ." and "Called by a, b.c and d.", each to the end of its sentence.
STAYS_OUT = re.compile(r"What stays out: (.*?)(?:\.(?: |$)|$)")
CALLED_BY = re.compile(r"\b(?:Called|Used) by ([^;:(]*?)(?:\. |\.$|$)")
NAME = re.compile(r"(?<![\w/`.])([a-z_]+(?:\.[a-z_]+)+|[a-z]+(?:_[a-z]+)+)(?![\w/`])")
#: Names in docstrings that look like a module's and are none: a key, a file at the top of the repository.
OTHERS = {"watch.on_exit", "hatch_build"}


@cache
def docstring(module: str) -> str:
    text = ast.get_docstring(ast.parse((PRODUCT / f"{module.replace('.', '/')}.py").read_bytes()))
    return " ".join((text or "").split())


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of the product, and their names, that a module imports anywhere in it."""
    def found() -> Iterator[str]:
        for node in ast.walk(ast.parse((PRODUCT / f"{module.replace('.', '/')}.py").read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                yield node.module.removeprefix("vmpin.")
                yield from (f"{node.module}.{each.name}".removeprefix("vmpin.") for each in node.names)
            elif isinstance(node, ast.Import):
                yield from (each.name.removeprefix("vmpin.") for each in node.names)

    return frozenset(found())


def named(sentence: str) -> Iterator[list[str]]:
    """The modules that each name in a sentence may be: by its end, as `search` or `allocation.search` is."""
    for name in NAME.findall(sentence):
        yield ending(name, MODULES)


def ending(name: str, among: Iterable[str]) -> list[str]:
    return [each for each in among if each == name or each.endswith(f".{name}")]


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith("cli.")])
def test_a_module_says_who_calls_it(module: str) -> None:
    assert CALLERS.search(docstring(module)), docstring(module)


@pytest.mark.parametrize("module", MODULES)
def test_the_callers_that_it_names_import_it(module: str) -> None:
    for sentence in CALLED_BY.findall(docstring(module)):
        for may_be in named(sentence):
            assert not may_be or any(module in imports(each) for each in may_be), (module, sentence)


@pytest.mark.parametrize("module", MODULES)
def test_what_stays_out_is_where_it_says(module: str) -> None:
    """A module or a package, or what a module defines."""
    packages = {name.rpartition(".")[0] for name in MODULES}
    for sentence in STAYS_OUT.findall(docstring(module)):
        for name in (found.removesuffix(".py") for found in NAME.findall(sentence)):
            owner = name.rpartition(".")[0]
            assert name in OTHERS or ending(name, [*MODULES, *packages]) or (owner and ending(owner, MODULES)), name
