"""NRI's multiplexer: several byte streams over one socket, as in containerd/nri pkg/net/multiplex.

A frame is `u32 connection | u32 length | payload`, big-endian. Frames are not messages: a message may span several
frames, and one frame may end a message and begin the next, so the payloads of a connection form a stream."""

import struct

from vmpin.errors import WireError

#: NRI's connections: the runtime calls the plugin's service over the first, the plugin the runtime's over the second.
PLUGIN = 1
RUNTIME = 2

#: The Go side reads through a buffer of 4096 bytes and treats a longer frame as an error (ENOMEM).
MAX_SENT = 4096
#: The longest frame of the Go side: ttRPC's longest message with its header.
MAX_RECEIVED = (4 << 20) + 10

_HEADER = struct.Struct(">II")


class Demux:
    """Separates the streams. Keeps nothing but an incomplete header."""

    def __init__(self) -> None:
        self._header = b""
        self._connection = 0
        #: The bytes still to come of the current frame's payload.
        self._left = 0
        self._error: WireError | None = None

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take the next bytes. :returns: (connection, payload) in order; an incomplete payload as far as it came.
        :raises WireError: a frame is longer than any that NRI sends; and at every later call."""
        if self._error is not None:
            raise self._error
        payloads: list[tuple[int, bytes]] = []
        at = 0
        while at < len(data):
            if self._left:
                payload = data[at : at + self._left]
                self._left -= len(payload)
                payloads.append((self._connection, payload))
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
                why = f"is {self._left} bytes long, at most {MAX_RECEIVED} are accepted"
                self._error = WireError("NRI frame", why)
                raise self._error
        return payloads


def frames(connection: int, payload: bytes) -> bytes:
    """The payload, cut into frames that the Go side can read."""
    parts = (payload[at : at + MAX_SENT] for at in range(0, len(payload), MAX_SENT))
    return b"".join(_HEADER.pack(connection, len(part)) + part for part in parts)
