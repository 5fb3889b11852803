"""Docstrings: every module has one, a function's begins with a sentence, and the modules that they name exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from test_floors import FLOORS, MODULES, ROOT

#: The hook has no suffix.
SOURCES = [*MODULES.values(), *(ROOT / "guest").rglob("*.py"), ROOT / "hooks/vmpin-hook"]
#: Beginnings of what is no sentence: a parameter alone, a question without its answer, and fragments.
NO_SENTENCE = (":", "What ", "Which ", "As ", "By ", "From ", "Of ", "Those ", "With ", "Without ")
#: `package.module` or `package.module.name`, with the name of one of vmpin's packages in front.
MODULE_NAME = re.compile(rf"(?<![\w/`.-])((?:{'|'.join(FLOORS)})(?:\.[a-z_]\w*)+)(?![\w/`-])")
#: A package's docstring lists its modules, each with what it has: `counters, facts: values that are shown`.
LISTED = re.compile(r"(?:^|\n|\. )([a-z_]+(?:,\s[a-z_]+)*): ")
FILE_SUFFIXES = (".json", ".yaml", ".toml", ".md")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def docstrings(path: Path) -> dict[int, str]:
    """By line: of the module, its classes and its functions."""
    return {getattr(node, "lineno", 1): text for node in ast.walk(tree(path))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and (text := ast.get_docstring(node))}


def exists(name: str) -> bool:
    """Whether a module has that name, or its beginning, and then whether that module contains the last part."""
    owner, _, member = name.rpartition(".")
    return name in MODULES or (owner in MODULES and bool(re.search(rf"\b{member}\b", MODULES[owner].read_text())))


def test_every_module_has_a_docstring() -> None:
    assert [path for path in SOURCES if not ast.get_docstring(tree(path))] == []


def test_the_docstring_of_a_function_begins_with_a_sentence() -> None:
    assert [f"{path.relative_to(ROOT)}:{node.lineno}" for path in SOURCES for node in ast.walk(tree(path))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (ast.get_docstring(node) or "").startswith(NO_SENTENCE)] == []


def test_the_modules_that_docstrings_name_exist() -> None:
    assert [f"{path.relative_to(ROOT)}:{line}: {name}" for path in SOURCES for line, text in docstrings(path).items()
            for name in MODULE_NAME.findall(text) if not name.endswith(FILE_SUFFIXES) and not exists(name)] == []


def test_the_modules_that_a_package_lists_exist() -> None:
    packages = [path for path in MODULES.values() if path.name == "__init__.py"]
    listed = [(path.parent, name) for path in packages for names in LISTED.findall(ast.get_docstring(tree(path)) or "")
              for name in re.split(r",\s", names)]
    assert len(listed) > 50
    assert [str(package / name) for package, name in listed
            if not (package / f"{name}.py").exists() and not (package / name).is_dir()] == []
