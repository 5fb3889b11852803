"""Each module's docstring says what stays out of it and who calls it, and the modules that it names exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

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


def test_a_module_says_who_calls_it() -> None:
    assert [name for name in MODULES if not name.startswith("cli.") and not CALLERS.search(docstring(name))] == []


def test_the_callers_that_it_names_import_it() -> None:
    wrong = [(module, sentence) for module in MODULES for sentence in CALLED_BY.findall(docstring(module))
             for may_be in named(sentence) if may_be and not any(module in imports(each) for each in may_be)]
    assert wrong == []


def test_what_stays_out_is_where_it_says() -> None:
    """A module or a package, or what a module defines."""
    places = [*MODULES, *{name.rpartition(".")[0] for name in MODULES}]

    def exists(name: str) -> bool:
        owner = name.rpartition(".")[0]
        return name in OTHERS or bool(ending(name, places)) or bool(owner and ending(owner, MODULES))

    assert [(module, name) for module in MODULES for sentence in STAYS_OUT.findall(docstring(module))
            for name in NAME.findall(sentence) if not exists(name.removesuffix(".py"))] == []
