"""Values of verbs' options, checked: a directory, a file to write, a time back from now."""

from __future__ import annotations

import os
import re
from pathlib import Path

from vmpin.bounded import parse_whole
from vmpin.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = 7 * 86400


def directory(text: str) -> Path:
    """An option's directory, absolute. With `..` in it links are resolved: abspath() would reduce `link/..` to the
    directory of the link. :raises UsageError: for an empty path."""
    if not text:
        raise UsageError("an empty path names no directory", "is a variable unset?")
    return Path(os.path.realpath(text) if ".." in Path(text).parts else os.path.abspath(text))


def new_file(text: str) -> str:
    """An option's output file; Path() would drop the slash of a directory. :raises UsageError: for one."""
    if os.path.basename(text) in ("", ".", "..") or (text != "-" and os.path.isdir(text)):
        raise UsageError(f"{text!r} names no file to write", "it is empty, or a directory's name")
    return text


def duration(text: str) -> int:
    """Seconds from `90s`, `30m`, `24h` or `7d`. :raises UsageError: for any other text, and more than seven days."""
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    number = None if match is None else parse_whole(match[1], _LONGEST, 1)
    if match is not None and number is not None and (seconds := number * _UNITS[match[2]]) <= _LONGEST:
        return seconds
    raise UsageError(f"--since {text}: is not a duration of at most seven days", "e.g. --since 90s, 30m, 24h or 7d")
