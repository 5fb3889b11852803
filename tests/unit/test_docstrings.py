"""Each module's docstring says what stays out of it and who calls it, and the modules that it names exist. A package's
says which packages import it, and at times which it imports: both are as it says. A function's begins with a sentence.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from test_floors import FLOORS, own, top, within
from test_floors import MODULES as PATHS

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

PACKAGES = [module for module, path in PATHS.items() if path.name == "__init__.py"]
#: "Imported by a, b.c (why) and all above." and "Imports a and b alone, and not c;", each to the end of its sentence.
IMPORTED_BY = re.compile(r"\b[Ii]mported by (.+?)(?:[.;] |[.;]?$)|"
                         r"\bOnly (\w+) imports it|\bEvery package may import it")
IMPORTS = re.compile(r"(?:[.;] )[Ii]mports (.+?)(?:[.;] |[.;]?$)")
#: It imports a verb's module by its name, when the verb is used.
BY_NAME = "cli.main"


#: Beginnings of what is no sentence: a parameter alone, a question without its answer, and fragments.
NO_SENTENCE = (":", "What ", "Which ", "As ", "By ", "From ", "Of ", "Those ", "With ", "Without ")
#: The hook has no suffix.
SOURCES = [*PRODUCT.rglob("*.py"), *(PRODUCT.parent / "guest").rglob("*.py"), PRODUCT.parent / "hooks/vmpin-hook"]


@cache
def docstring(module: str) -> str:
    text = ast.get_docstring(ast.parse(PATHS[module].read_bytes()))
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


def test_the_docstring_of_a_function_begins_with_a_sentence() -> None:
    wrong = [f"{path.relative_to(PRODUCT.parent)}:{node.lineno}"
             for path in SOURCES for node in ast.walk(ast.parse(path.read_bytes()))
             if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
             and (ast.get_docstring(node) or "").startswith(NO_SENTENCE)]
    assert wrong == []


def packages_in(sentence: str) -> set[str]:
    """The packages that a sentence about imports names, and modules by their whole name; not what is in brackets."""
    return {name for name in re.findall(r"[a-z_.]+\b", re.sub(r"\(.*?\)", "", sentence))
            if name in FLOORS or (name in PATHS and "." in name)}


@pytest.mark.parametrize("package", PACKAGES)
def test_what_imports_a_package_is_what_it_says(package: str) -> None:
    found = IMPORTED_BY.search(docstring(package))
    assert found is not None
    sentence = found[1] or found[2] or "all above"
    said = packages_in(sentence)
    floor = min((FLOORS[top(name)] for name in said), default=FLOORS[package] if "." not in package else 0)
    importers = {module for module, path in PATHS.items() if not within(module, [package])
                 and any(within(name, [package]) for name in own(path))}
    assert {module for module in importers if not within(module, said)
            and not ("above" in sentence and FLOORS[top(module)] > floor)} == set()
    assert {name for name in said - {BY_NAME} if not any(within(module, [name]) for module in importers)} == set()


@pytest.mark.parametrize("package", [name for name in PACKAGES if IMPORTS.search(docstring(name))])
def test_what_a_package_imports_is_what_it_says(package: str) -> None:
    found = IMPORTS.search(docstring(package))
    assert found is not None
    sentence, _, none_of = found[1].partition("and not ")
    imported = {name for module, path in PATHS.items() if within(module, [package]) for name in own(path)}
    others = {top(name) for name in imported} - {top(package)}
    assert packages_in(sentence) == others if sentence.endswith(" alone") else packages_in(sentence) <= others
    assert packages_in(none_of) & others == set()
