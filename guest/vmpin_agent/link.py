"""Links to the host, which carry frames of the protocol in both directions without ever blocking: over a connection,
and over the virtio-serial port."""

import glob
import os
import select
from typing import Callable, List, Optional

from vmpin.protocol.frames import FrameDecoder, ProtocolError, encode
from vmpin.protocol.messages import AgentMessage, Failure, HostMessage, NeedMap, VcpuMap, as_json
from vmpin.protocol.parsing import SERIAL, parse_request
from vmpin_agent import file_io

#: The most bytes that wait for a host that does not read; beyond it the connection is closed.
_MAX_WAITING = 4 << 20
_READ = 1 << 16
#: After garbage: seconds of silence after which the next byte begins a frame.
QUIET = 0.1
#: Seconds after which an incomplete frame counts as cut.
_CUT = 2.0


class LinkClosed(Exception):
    """The other end has closed the connection, or it has to be closed here; the text has the reason."""


class Link:
    """:param fd: nonblocking; the caller closes it. :param answer: returns the agent's answer to a request."""

    def __init__(self, fd: int, answer: Callable[[HostMessage], AgentMessage]) -> None:
        self.fd = fd
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


class SerialPort:
    """The virtio-serial port: one stream without connections. Only a hang-up shows that the host's end was closed. A
    hung-up port is always ready (drivers/char/virtio_console.c: port_fops_poll gives EPOLLHUP), so the server removes
    it from its loop until the host's end is open again, which is checked every second.
    :param path: the port's device, or "auto". :param sys: where the device is searched if udev has not named it."""

    def __init__(self, path: str, answer: Callable[[HostMessage], AgentMessage],
                 greeting: Callable[[], List[AgentMessage]], sys: str = "/sys") -> None:
        self._path = path
        self._answer = answer
        self._greeting = greeting
        self._sys = sys
        self._last = 0.0
        self._errno: Optional[int] = None  #: Of the error logged last: it is tried every five seconds.
        #: While input is dropped after garbage: when that ends (monotonic seconds); else None.
        self.quiet_at: Optional[float] = None
        self.fd = -1
        self.link: Optional[Link] = None

    def open(self) -> bool:
        """Open the device unless it is open. :returns: whether it is open."""
        if self.fd >= 0:
            return True
        path = self._find() if self._path == "auto" else self._path
        if path is None:
            return False
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as err:
            if self._path != "auto" and err.errno != self._errno:
                self._errno = err.errno
                file_io.log(f"{path}: {err.strerror}")
            return False
        file_io.log(f"serves {path}")
        return True

    def _find(self) -> Optional[str]:
        named = f"/dev/virtio-ports/{SERIAL}"
        if os.path.exists(named):
            return named
        for name in glob.glob(f"{glob.escape(self._sys)}/class/virtio-ports/*/name"):
            if (file_io.read(name) or "").strip() == SERIAL:
                return f"/dev/{name.split('/')[-2]}"
        return None

    def check(self, now: float) -> None:
        """Check whether the host's end is open, greet a new host, and answer what waits.

        This poll takes a buffer from the device's queue; if its interrupt comes after that, the kernel finds nothing
        new and wakes no epoll (drivers/virtio/virtio_ring.c: vring_interrupt). So it is read here."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        events = dict(poll.poll(0)).get(self.fd, 0)
        if events & (select.POLLHUP | select.POLLERR):
            self.link = self.quiet_at = None
            return
        if self.link is None:
            self.link = Link(self.fd, self._answer)
            self._send(self._greeting())
        if events & select.POLLIN:
            self.read(now)

    def read(self, now: float) -> None:
        """Read and answer, if there is a host."""
        if self.link is None:
            return
        try:
            data = self.link.receive()
        except LinkClosed:
            self.link = self.quiet_at = None
            return
        self._last = now
        try:
            if self.quiet_at is None:
                self.link.feed(data)
                return
        except ProtocolError as err:
            file_io.log(f"garbage on the serial port: {err}")
        except LinkClosed:
            pass  # too much waits for the host; it starts anew as after garbage
        self.quiet_at = now + QUIET

    def clear(self, now: float) -> None:
        """Decode afresh and ask for the map, if the silence after garbage was long enough or a frame was cut."""
        if self.link is None:
            return
        cut = self.quiet_at is None and self.link.pending > 0 and now - self._last > _CUT
        if cut or (self.quiet_at is not None and now >= self.quiet_at):
            self.quiet_at = None
            self.link = Link(self.fd, self._answer)
            self._send([NeedMap()])

    def _send(self, answers: List[AgentMessage]) -> None:
        assert self.link is not None
        try:
            for answer in answers:
                self.link.send(answer)
        except LinkClosed:
            self.link = None


def serious(err: Exception) -> str:
    """Log an unexpected error. :returns: the text for the host."""
    file_io.log(f"failed: {err!r}")
    return f"the agent failed: {type(err).__name__}"
