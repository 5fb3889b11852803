"""The frames between the host and the agent in a guest: `u32 big-endian length | UTF-8 JSON object`.

Input is limited in length, depth, count and size of numbers."""

import json
import re
import struct
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from vmpin.bounded import load_json

#: The longest JSON text of a frame, in bytes.
MAX_FRAME = 1 << 20
#: The limits on nesting and on the number of values: a byte of JSON may otherwise take hundreds of bytes as objects.
#: The outcomes of 1,024 containers are some 28,000 values, keys not counted.
MAX_DEPTH = 16
MAX_VALUES = 32_768
#: The limit on the ids in a list; and the highest id, as an MPIDR has 40 bits.
MAX_CPUS = 8192
MAX_HW = (1 << 40) - 1

_HEADER = struct.Struct(">I")
_RANGE = re.compile(r"([0-9]{1,13})(?:-([0-9]{1,13}))?")


class ProtocolError(ValueError):
    """The bytes are not this protocol. `id` is that of the request they came in, if it could be read."""

    def __init__(self, why: str, id: Optional[int] = None) -> None:
        super().__init__(why)
        self.id = id


class FrameDecoder:
    """Extracts messages from a stream of bytes. Keeps at most a part of one frame of `limit` bytes."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> List[Dict[str, Any]]:
        """Take the next bytes. :returns: the messages that they complete, as JSON objects.
        :raises ProtocolError: a frame is too long (raised when its length was read), too deep or no JSON object. Every
            later call raises it again, because the frame is kept: the connection is of no more use."""
        messages = []
        at, buffer = 0, self._buffer
        buffer += data
        while len(buffer) >= at + _HEADER.size:
            (length,) = _HEADER.unpack_from(buffer, at)
            if not 2 <= length <= self.limit:
                raise ProtocolError(f"a frame is {length} bytes long, and may be 2 to {self.limit}")
            begin, end = at + _HEADER.size, at + _HEADER.size + length
            if len(buffer) < end:
                break
            messages.append(_object(bytes(buffer[begin:end])))
            at = end
        del buffer[:at]
        return messages

    @property
    def pending(self) -> int:
        """The number of bytes of an incomplete frame."""
        return len(self._buffer)


def encode(message: Mapping[str, object]) -> bytes:
    """A message as a frame. :raises ProtocolError: it is longer than the other end accepts."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"a message of {len(body)} bytes is too long to send")
    return _HEADER.pack(len(body)) + body


def _object(body: bytes) -> Dict[str, Any]:
    try:
        message = load_json(body, MAX_VALUES, MAX_DEPTH)
    except ValueError as err:
        raise ProtocolError(f"a frame holds no JSON: {clean(str(err), 100)}") from None
    if not isinstance(message, dict):
        raise ProtocolError("a frame holds no JSON object")
    return message


def clean(text: str, limit: int = 400) -> str:
    """`text` with unprintable characters escaped, so that it cannot control a terminal; cut to `limit` characters."""
    shown = text[:limit]
    if not shown.isprintable():
        shown, head = "", shown
        for char in head:
            if len(shown) > limit:
                break
            shown += char if char.isprintable() else char.encode("unicode_escape").decode()
    return shown if len(shown) <= limit and len(text) <= limit else shown[: limit - 3] + "..."


def parse_ids(text: str, most: int = MAX_CPUS) -> Tuple[int, ...]:
    """The hardware ids in a list such as `0,2-3`, ascending; none in a blank text. Not a CpuSet: an MPIDR such as
    0x10000 is greater than any CPU number.
    :param most: how many ids it may have, below that of any machine's CPUs.
    :raises ProtocolError: it is no such list, or has more ids."""
    ids: Set[int] = set()
    count = 0
    for region in text.split(",") if text.strip() else ():
        match = _RANGE.fullmatch(region.strip())
        if match is None:
            raise ProtocolError(f"{clean(region, 40)!r} is no id or range of ids")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > MAX_HW or last - first >= MAX_CPUS:
            raise ProtocolError(f"{region!r} is no range of ids")
        count += last - first + 1  # before the set is made: a range repeated a thousand times costs as much
        if count > min(most, MAX_CPUS):
            raise ProtocolError(f"a list of more than {min(most, MAX_CPUS)} ids")
        ids.update(range(first, last + 1))
    return tuple(sorted(ids))


def format_ids(ids: Sequence[int]) -> str:
    """The ids as a list that `parse_ids` reads."""
    parts: List[List[int]] = []
    for number in sorted(set(ids)):
        if parts and parts[-1][1] + 1 == number:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
