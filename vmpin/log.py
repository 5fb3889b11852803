"""Logging to standard error: one line a decision, with stable `key=value` fields. systemd's journal reads it there.

Levels. error: something is not as wanted, and vmpin cannot change that. warning: something unexpected that was worked
around. info: a decision and its outcome. debug: every system call that changes a mask, and threads that ended
meanwhile.

Every line logged while an event is handled ends in ` op=N`: the same N from the source's line to the masks that were
read back.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

_SYSLOG = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}

_numbers = itertools.count(1)
#: The current number, 0 for none, and the thread that it is of: lines of other threads have none.
_current, _thread = 0, 0


class _Operation:
    """One `operation`. Not contextlib's: each event goes through several, and those take five calls each."""

    __slots__ = ("_outer",)

    def __enter__(self) -> int:
        global _current, _thread
        self._outer = _current
        _current, _thread = _current or next(_numbers), get_ident()
        return _current

    def __exit__(self, *_: object) -> None:
        global _current
        _current = self._outer

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(function)
        def numbered(*args: _P.args, **more: _P.kwargs) -> _R:
            with _Operation():
                return function(*args, **more)
        return numbered


def operation() -> _Operation:
    """Number the lines that are logged until this ends, as those of the operation around it, else with the next
    number, which `with` returns. Also decorates a function. One number is current at a time, so nothing may be awaited
    meanwhile."""
    return _Operation()


def _numbered() -> bool:
    return _current != 0 and get_ident() == _thread


def _message(record: logging.LogRecord) -> str:
    return f"{record.getMessage()} op={_current}" if _numbered() else record.getMessage()


class Text(logging.Formatter):
    """For a terminal: with the time and the level."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _message(record)
        return super().formatMessage(record)


class _Journal(logging.Formatter):
    """With the level as the journal reads it (sd-daemon(3)), and without the time, which the journal adds."""

    def format(self, record: logging.LogRecord) -> str:
        text = _message(record).replace("\n", "\\n")
        return f"<{_SYSLOG.get(record.levelno, 6)}>{text}"


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"time": round(record.created, 6), "level": record.levelname.lower(),
                           "module": record.name, "message": record.getMessage(),
                           **({"op": _current} if _numbered() else {})})


def setup(level: str, as_json: bool = False) -> None:
    """Log to standard error; :param level: debug, info, warning or error."""
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(_Json())
    elif "JOURNAL_STREAM" in os.environ:
        handler.setFormatter(_Journal())
    else:
        handler.setFormatter(Text())
    logging.root.handlers[:] = [handler]
    # No format here shows a thread, a process or a place in the source: to find them takes a third of a line's time
    # (Python's logging HOWTO, "Optimization").
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    set_level(level)


def set_level(level: str) -> None:
    logging.root.setLevel(logging.WARNING)
    logging.getLogger("vmpin").setLevel(level.upper())
