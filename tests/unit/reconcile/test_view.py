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


def changes(function: ast.FunctionDef) -> list[str]:
    """The statements of a function that change what is not its own."""
    return [ast.unparse(node) for node in ast.walk(function)
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)]


SHOWN = members("NodeView", ROOT / "reconcile/view.py")
HELD = members("NodeState", ROOT / "reconcile/node_state.py")


def decorators(function: ast.FunctionDef) -> list[str]:
    return [ast.unparse(each) for each in function.decorator_list]


def test_nothing_can_be_set_through_the_view() -> None:
    """mypy refuses what a protocol has no setter for; a mapping that is no `dict` has none either."""
    for name, function in SHOWN.items():
        assert decorators(function) in (["property"], []), name
        assert function.returns is not None, name
        if decorators(function):
            assert not ast.unparse(function.returns).startswith(("dict", "set", "list")), name
    assert not {node.attr for node in ast.walk(ast.parse((ROOT / "reconcile/view.py").read_bytes()))
                if isinstance(node, ast.Attribute)} & {"setter", "deleter"}


def test_what_the_view_shows_changes_nothing() -> None:
    """Each of its members that is a function of the node state's only reads; a property may make what it shows."""
    assert {name: found for name in SHOWN if name in HELD and (found := changes(HELD[name]))} == {}
    readers = {name for name, function in SHOWN.items() if not decorators(function)}
    assert readers <= HELD.keys()
    assert {name for name in readers if ast.unparse(HELD[name].returns or ast.Constant(None)) == "None"} == set()


def test_the_view_is_the_node_state_itself(machine: Machine) -> None:
    assert machine.reconciler.view is machine.node_state
    missing = [name for name in SHOWN if not hasattr(machine.node_state, name)]
    assert missing == []


def test_the_view_shows_what_is_so_now(machine: Machine) -> None:
    view = machine.reconciler.view
    assert (view.vms, view.placements) == ({}, {})
    machine.vmm("a")
    machine.reconciler.resync(full=True)
    assert view.vms.keys() == view.placements.keys() == view.sandboxes.keys() == own(view.vm_sandboxes())
    assert view.state is machine.node_state.state
