"""ttRPC, the small RPC of containerd and of Kata's agent: its frames, and the two messages of a call; and the
multiplexer by which NRI has two such connections over one socket.

A frame is `u32 length | u32 stream | u8 type | u8 flags | message`, big-endian (containerd/ttrpc PROTOCOL.md,
channel.go); the message is protobuf (request.proto), its payload the caller's. ttRPC's streams of data (type 3) are
skipped: none of the services called here has them.

A frame of the multiplexer is `u32 connection | u32 length | payload`, big-endian (containerd/nri pkg/net/multiplex).
Its frames are not messages: a message may span several frames, and one frame may end a message and begin the next, so
the payloads of a connection form a stream."""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING

from vmpin.errors import WireError
from vmpin.named_tuple import NamedTuple

if TYPE_CHECKING:
    from vmpin.wire.protos import Messages

#: The longest message, channel.go: messageLengthMax.
MAX_MESSAGE = 4 << 20

#: gRPC's status codes.
OK = 0
UNKNOWN = 2
UNIMPLEMENTED = 12

#: NRI's connections: the runtime calls the plugin's service over the first, the plugin the runtime's over the second.
PLUGIN = 1
RUNTIME = 2
#: The multiplexer's longest frames. Sent: the Go side reads through a buffer of 4096 bytes and treats a longer frame
#: as an error (ENOMEM). Received: ttRPC's longest message with its header.
MAX_SENT, MAX_RECEIVED = 4096, MAX_MESSAGE + 10

_HEADER = struct.Struct(">IIBB")
_FRAME = struct.Struct(">II")
_SUCCESS = struct.Struct(">IIIIBB")
_REQUEST = 1
_RESPONSE = 2


class Call(NamedTuple):
    """A request. `stream` is the number of the call: odd and ascending from a client. `timeout_ns` 0: no timeout."""

    stream: int
    service: str
    method: str
    payload: bytes = b""
    timeout_ns: int = 0


class Reply(NamedTuple):
    """The answer to the call with this number. `code` is gRPC's; `message` is the peer's text: print its repr."""

    stream: int
    code: int = OK
    message: str = ""
    payload: bytes = b""


class TtrpcDecoder:
    """Extracts messages from a stream of bytes. Keeps at most a part of one message of `limit` bytes and its header.
    """

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Call | Reply]:
        """Take the next bytes. :returns: the messages that they complete.
        :raises WireError: the stream is no ttRPC, or a message is longer than `limit` (raised when its header is
            complete); and at every later call, because the message is kept."""
        messages: list[Call | Reply] = []
        at, buffer = 0, self._buffer
        buffer += data
        while len(buffer) >= at + _HEADER.size:
            length, stream, kind, _ = _HEADER.unpack_from(buffer, at)
            if length > self.limit:
                raise WireError("ttrpc", f"a message is {length} bytes long, at most {self.limit} are read")
            begin, end = at + _HEADER.size, at + _HEADER.size + length
            if len(buffer) < end:
                break
            if kind in (_REQUEST, _RESPONSE):
                messages.append(_message(stream, kind, bytes(buffer[begin:end])))
            at = end
        del buffer[:at]
        return messages


def encode(message: Call | Reply) -> bytes:
    """A message with its header, as it is sent. :raises WireError: it is longer than a peer accepts."""
    if isinstance(message, Call):
        kind, protobuf = _REQUEST, _messages()["Request"](
            service=message.service, method=message.method, payload=message.payload, timeout_nano=message.timeout_ns)
    else:
        # A success has no status; without a payload its body is empty.
        kind, protobuf = _RESPONSE, _messages()["Response"](payload=message.payload)
        if message.code or message.message:
            protobuf.status.code, protobuf.status.message = message.code, message.message.encode()
    body: bytes = protobuf.SerializeToString()
    if len(body) > MAX_MESSAGE:
        raise WireError("ttrpc", f"a message of {len(body)} bytes is too long to send")
    return _HEADER.pack(len(body), message.stream, kind, 0) + body


def success(connection: int, stream: int) -> bytes:
    """The frame of a reply that has neither an error nor a payload: its body is empty."""
    return _SUCCESS.pack(connection, _HEADER.size, 0, stream, _RESPONSE, 0)


def _message(stream: int, kind: int, body: bytes) -> Call | Reply:
    if kind == _REQUEST:
        fields = _messages().decode("Request", body)
        return Call(stream, fields.service, fields.method, fields.payload, fields.timeout_nano)
    fields = _messages().decode("Response", body)
    return Reply(stream, fields.status.code, fields.status.message.decode("utf-8", "replace"), fields.payload)


@cache
def _messages() -> Messages:
    from vmpin.wire.protos import Messages

    # A status's message is text, but of the peer's making: invalid UTF-8 in it does not make the reply unreadable.
    return Messages("ttrpc", """
        Request    service=1 method=2 payload=3:bytes timeout_nano=4:int64
        Response   status=1:Status payload=2:bytes
        Status     code=1:int32 message=2:bytes
    """)


class Demux:
    """Separates the multiplexer's streams. Keeps nothing but an incomplete header."""

    def __init__(self) -> None:
        self._header = b""
        self._connection = 0
        #: The bytes still to come of the current frame's payload.
        self._left = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take the next bytes. :returns: (connection, payload) in order; an incomplete payload as far as it came.
        :raises WireError: a frame is longer than any that NRI sends; and at every later call, because its header is
            kept."""
        payloads: list[tuple[int, bytes]] = []
        at = 0
        while at < len(data):
            if self._left:
                payload = data[at : at + self._left]
                self._left -= len(payload)
                payloads.append((self._connection, payload))
                at += len(payload)
                continue
            part = data[at : at + _FRAME.size - len(self._header)]
            self._header += part
            at += len(part)
            if len(self._header) < _FRAME.size:
                break
            connection, length = _FRAME.unpack(self._header)
            if length > MAX_RECEIVED:
                raise WireError("NRI frame", f"is {length} bytes long, at most {MAX_RECEIVED} are accepted")
            self._header, self._connection, self._left = b"", connection, length
        return payloads


def frames(connection: int, payload: bytes) -> bytes:
    """The payload, cut into frames of the multiplexer that the Go side can read."""
    parts = [payload[at : at + MAX_SENT] for at in range(0, len(payload), MAX_SENT)]
    return b"".join([_FRAME.pack(connection, len(part)) + part for part in parts])
