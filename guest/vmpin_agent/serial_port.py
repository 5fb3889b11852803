"""The virtio-serial port: one stream without connections. Only a hang-up shows that the host's end was closed.

A hung-up port is always ready (drivers/char/virtio_console.c: port_fops_poll gives EPOLLHUP), so the server removes it
from its loop until the host's end is open again, which is checked every second."""

import glob
import os
import select
from typing import Callable, List, Optional

from vmpin.protocol.frames import ProtocolError
from vmpin.protocol.messages import AgentMessage, HostMessage, NeedMap
from vmpin.protocol.parsing import SERIAL
from vmpin_agent import file_io
from vmpin_agent.link import Link, LinkClosed

#: After garbage: seconds of silence after which the next byte begins a frame.
QUIET = 0.1
#: Seconds after which an incomplete frame counts as cut.
_CUT = 2.0


class SerialPort:
    """:param path: the port's device, or "auto". :param sys: where the device is searched if udev has not named it."""

    def __init__(self, path: str, answer: Callable[[HostMessage], AgentMessage],
                 greeting: Callable[[], List[AgentMessage]], sys: str = "/sys") -> None:
        self._path = path
        self._answer = answer
        self._greeting = greeting
        self._sys = sys
        self._last = 0.0
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
            if self._path != "auto":
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
