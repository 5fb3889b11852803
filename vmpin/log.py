"""Logging to standard error: one line a decision, with stable `key=value` fields. systemd's journal reads it there.

Levels. error: something is not as wanted, and vmpin cannot change that. warning: something unexpected that was worked
around. info: a decision and its outcome. debug: every system call that changes a mask, and threads that ended
meanwhile.

A line about a sandbox has `sandbox=%s`, `container=%s` or another key of `_SUBJECT` in its format string. It then ends
in ` pod=NAMESPACE/NAME`, once the name is known: the handler looks that up, so that a line that is not shown costs
nothing. A line that has its pod from elsewhere passes it as `extra={"pod": …}`.

Every line logged while an event is handled ends in ` op=N`: the same N from the source's line to the masks that were
read back.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, wraps
from threading import get_ident
from typing import Any, ParamSpec, TextIO, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

_SYSLOG = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}

#: Characters written at once: at most 4096 bytes (PIPE_BUF), for which poll(2) promises room in a pipe (pipe(7)).
_PART = 1024
#: Milliseconds for a reader that is slow, as in a burst of lines.
_PATIENCE = 100

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
            if _numbered():
                return function(*args, **more)
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


class LineLimit:
    """A limit for lines that others can cause: `most` at once, and one more for every `seconds` since then."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._left: float = most
        self._at = time.monotonic()

    def spend(self, level: int) -> int:
        """Count a line. :returns: its level: DEBUG if it exceeds the limit."""
        before, self._at = self._at, time.monotonic()
        self._left = min(self._most, self._left + (self._at - before) / self._seconds)
        if self._left < 1:
            return logging.DEBUG
        self._left -= 1
        return level


def raised_at(err: BaseException) -> str:
    """Where an error was raised, for a line of the log: `hook_state.py:57`. "" if it was not raised."""
    place, last = "", err.__traceback__
    while last is not None:
        place, last = f"{last.tb_frame.f_code.co_filename.rpartition('/')[2]}:{last.tb_lineno}", last.tb_next
    return place


#: The keys whose values name a sandbox or container, by its id or by a path with that, the most exact first.
_SUBJECT = ("sandbox", "sandboxes", "container", "cgroup", "path", "file")
_CONVERSION = r"(?:(\w+)=)?%(?:%|[-+ #0]*\d*(?:\.\d+)?[a-zA-Z])"

#: The keys by which `vmpin logs` chooses lines, in texts of these types they may be of others' choice.
_FEIGNED, _FROM_OUTSIDE = r"\b(sandbox(?:es)?|container)=", (str, BaseException)

#: How a line ends that names a pod or an operation. After text from outside that ends so comes ` pod=-`.
_ENDING = re.compile(r" (?:pod|op)=\S+$")

#: Returns `namespace/name` of the pod of a sandbox or container, "" if it is unknown; None before `name_pods`.
_pod_of: Callable[[str], str] | None = None


def name_pods(pod_of: Callable[[str], str]) -> None:
    """Have lines about sandboxes and containers end in the names of their pods.
    :param pod_of: returns `namespace/name` by an id, or by a path that has it; "" if it is unknown."""
    global _pod_of
    _pod_of = pod_of


@lru_cache(1024)
def subjects(form: str) -> tuple[int, ...]:
    """The places of the arguments of a format string that name sandboxes and containers, the most exact first."""
    keys = [match[1] for match in re.finditer(_CONVERSION, form) if match[0][-2:] != "%%"]
    return tuple(place for key in _SUBJECT for place, other in enumerate(keys) if other == key)


def pod_of_line(record: logging.LogRecord) -> str:
    """The pod that a line is about, `namespace/name`; several with commas; "" if there is none, or it is unknown."""
    pod = getattr(record, "pod", None)
    if pod is not None:
        return _one_word(f"{pod.namespace}/{pod.name}")
    args = record.args
    if _pod_of is not None and args and isinstance(args, tuple):
        for place in subjects(record.msg):
            pods = dict.fromkeys(_one_word(_pod_of(name)) for name in str(args[place]).split(","))
            if names := ",".join(filter(None, pods)):
                return names
    return ""


def _one_word(name: str) -> str:
    """Kubernetes' names have neither blanks nor commas; those of a forged annotation may, and would feign keys."""
    return name.replace(" ", "_").replace(",", "_")


class _Unkeyed:
    """A text from outside, in which no key names a sandbox or container: `sandbox\\x3dID`."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return _unkeyed(str(self._value))

    def __repr__(self) -> str:
        return _unkeyed(repr(self._value))


def _unkeyed(text: str) -> str:
    return re.sub(_FEIGNED, r"\1\\x3d", text) if "=" in text else text


def _text(record: logging.LogRecord) -> str:
    """The line's text. Only its format has keys: a guest's error, or a thread's name, may have any text."""
    args = record.args
    if not isinstance(args, tuple) or not any(isinstance(arg, _FROM_OUTSIDE) and "=" in str(arg) for arg in args):
        return record.getMessage()
    return str(record.msg) % tuple(_Unkeyed(arg) if isinstance(arg, _FROM_OUTSIDE) else arg for arg in args)


def _printable(text: str) -> str:
    """The text in one line and harmless to a terminal: threads and files have names of others' choice."""
    return text if text.isprintable() else "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _message(record: logging.LogRecord, place: str = "") -> str:
    """A line without time and level. :param place: a traceback, before the pod and the number."""
    text = _printable(_text(record) + _unkeyed(place))
    if pod := pod_of_line(record):
        text = f"{text} pod={pod}"
    elif _ENDING.search(text):
        text = f"{text} pod=-"
    return f"{text} op={_current}" if _numbered() else text


class Text(logging.Formatter):
    """For a terminal: with the time and the level."""

    def format(self, record: logging.LogRecord) -> str:
        # logging's own would make the message twice.
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {_message(record)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

    def formatException(self, ei: Any) -> str:
        """Indented, and ended as other lines are: the text of an error feigns neither a line nor a pod."""
        lines = map(_printable, _unkeyed(super().formatException(ei)).splitlines())
        return "\n".join(f"  {line} pod=-" if _ENDING.search(line) else f"  {line}" for line in lines)


class _Journal(logging.Formatter):
    """With the level as the journal reads it (sd-daemon(3)), and without the time, which the journal adds."""

    def format(self, record: logging.LogRecord) -> str:
        # A traceback in the same line: the journal would make an entry of each of its lines, without the level.
        place = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"<{_SYSLOG.get(record.levelno, 6)}>{_message(record, place)}"


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        pod = pod_of_line(record)
        return json.dumps({"time": round(record.created, 6), "level": record.levelname.lower(),
                           "module": record.name, "message": _text(record),
                           **({"pod": pod} if pod else {}), **({"op": _current} if _numbered() else {}),
                           **({"traceback": self.formatException(record.exc_info)} if record.exc_info else {})})


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to standard error while it is read. Where its pipe or socket stays full, as while containerd or
    journald hangs, lines are dropped, and counted in the next one: a write would wait, and the whole watcher with it,
    the answers to the runtime included."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._lost, self._cut = 0, False
        self._poll: select.poll | None = None
        with suppress(AttributeError, OSError, TypeError, ValueError):  # it is closed, or no file
            poll = select.poll()
            poll.register(sys.stderr, select.POLLOUT)
            self._poll = poll

    def _has_room(self) -> bool:
        return self._poll is None or bool(self._poll.poll(0 if self._lost else _PATIENCE))

    def emit(self, record: logging.LogRecord) -> None:
        if self._lost and self._has_room():
            lost, self._lost = self._lost, 0
            self.emit(logging.makeLogRecord({"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING",
                                             "msg": "lines lost=%d: standard error was not read", "args": (lost,)}))
            if self._lost:
                self._lost = lost  # this one was, too
        try:
            text = "\n" * self._cut + self.format(record) + self.terminator
            for at in range(0, len(text), _PART):
                if not self._has_room():
                    self._lost, self._cut = self._lost + 1, self._cut or at > 0
                    return
                self.stream.write(text[at:at + _PART])
                self.flush()
            self._cut = False
        except Exception:
            self.handleError(record)


def setup(level: str, as_json: bool = False) -> None:
    """Log to standard error; :param level: debug, info, warning or error."""
    handler = _Stderr()
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
