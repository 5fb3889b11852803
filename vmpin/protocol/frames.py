"""The frames in which the host and the agent in a guest speak: `u32 big-endian length | UTF-8 JSON object`.

Shared by both ends, so it is the standard library only and runs on Python 3.9. What is read is bounded in length,
depth, count and size of numbers. What stays out: what the messages say (guestproto).
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

#: The longest JSON text of a frame, in bytes.
MAX_FRAME = 1 << 20
#: How deep objects and lists may be within each other, and how many values there may be in all: a few bytes of JSON
#: would otherwise take hundreds of Python's.
MAX_DEPTH = 16
MAX_VALUES = 100_000
#: How many ids a list may hold; and an MPIDR has 40 bits.
MAX_CPUS = 8192
MAX_HW = (1 << 40) - 1

_HEADER = struct.Struct(">I")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_RANGE = re.compile(r"([0-9]{1,13})(?:-([0-9]{1,13}))?")


class ProtocolError(ValueError):
    """What came is not this protocol; `id` is the question's that it came in, where that could be read."""

    def __init__(self, why: str, id: Optional[int] = None) -> None:
        super().__init__(why)
        self.id = id


class FrameDecoder:
    """Messages out of a stream of bytes; keeps one frame at most, of at most `limit` bytes."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._error: Optional[ProtocolError] = None

    def feed(self, data: bytes) -> List[Dict[str, Any]]:
        """The messages that are complete with what came next, as JSON objects.

        :raises ProtocolError: when a frame is too long (as soon as it says so), too deep or no JSON object, and then
            always: the connection is of no more use.
        """
        if self._error is not None:
            raise self._error
        found = []
        at = 0
        try:
            while at < len(data):
                step = self._wanted() - len(self._buffer)
                self._buffer += data[at : at + step]
                at += step
                if len(self._buffer) >= _HEADER.size and len(self._buffer) == self._wanted():
                    body = bytes(self._buffer[_HEADER.size :])
                    self._buffer.clear()
                    found.append(_object(body))
        except ProtocolError as err:
            self._error = err
            self._buffer = bytearray()
            raise
        return found

    @property
    def pending(self) -> int:
        """How many bytes wait for the rest of their frame."""
        return len(self._buffer)

    def _wanted(self) -> int:
        """How long the buffer has to be for the next step: a header, or the frame that it begins."""
        if len(self._buffer) < _HEADER.size:
            return _HEADER.size
        (length,) = _HEADER.unpack_from(self._buffer)
        if not 2 <= length <= self.limit:
            raise ProtocolError(f"a frame says it is {length} bytes long, and may be 2 to {self.limit}")
        return _HEADER.size + int(length)


def encode(message: Mapping[str, object]) -> bytes:
    """A message as a frame. :raises ProtocolError: when it is longer than the other end would take."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"a message of {len(body)} bytes is too long to send")
    return _HEADER.pack(len(body)) + body


def _object(body: bytes) -> Dict[str, Any]:
    _check_shape(body)
    try:
        found = json.loads(body.decode("utf-8"), parse_int=_int, parse_float=_float, parse_constant=_int)
    except (ValueError, RecursionError) as err:
        raise ProtocolError(f"a frame holds no JSON: {clean(str(err), 100)}") from None
    if not isinstance(found, dict):
        raise ProtocolError("a frame holds no JSON object")
    return found


def _check_shape(body: bytes) -> None:
    """Depth and count, before anything is made of it: Python's parser would recurse, and make an object of each."""
    # Without escapes every second part between quotation marks is within a string.
    outside = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    brackets = outside.translate(None, _NOT_BRACKETS)
    if outside.count(b",") + len(brackets) > MAX_VALUES:
        raise ProtocolError(f"a frame holds more than {MAX_VALUES} values")
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise ProtocolError(f"a frame holds JSON more than {MAX_DEPTH} deep")


def _int(text: str) -> int:
    """Python 3.9 takes seconds for a number of a million digits."""
    if len(text) > 20:
        raise ValueError("a number is too long")
    return int(text)  # of NaN and Infinity a ValueError, too


def _float(text: str) -> float:
    if len(text) > 40:
        raise ValueError("a number is too long")
    return float(text)


def clean(text: str, limit: int = 400) -> str:
    """`text` with nothing in it that steers a terminal, cut to `limit` characters."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[:limit])
    return shown if len(shown) <= limit and len(text) <= limit else shown[: limit - 3] + "..."


def parse_ids(text: str) -> Tuple[int, ...]:
    """Hardware ids of a list such as `0,2-3`, ascending; blank text is none.

    Not a CpuSet: an MPIDR such as 0x10000 is beyond any CPU number.

    :raises ProtocolError: it is no list, or longer than a machine has CPUs.
    """
    found: Set[int] = set()
    for region in text.split(",") if text.strip() else ():
        match = _RANGE.fullmatch(region.strip())
        if match is None:
            raise ProtocolError(f"{clean(region, 40)!r} is no id or range of ids")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > MAX_HW or last - first >= MAX_CPUS:
            raise ProtocolError(f"{region!r} is no range of ids")
        found.update(range(first, last + 1))
        if len(found) > MAX_CPUS:
            raise ProtocolError(f"a list of more than {MAX_CPUS} ids")
    return tuple(sorted(found))


def format_ids(ids: Sequence[int]) -> str:
    """The ids as `parse_ids` reads them."""
    parts: List[List[int]] = []
    for each in sorted(set(ids)):
        if parts and parts[-1][1] + 1 == each:
            parts[-1][1] = each
        else:
            parts.append([each, each])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
