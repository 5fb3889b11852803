"""The virtio-serial port: one stream without connections. Who is at its other end is only told by hang-ups.

A hung-up port is always ready (drivers/char/virtio_console.c: port_fops_poll gives EPOLLHUP), so it is taken out of
the loop until the host is there again, which is looked for every second.
"""

from __future__ import annotations

import os
import select
from typing import Callable, List, Optional

from vmpin.protocol.frames import ProtocolError
from vmpin.protocol.messages import AgentMessage, HostMessage, NeedMap
from vmpin.protocol.parsing import SERIAL
from vmpin_agent import file_io
from vmpin_agent.link import Link, LinkClosed

#: After garbage: when nothing came for so long, the next byte begins a frame.
QUIET = 0.1
#: A frame whose rest has not come for so long was cut.
_CUT = 2.0


class SerialPort:
    """:param path: the port's device, or "auto". :param sys: to find it where no udev names it."""

    def __init__(self, path: str, answer: Callable[[HostMessage], AgentMessage],
                 greeting: Callable[[], List[AgentMessage]],
                 sys: str = "/sys") -> None:
        self._path = path
        self._answer = answer
        self._greeting = greeting
        self._sys = sys
        self._last = 0.0
        #: While input is dropped, when that ends (monotonic seconds).
        self.quiet_at: Optional[float] = None
        self.fd = -1
        self.link: Optional[Link] = None

    def open(self) -> bool:
        """:returns: whether there is a port, now or before."""
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
        top = f"{self._sys}/class/virtio-ports"
        try:
            ports = os.listdir(top)
        except OSError:
            return None
        found = [port for port in ports if (file_io.read(f"{top}/{port}/name") or "").strip() == SERIAL]
        return f"/dev/{found[0]}" if found else None

    def up(self) -> bool:
        """Whether the host is there; a new host is greeted. :returns: also False while it is not."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        there = not any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))
        if there and self.link is None:
            self.link = Link(self.fd, self._answer)
            self._say(self._greeting())
        elif not there:
            self.link = self.quiet_at = None
        return self.link is not None

    def read(self, now: float) -> None:
        """What came. :raises Closed: when the host has gone."""
        assert self.link is not None
        try:
            data = self.link.receive()
        except LinkClosed:
            self.link = self.quiet_at = None
            raise
        self._last = now
        if self.quiet_at is not None:
            self.quiet_at = now + QUIET
            return
        try:
            self.link.feed(data)
        except ProtocolError as err:
            file_io.log(f"garbage on the serial port: {err}")
            self.quiet_at = now + QUIET
        except LinkClosed:
            self.quiet_at = now + QUIET

    def clear(self, now: float) -> None:
        """When it was quiet for long enough after garbage, or a frame was cut: begin anew, and ask for the map."""
        if self.link is None:
            return
        cut = self.quiet_at is None and self.link.pending > 0 and now - self._last > _CUT
        if cut or (self.quiet_at is not None and now >= self.quiet_at):
            self.quiet_at = None
            self.link = Link(self.fd, self._answer)
            self._say([NeedMap()])

    def _say(self, answers: List[AgentMessage]) -> None:
        assert self.link is not None
        try:
            for answer in answers:
                self.link.send(answer)
        except LinkClosed:
            self.link = None
