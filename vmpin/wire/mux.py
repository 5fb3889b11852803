"""NRI's multiplexer: several byte streams over one socket, as containerd/nri pkg/net/multiplex has them.

A frame is `u32 connection | u32 length | payload`, big-endian. Frames are no messages: a message may be cut into many,
and a frame may end one and begin the next, so each connection's payloads are a stream. What stays out: what is in the
streams (ttrpc), and sockets.
"""

from __future__ import annotations

import struct

from vmpin.errors import WireError

#: The connections NRI uses. Of the plugin's service the runtime is the client, of the runtime's the plugin.
PLUGIN = 1
RUNTIME = 2

#: The Go side reads through a buffer of 4096 bytes and takes a longer frame for an error (ENOMEM).
MAX_SENT = 4096
#: ttrpc's longest message with its header is what the Go side puts into one frame.
MAX_RECEIVED = (4 << 20) + 10

_HEADER = struct.Struct(">II")


class Demux:
    """Parts the streams again. Keeps nothing but a header that is not yet complete."""

    def __init__(self) -> None:
        self._header = b""
        self._connection = 0
        #: Of the current frame's payload, what is yet to come.
        self._left = 0
        self._error: WireError | None = None

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The payloads in what came next, in order; a frame's payload is handed out as far as it came.

        :raises WireError: for a frame longer than any that NRI sends, and then always.
        """
        if self._error is not None:
            raise self._error
        found: list[tuple[int, bytes]] = []
        at = 0
        while at < len(data):
            if self._left:
                payload = data[at : at + self._left]
                self._left -= len(payload)
                found.append((self._connection, payload))
                at += len(payload)
                continue
            part = data[at : at + _HEADER.size - len(self._header)]
            self._header += part
            at += len(part)
            if len(self._header) < _HEADER.size:
                break
            self._connection, self._left = _HEADER.unpack(self._header)
            self._header = b""
            if self._left > MAX_RECEIVED:
                self._error = WireError("NRI frame", f"says it is {self._left} bytes long, at most {MAX_RECEIVED} are")
                raise self._error
        return found


def frames(connection: int, payload: bytes) -> bytes:
    """`payload` in frames that the Go side can read."""
    parts: list[bytes] = []
    for at in range(0, len(payload), MAX_SENT):
        part = payload[at : at + MAX_SENT]
        parts += (_HEADER.pack(connection, len(part)), part)
    return b"".join(parts)
