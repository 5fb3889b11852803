"""Walks: the functions of vmpin that an event runs through, recorded as they are called, and counted by files."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

PRODUCT = f"{Path(__file__).parents[1] / 'vmpin'}/"
#: Values, which a reader takes as words: they decide nothing, and call nothing on the way.
VALUES = ("bounded.py", "cpuset.py", "errors.py", "log.py", "named_tuple.py", "domain/")
#: What follows from events alone is no value.
DECIDING = ("domain/desired_state.py",)


def is_feature(file: str) -> bool:
    return file.startswith("features/")


class Call(NamedTuple):
    """A function that was called, with its file below vmpin, and the file of vmpin that the call came from ("" for
    none)."""

    file: str
    function: str
    caller: str


class Walk:
    """The calls of one walk, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def until(self, file: str, function: str) -> Walk:
        """The walk up to the last call of a function."""
        last = max(number for number, call in enumerate(self.calls) if call[:2] == (file, function))
        made = Walk()
        made.calls = self.calls[:last + 1]
        return made

    def files(self, *stations: str) -> list[str]:
        """The files crossed: the stations', and those that call on into another. A file that only answers, and those
        of values, do not count."""
        onward = {call.caller for call in self.calls if call.caller != call.file and not is_value(call.file)
                  and "<genexpr>" not in call.function}
        return [file for file in dict.fromkeys(call.file for call in self.calls)
                if not is_value(file) and (file in onward or file in stations)]

    def climbs(self, imports: dict[str, set[str]], floors: dict[str, int]) -> list[tuple[str, str, str]]:
        """The calls upwards, by callback: to a file of a higher floor, or that imports the caller, but for those
        through the seam to a feature. (from, to, function), each once.
        :param imports: the files that each file imports, itself or by way of others. :param floors: of packages."""
        def is_up(call: Call) -> bool:
            if is_feature(call.file) and not is_feature(call.caller):
                return False
            below, above = (floors[file.partition("/")[0].removesuffix(".py")] for file in (call.caller, call.file))
            return above > below or (call.caller in imports[call.file] and call.file not in imports[call.caller])

        return sorted({(call.caller, call.file, call.function) for call in self.calls
                       if call.caller and call.caller != call.file and not is_value(call.caller)
                       and "<genexpr>" not in call.function and is_up(call)})

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(PRODUCT) or frame.f_code.co_name == "<module>":
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PRODUCT):
            caller = caller.f_back
        self.calls.append(Call(file.removeprefix(PRODUCT), frame.f_code.co_qualname,
                               "" if caller is None else caller.f_code.co_filename.removeprefix(PRODUCT)))

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record what this thread, and those that it starts, call."""
        before = sys.getprofile()
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)


def is_value(file: str) -> bool:
    return file.startswith(VALUES) and file not in DECIDING
