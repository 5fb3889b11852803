"""Numbers from outside: command lines, files of other programs, messages, JSON, YAML, TOML, people.

Everything that reads such a number calls this with the largest value that makes sense in its place. So arithmetic
never gets an infinite or absurd number, and no set, list or loop is sized by one. An invalid number is None (or a
ValueError), never another number. Shared with the guest agent: standard library only, Python 3.9.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Iterable, List, Optional, Union

#: No process has a higher number: PID_MAX_LIMIT is 2^22 (include/linux/threads.h).
MAX_PID = (1 << 22) - 1
#: The largest file descriptor that a process can have: sysctl fs.nr_open is at most this (fs/file.c).
MAX_FD = (1 << 31) - 1
#: A signed 64-bit number: ids, generations, nanoseconds.
MAX_INT64 = (1 << 63) - 1
#: Characters of one number in JSON: a signed 64-bit one has 20, a double 25.
_MAX_JSON_NUMBER = 40
# Patterns that few commands need are texts, which `re` compiles at their first use and caches.
_LONG_NUMBER = rb"[0-9.eE+-]{41}"
#: Beyond 1e308 a double is infinite.
_LARGE_REAL = rb"[eE]\+?0*[0-9]{3}"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

_REAL = r"(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,3})?"

Text = Union[str, bytes]


def parse_whole(text: Text, most: int, least: int = 0, base: int = 10) -> Optional[int]:
    """Parse a whole number from `least` to `most`; None for anything else. Only ASCII digits are taken, without sign,
    blank or `_`, and no more of them than `most` has (leading zeros count).

    >>> parse_whole("17", 8192), parse_whole("000000001999999999", 8192), parse_whole("+17", 8192)
    (17, None, None)

    :param base: 10, or 16 (with or without `0x`)."""
    if base == 10:
        if not text.isdigit() or not text.isascii() or len(text) > len(str(most)):
            return None
    elif not text.isalnum() or not text.isascii() or len(text) > len(hex(most)):
        return None
    try:
        number = int(text, base)
    except ValueError:
        return None
    return number if least <= number <= most else None


def checked_parse(text: Text, most: int) -> int:
    """Parse a whole number from 0 to `most`, as `parse_whole`. :raises ValueError: instead of None."""
    number = parse_whole(text, most)
    if number is None:
        raise ValueError(f"{text[:40]!r} is no whole number from 0 to {most}")
    return number


def parse_wholes(texts: Iterable[Text], most: int, count: int) -> Optional[List[int]]:
    """Parse at most `count` whole numbers, each from 0 to `most`. None if one is invalid, or at the first beyond
    `count`."""
    numbers: List[int] = []
    for text in texts:
        number = parse_whole(text, most)
        if number is None or len(numbers) == count:
            return None
        numbers.append(number)
    return numbers


def whole(value: object, most: int, least: int = 0) -> Optional[int]:
    """Check that a value of JSON, YAML or TOML is a whole number from `least` to `most`; None for anything else, also
    for true and false."""
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def checked_whole(value: object, most: int, least: int = 0) -> int:
    """Check as `whole`. :raises ValueError: instead of None."""
    number = whole(value, most, least)
    if number is None:
        raise ValueError(f"{_shown(value)} is no whole number from {least} to {most}")
    return number


def parse_real(text: str, most: float, least: float = 0.0) -> Optional[float]:
    """Parse a decimal number from `least` to `most`; None for anything else, also for a sign, `inf` and `nan`.

    >>> parse_real("2.5", 60), parse_real("1e999", 60), parse_real("nan", 60)
    (2.5, None, None)"""
    return real(float(text), most, least) if re.fullmatch(_REAL, text) else None


def real(value: object, most: float, least: float = 0.0) -> Optional[float]:
    """Check that a value of JSON, YAML or TOML is a finite number from `least` to `most`, and return it as a float;
    None for anything else, also for true and false."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        return None
    return float(value) if isinstance(value, int) or math.isfinite(value) else None


def checked_real(value: object, most: float) -> float:
    """Check that a value is a number from 0 to `most`, as `real`. :raises ValueError: instead of None."""
    number = real(value, most)
    if number is None:
        raise ValueError(f"{_shown(value)} is no number from 0 to {most:g}")
    return number


def _shown(value: object) -> str:
    # Not an int's digits: converting a large one costs more than all else.
    return repr(str(value)[:40]) if isinstance(value, (float, str)) else f"a value of type {type(value).__name__}"


def load_json(raw: Union[str, bytes, bytearray], values: Optional[int] = None, depth: Optional[int] = None) -> Any:
    """Parse JSON (bytes: UTF-8) whose numbers are finite and have at most 40 characters; `whole` then bounds a whole
    number to what makes sense in its place.
    :param values: the most values (keys are not counted), checked before any is made.
    :param depth: how deep objects and lists may be nested; None: Python's recursion limit.
    :raises ValueError: it is no such JSON."""
    body = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else bytes(raw)
    text = raw if isinstance(raw, str) else raw.decode("utf-8")  # json would take UTF-16, too
    large = _check_shape(body, values, depth)
    try:
        return json.loads(text, parse_float=_json_real if large else None, parse_constant=_json_constant)
    except RecursionError:
        raise ValueError("it is nested too deep: beyond Python's recursion limit") from None


def _check_shape(body: bytes, values: Optional[int], depth: Optional[int]) -> bool:
    """Check numbers, count and depth before parsing: Python's parser recurses, makes an object of each value, and
    before 3.11 takes seconds for a number of a million digits. Its own hooks, called for each value, take twice as
    long. :returns: True if a number may be infinite."""
    # Without escapes, every second part between quotation marks is the content of a string.
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if values is not None and body.count(b'"') > 4 * values + 4:
        raise ValueError(f"it holds more than {values} values")
    outside = b"".join(body.split(b'"')[::2])
    brackets = outside.translate(None, _NOT_BRACKETS)
    if values is not None and outside.count(b",") + len(brackets) > values:
        raise ValueError(f"it holds more than {values} values")
    nested = 0
    for bracket in brackets if depth is not None else b"":
        nested += 1 if bracket in b"[{" else -1
        if depth is not None and nested > depth:
            raise ValueError(f"it is more than {depth} deep")
    if re.search(_LONG_NUMBER, outside):
        raise ValueError(f"a number is too long (more than {_MAX_JSON_NUMBER} characters)")
    return re.search(_LARGE_REAL, outside) is not None


def _json_real(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text} is infinite")
    return number


def _json_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")
