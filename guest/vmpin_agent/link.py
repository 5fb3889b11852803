"""One connection to the host: bytes in both directions as frames of the protocol, without ever blocking."""

import os
from typing import Callable, List

from vmpin.protocol.frames import FrameDecoder, ProtocolError, encode
from vmpin.protocol.messages import AgentMessage, Applied, Failure, HostMessage, Subscribe, VcpuMap, as_json
from vmpin.protocol.parsing import parse_request
from vmpin_agent import file_io

#: The most bytes that wait for a host that does not read; beyond it the connection is closed.
_MAX_WAITING = 4 << 20
_READ = 1 << 16


class LinkClosed(Exception):
    """The other end has closed the connection, or it has to be closed here; the text has the reason."""


class Link:
    """:param fd: nonblocking; the caller closes it. :param answer: returns the agent's answer to a request."""

    def __init__(self, fd: int, answer: Callable[[HostMessage], AgentMessage]) -> None:
        self.fd = fd
        self.subscribed = False
        self._answer = answer
        self._decoder = FrameDecoder()
        self._out = bytearray()

    @property
    def waiting(self) -> bool:
        """Whether there are bytes to be written."""
        return bool(self._out)

    @property
    def pending(self) -> int:
        """The bytes of an incomplete frame."""
        return self._decoder.pending

    def receive(self) -> bytes:
        """Read what has arrived. :raises LinkClosed: at the end, b"" when there is nothing now."""
        try:
            data = os.read(self.fd, _READ)
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError as err:
            raise LinkClosed(err.strerror) from None
        if not data:
            raise LinkClosed("")
        return data

    def feed(self, data: bytes) -> None:
        """Answer the complete messages. :raises ProtocolError: the bytes are no frame; what follows cannot be read."""
        requests: List[HostMessage] = []
        for message in self._decoder.feed(data):
            try:
                requests.append(parse_request(message))
            except ProtocolError as err:
                self.send(Failure(err.id, str(err)))
        # Of maps that arrive together only the newest is applied; the older ones are answered with its outcome.
        newest = max((request.generation for request in requests if isinstance(request, VcpuMap)), default=0)
        for request in sorted(requests, key=lambda request: isinstance(request, VcpuMap)
                              and request.generation < newest):
            if isinstance(request, Subscribe):
                self.subscribed = True
            self.send(self._answer(request))

    def send(self, answer: AgentMessage) -> None:
        """Queue a message, write what can be written now. :raises LinkClosed: too much waits, or the end is gone."""
        try:
            self._out += encode(as_json(answer))
        except ProtocolError as err:
            self._out += encode(as_json(Failure(getattr(answer, "id", None), f"the answer cannot be sent: {err}")))
        if len(self._out) > _MAX_WAITING:
            raise LinkClosed("the host does not read the answers")
        self.flush()

    def notify(self, answers: List[AgentMessage]) -> None:
        """Send messages that are no answers, if the connection is subscribed. :raises LinkClosed: as `send`."""
        for answer in answers if self.subscribed else ():
            self.send(answer._replace(id=None) if isinstance(answer, Applied) else answer)

    def flush(self) -> None:
        """Write what can be written now. :raises LinkClosed: the end is gone."""
        while self._out:
            try:
                done = os.write(self.fd, self._out[:_READ])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as err:
                raise LinkClosed(err.strerror) from None
            if done <= 0:
                return
            del self._out[:done]


def serious(err: Exception) -> str:
    """Log an unexpected error. :returns: the text for the host."""
    file_io.log(f"failed: {err!r}")
    return f"the agent failed: {type(err).__name__}"
