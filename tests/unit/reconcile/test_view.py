"""No module outside the package reaches through the reconciler: readers have the view, and it changes nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from newcomers import Machine, own

from vmpin.reconcile.view import NodeView

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
    """What a module reads two attributes deep through a reconciler, but its view."""
    tree = ast.parse(path.read_bytes())
    names = {"reconciler", "_reconciler", *names_of_reconcilers(tree)} - {"view", "_view"}
    return [ast.unparse(node) for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr != "view"
            and ast.unparse(node.value.value).rpartition(".")[2] in names]


def test_no_module_reaches_through_the_reconciler() -> None:
    assert {str(path): found for path in OUTSIDE if (found := deep(path))} == {}


def test_the_view_has_no_attribute_that_can_be_set_and_no_second_one(machine: Machine) -> None:
    view = machine.reconciler.view
    for name, member in vars(NodeView).items():
        if isinstance(member, property):
            assert member.fset is None
            with pytest.raises(AttributeError):
                setattr(view, name, None)
    with pytest.raises(AttributeError):
        view.more = 1  # type: ignore[attr-defined]


def test_the_view_shows_what_is_so_now(machine: Machine) -> None:
    view = machine.reconciler.view
    assert (view.vms, view.placements) == ({}, {})
    machine.vmm("a")
    machine.reconciler.resync(full=True)
    assert view.vms.keys() == view.placements.keys() == view.sandboxes.keys() == own(view.vm_sandboxes())
    assert view.state is machine.reconciler.state
