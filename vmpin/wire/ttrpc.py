"""ttrpc, the small RPC of containerd and of Kata's agent: its frames and the two messages every call is made of.

A frame is `u32 length | u32 stream | u8 type | u8 flags | message`, big-endian (containerd/ttrpc PROTOCOL.md,
channel.go). The few protobuf fields of a request and a response (request.proto) are coded here by hand, so that this
needs no library; the payload within is the caller's. What stays out: sockets, and ttrpc's streams of data (type 3),
which no service spoken to has: they are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from vmpin.errors import WireError

#: The longest message, channel.go: messageLengthMax.
MAX_MESSAGE = 4 << 20

#: gRPC's numbers of what became of a call.
OK = 0
UNIMPLEMENTED = 12

_HEADER = struct.Struct(">IIBB")
_REQUEST = 1
_RESPONSE = 2


class Call(NamedTuple):
    """A call. `stream` is its number: odd, and rising, from a client. `timeout_ns` 0 is none."""

    stream: int
    service: str
    method: str
    payload: bytes = b""
    timeout_ns: int = 0


class Reply(NamedTuple):
    """The answer to the call with this number; `code` is gRPC's, and `message` text of the peer's: print its repr."""

    stream: int
    code: int = OK
    message: str = ""
    payload: bytes = b""


class TtrpcDecoder:
    """Messages out of a stream of bytes. Buffers one message at most, so never more than `limit` and a header."""

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self.limit = limit
        #: Messages of types that are none of ours.
        self.skipped = 0
        self._buffer = bytearray()
        #: Of a message that is skipped, what is yet to come.
        self._skip = 0
        self._error: WireError | None = None

    def feed(self, data: bytes) -> list[Call | Reply]:
        """The messages that are complete with what came next.

        :raises WireError: when the stream is no ttrpc or a message is longer than `limit` (as soon as its header is
            there), and then always: where the next message would begin, nobody can tell.
        """
        if self._error is not None:
            raise self._error
        found: list[Call | Reply] = []
        at = 0
        try:
            while at < len(data):
                if self._skip:
                    step = min(self._skip, len(data) - at)
                    self._skip -= step
                    at += step
                    continue
                wanted = self._wanted() - len(self._buffer)
                self._buffer += data[at : at + wanted]
                at += wanted
                if len(self._buffer) == self._wanted():
                    message = self._take()
                    if message is not None:
                        found.append(message)
        except WireError as err:
            self._error = err
            self._buffer.clear()
            raise
        return found

    def _wanted(self) -> int:
        """How many bytes the buffer has to have before anything can be done: a header, or the message after it."""
        if len(self._buffer) < _HEADER.size:
            return _HEADER.size
        length, _, kind, _ = _HEADER.unpack_from(self._buffer)
        if length > self.limit:
            raise WireError("ttrpc", f"a message says it is {length} bytes long, at most {self.limit} are read")
        return _HEADER.size + length if kind in (_REQUEST, _RESPONSE) else _HEADER.size

    def _take(self) -> Call | Reply | None:
        length, stream, kind, _ = _HEADER.unpack_from(self._buffer)
        if kind not in (_REQUEST, _RESPONSE):
            self.skipped += 1
            self._skip = length
            self._buffer.clear()
            return None
        body = bytes(self._buffer[_HEADER.size :])
        self._buffer.clear()
        return _request(stream, body) if kind == _REQUEST else _response(stream, body)


def encode(message: Call | Reply) -> bytes:
    """A message as it goes over the wire. :raises WireError: when it is longer than a peer would take."""
    if isinstance(message, Call):
        kind, body = _REQUEST, b"".join((
            _bytes(1, message.service.encode()), _bytes(2, message.method.encode()), _bytes(3, message.payload),
            _number(4, message.timeout_ns)))
    else:
        status = b""
        if message.code or message.message:
            status = _bytes(1, _number(1, message.code) + _bytes(2, message.message.encode()))
        # A success without a payload is an empty body: ttrpc's own way.
        kind, body = _RESPONSE, status + _bytes(2, message.payload)
    if len(body) > MAX_MESSAGE:
        raise WireError("ttrpc", f"a message of {len(body)} bytes is too long to send")
    return _HEADER.pack(len(body), message.stream, kind, 0) + body


def _request(stream: int, body: bytes) -> Call:
    service, method, payload, timeout = "", "", b"", 0
    for field, value in _fields(body):
        match field, value:
            case 1, bytes():
                service = _text(value)
            case 2, bytes():
                method = _text(value)
            case 3, bytes():
                payload = value
            case 4, int():
                timeout = value
    return Call(stream, service, method, payload, timeout)


def _response(stream: int, body: bytes) -> Reply:
    code, message, payload = OK, "", b""
    for field, value in _fields(body):
        match field, value:
            case 1, bytes():
                for inner, item in _fields(value):
                    match inner, item:
                        case 1, int():
                            code = item
                        case 2, bytes():
                            message = item.decode("utf-8", "replace")
            case 2, bytes():
                payload = value
    return Reply(stream, code, message, payload)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as err:
        raise WireError("ttrpc", f"a name is no UTF-8: {raw[:40]!r}") from err


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """A protobuf message's fields in order: numbers signed, the rest as bytes; those of fixed width are skipped."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        field, kind = key >> 3, key & 7
        if not 0 < field < 1 << 29:
            raise WireError("ttrpc", f"field {field} is no protobuf")
        if kind == 0:
            value, at = _varint(raw, at)
            yield field, value - (1 << 64) if value >> 63 else value
        elif kind in (1, 2, 5):
            length, at = _varint(raw, at) if kind == 2 else (8 if kind == 1 else 4, at)
            if length > len(raw) - at:
                raise WireError("ttrpc", f"field {field} is cut: {length} bytes said, {len(raw) - at} there")
            if kind == 2:
                yield field, raw[at : at + length]
            at += length
        else:
            raise WireError("ttrpc", f"field {field} has the wire type {kind}")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where what follows begins."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            break
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise WireError("ttrpc", "a number is cut or longer than ten bytes")


def _number(field: int, value: int) -> bytes:
    """A number's field; nothing for 0, as proto3 has it."""
    return _uvarint(field << 3) + _uvarint(value & (1 << 64) - 1) if value else b""


def _bytes(field: int, value: bytes) -> bytes:
    return _uvarint(field << 3 | 2) + _uvarint(len(value)) + value if value else b""


def _uvarint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
