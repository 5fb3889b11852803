"""The collections that objects hold, with their lengths, found by walking every object that they refer to.

Each is named by the class and attribute that hold it (`NriProcesses._pods`; with `[]` for what is in another
collection), or by the function and variable. Of several with one name the lengths are added up. Entries of a cache
with a limit (functools.lru_cache) do not count.
"""

from __future__ import annotations

import logging
import sqlite3
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from gc import get_referents
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

_SEQUENCES = (list, set, frozenset, tuple, deque)
#: What leads to everything there is, and is no state of an object.
_ASIDE = (type, ModuleType, CodeType, logging.Logger, logging.Handler, threading.Thread, sqlite3.Connection)


def lengths(*roots: object) -> Counter[str]:
    """The lengths of what `roots` refer to, and of what the modules of vmpin and the running functions of other
    threads do."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: deque[tuple[str, object]] = deque((type(root).__qualname__, root) for root in roots)
    waiting += _of_modules()
    waiting += _of_threads()
    keep = []  # else the id of an object that is made meanwhile might be another's
    while waiting:
        name, item = waiting.popleft()
        if id(item) in seen or isinstance(item, _ASIDE):
            continue
        seen.add(id(item))
        keep.append(item)
        if isinstance(item, dict):
            found[name] += len(item)
            waiting += ((f"{name}[]", part) for pair in list(item.items()) for part in pair)
        elif isinstance(item, _SEQUENCES):
            found[name] += len(item)
            waiting += ((f"{name}[]", part) for part in list(item))
        else:
            waiting += _parts(name, item)
    return found


def grown(before: Mapping[str, int], now: Mapping[str, int], slack: int) -> list[tuple[str, int, int]]:
    """The collections with over `slack` more elements than before, and both lengths. What is within another collection
    may have as many for each of its elements."""
    return [(name, before.get(name, 0), count) for name, count in now.items()
            if count > before.get(name, 0) + (slack * 8 if "[]" in name else slack)]


def _of_modules() -> Iterator[tuple[str, object]]:
    """What the modules of vmpin have in their variables: their own collections, and caches without a limit."""
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "vmpin"]:
        for name, value in list(vars(module).items()):
            if isinstance(value, dict | list | set | deque) and not name.startswith("__"):
                yield f"{module.__name__}.{name}", value
            elif hasattr(value, "cache_parameters") and value.cache_parameters()["maxsize"] is None:
                yield f"{module.__name__}.{name}", [None] * value.cache_info().currsize


def _of_threads() -> Iterator[tuple[str, object]]:
    """The variables of the functions of vmpin that other threads are in."""
    own = threading.get_ident()
    for thread, top in sys._current_frames().items():
        frame: FrameType | None = top if thread != own else None
        while frame is not None:
            yield from _variables(frame, "vmpin")
            frame = frame.f_back


def _variables(frame: FrameType, *packages: str) -> Iterable[tuple[str, object]]:
    """The variables of a function of one of these packages."""
    if str(frame.f_globals.get("__name__")).partition(".")[0] not in packages:
        return []
    return [(f"{frame.f_code.co_qualname}:{name}", value) for name, value in frame.f_locals.items()]


def _parts(name: str, item: Any) -> Iterable[tuple[str, object]]:
    """What an object that is no collection refers to."""
    if isinstance(item, FunctionType):  # its globals are of its module
        return [(name, part) for part in (*(item.__closure__ or ()), *(item.__defaults__ or ()))]
    if isinstance(item, MethodType):
        return [(name, item.__self__), (name, item.__func__)]
    if (frame := getattr(item, "cr_frame", None) or getattr(item, "ag_frame", None)
            or getattr(item, "gi_frame", None)) is not None:
        return _variables(frame, "vmpin", "asyncio", "contextlib")
    if hasattr(item, "cache_parameters"):
        return []
    holder = type(item).__qualname__
    slots = [slot for base in type(item).__mro__ for slot in _slots(base)]
    attributes = {**getattr(item, "__dict__", {}), **{slot: getattr(item, slot) for slot in slots
                                                      if hasattr(item, slot)}}
    if attributes:
        return [(f"{holder}.{attribute}", part) for attribute, part in attributes.items()]
    return [(holder, part) for part in get_referents(item)]


def _slots(base: type) -> Iterable[str]:
    slots = vars(base).get("__slots__", ())
    return [slots] if isinstance(slots, str) else slots
