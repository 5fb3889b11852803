"""vmpin's NamedTuple behaves as typing's."""

from __future__ import annotations

import ast
import copy
import pickle
import subprocess
import sys
import typing
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from vmpin.named_tuple import NamedTuple

Item = TypeVar("Item")


class Ours(NamedTuple):
    """A thread."""

    tid: int
    name: str = "idle"
    cpus: tuple[int, ...] = ()

    @property
    def shown(self) -> str:
        return f"{self.name}/{self.tid}"


class Theirs(typing.NamedTuple):
    tid: int
    name: str = "idle"
    cpus: tuple[int, ...] = ()


class Box(NamedTuple, Generic[Item]):
    item: Item


class Kept(NamedTuple):
    tid: int

    @cached_property
    def twice(self) -> list[int]:
        return [self.tid, self.tid]


class Derived(Ours):
    extra = 1


@pytest.mark.parametrize(("values", "by_name"), [
    ((1,), {}), ((1, "a"), {}), ((1, "a", (2,)), {}), ((), {"tid": 1}), ((1,), {"cpus": (2,)}),
    ((1,), {"cpus": (2,), "name": "b"}), ((), {"cpus": (), "name": "c", "tid": 9}),
    ((), {}), ((1, "a", (), 4), {}), ((1,), {"nmae": "a"}), ((1,), {"tid": 2}), ((), {"name": "a"})])
def test_it_takes_the_same_arguments(values: tuple[Any, ...], by_name: dict[str, Any]) -> None:
    def made(kind: type[Any]) -> object:
        try:
            return tuple(kind(*values, **by_name))
        except TypeError:
            return TypeError
    assert made(Ours) == made(Theirs)


def test_it_is_a_tuple_with_names() -> None:
    ours: Any = Ours(7, cpus=(1, 2))
    theirs: Any = Theirs(7, cpus=(1, 2))
    assert ours == theirs == (7, "idle", (1, 2))
    assert hash(ours) == hash(theirs)
    assert (ours.tid, ours.shown, ours[2]) == (7, "idle/7", (1, 2))
    assert (Ours._fields, Ours._field_defaults, Ours.__doc__) == (Theirs._fields, Theirs._field_defaults, "A thread.")
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert ours._asdict() == theirs._asdict()
    assert type(ours._replace(name="busy")) is Ours
    assert ours._replace(name="busy") == theirs._replace(name="busy")
    assert Ours._make([7, "idle", (1, 2)]) == ours
    match ours:
        case Ours(tid, _, cpus):
            assert (tid, cpus) == (7, (1, 2))
    assert not hasattr(ours, "__dict__")
    with pytest.raises(AttributeError):
        ours.tid = 8
    with pytest.raises(ValueError, match="nmae"):
        ours._replace(nmae="x")
    with pytest.raises(TypeError):
        Ours._make([7, "idle", (), 1])


@pytest.mark.parametrize("value", [Ours(1), Box("x"), Derived(3, "n")])
def test_it_is_copied_and_pickled(value: Any) -> None:
    for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert (type(again), again) == (type(value), value)


def test_a_subclass_has_a_dictionary() -> None:
    derived = Derived(3)
    vars(derived)["kept"] = 1  # functools.cached_property needs it
    assert (derived, derived.extra) == ((3, "idle", ()), 1)


def test_every_class_is_ours_and_evaluates_no_annotation() -> None:
    """From Python 3.14 on a class has its annotations as text only where its module asks for that."""
    root = Path(__file__).parents[2] / "vmpin"
    for path in root.rglob("*.py"):
        text = path.read_text()
        if "NamedTuple)" in text or "NamedTuple," in text:
            imported = {f"{node.module}.{alias.name}" for node in ast.walk(ast.parse(text))
                        if isinstance(node, ast.ImportFrom) for alias in node.names}
            assert imported >= {"vmpin.named_tuple.NamedTuple", "__future__.annotations"}, path


def test_more_fields_than_there_are_descriptors_are_refused() -> None:
    with pytest.raises(TypeError, match="65 fields"):
        type(NamedTuple)("Wide", (NamedTuple,), {  # type: ignore[misc]
            "__annotations__": {f"at{number}": "int" for number in range(65)}})


def test_a_cached_property_is_kept_and_no_other_class_has_room_for_that() -> None:
    kept = Kept(3)
    assert (kept.twice == [3, 3], kept.twice is kept.twice, Kept(3).twice is kept.twice) == (True, True, False)
    assert (kept == Kept(3) == pickle.loads(pickle.dumps(kept)), kept._replace(tid=4).twice) == (True, [4, 4])
    with pytest.raises(AttributeError):
        Ours(7).more = 1  # type: ignore[attr-defined]


def test_its_fields_are_there_whenever_garbage_is_collected() -> None:
    """By chance, fields of every named tuple of a process were None."""
    ran = subprocess.run([sys.executable, "-c", """
import gc, importlib
from vmpin import named_tuple
for threshold in range(1, 60):
    gc.set_threshold(threshold)
    importlib.reload(named_tuple)
    assert None not in named_tuple._FIELDS, threshold
"""], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
