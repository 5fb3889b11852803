"""The host's end of a connection to the guest agent."""

from __future__ import annotations

import os
import select
import time

from vmpin.protocol.frames import FrameDecoder, encode
from vmpin.protocol.messages import (
    AgentMessage,
    HostMessage,
    as_json,
)
from vmpin.protocol.parsing import parse_answer

PATIENCE = 120.0


class Host:
    """The host's end of a stream."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._decoder = FrameDecoder()
        self._received: list[AgentMessage] = []

    def send(self, raw: bytes | HostMessage) -> None:
        os.write(self.fd, raw if isinstance(raw, bytes) else encode(as_json(raw)))

    def receive(self, seconds: float = PATIENCE) -> AgentMessage | None:
        """The next message; None at the end of the stream. :raises TimeoutError:"""
        deadline = time.monotonic() + seconds
        while not self._received:
            if not select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError
            try:
                data = os.read(self.fd, 1 << 16)
            except (ConnectionResetError, OSError):
                return None
            if not data:
                return None
            self._received += [parse_answer(each) for each in self._decoder.feed(data)]
        return self._received.pop(0)

    def ask(self, request: HostMessage) -> AgentMessage | None:
        self.send(request)
        return self.receive()
