"""No module outside the package reaches through the reconciler: readers have the view, and it changes nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from newcomers import Machine, own

pytest_plugins = ["given_unit"]

ROOT = Path(__file__).parents[3] / "vmpin"
OUTSIDE = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT / "reconcile")


def names_of_reconcilers(tree: ast.AST) -> Iterator[str]:
    """Parameters and attributes that are annotated as a reconciler, and what such a one is assigned to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None \
                and "Reconciler" in ast.unparse(node.annotation):
            yield node.arg if isinstance(node, ast.arg) else ast.unparse(node.target).rpartition(".")[2]
        elif isinstance(node, ast.Assign) and ast.unparse(node.value).rpartition(".")[2].endswith("reconciler"):
            yield from (ast.unparse(target).rpartition(".")[2] for target in node.targets)


def deep(path: Path) -> list[str]:
    """What a module reads two attributes deep through a reconciler or the node state, but its view."""
    tree = ast.parse(path.read_bytes())
    names = {"reconciler", "_reconciler", "node_state", "_node_state", *names_of_reconcilers(tree)} - {"view", "_view"}
    return [ast.unparse(node) for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)
            and node.value.attr not in ("view", "node_state")
            and ast.unparse(node.value.value).rpartition(".")[2] in names]


def test_no_module_reaches_through_the_reconciler() -> None:
    assert {str(path): found for path in OUTSIDE if (found := deep(path))} == {}


def members(name: str, path: Path) -> dict[str, ast.FunctionDef]:
    """The functions of a class, by their names."""
    body = next(node.body for node in ast.parse(path.read_bytes()).body
                if isinstance(node, ast.ClassDef) and node.name == name)
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


SHOWN = members("NodeView", ROOT / "reconcile/view.py")


def test_nothing_can_be_set_through_the_view() -> None:
    """mypy refuses to set a property without a setter and a `Final` attribute; a mapping that is no `dict` has no
    setter either."""
    for name, function in SHOWN.items():
        if name != "__init__":
            assert [ast.unparse(each) for each in function.decorator_list] in (["property"], []), name
            shown = ast.unparse(function.returns or ast.Constant(None))
            assert shown != "None", name
            assert not function.decorator_list or not shown.startswith(("dict", "set", "list")), name
    for node in ast.walk(SHOWN["__init__"]):
        if isinstance(node, ast.AnnAssign):
            assert ast.unparse(node.annotation).startswith("Final["), ast.unparse(node)
            assert not ast.unparse(node.annotation).startswith(("Final[dict", "Final[set", "Final[list"))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            assert node.targets[0].attr.startswith("_"), ast.unparse(node)


def test_what_the_view_shows_changes_nothing() -> None:
    """Each of its members only reads."""
    changes = {name: ast.unparse(node) for name, function in SHOWN.items() if name != "__init__"
               for node in ast.walk(function)
               if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)}
    assert changes == {}


def test_the_view_shows_what_is_so_now(machine: Machine) -> None:
    view = machine.reconciler.view
    assert (view.vms, view.placements) == ({}, {})
    machine.vmm("a")
    machine.reconciler.resync(full=True)
    assert view.vms.keys() == view.placements.keys() == view.sandboxes.keys() == own(view.vm_sandboxes())
    assert view.state is machine.node_state.state
