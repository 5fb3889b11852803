"""The agent's loop: connections over AF_VSOCK or a unix socket, the serial port, and a check every second.

One thread, in which nothing but the selector blocks. Over AF_VSOCK only the host is accepted."""

import os
import selectors
import socket
import time
from typing import Callable, Dict, Optional, Tuple, Union

from vmpin.protocol.frames import ProtocolError
from vmpin.protocol.messages import AgentMessage, Failure, HostMessage
from vmpin_agent import file_io
from vmpin_agent.agent import Agent
from vmpin_agent.link import Link, LinkClosed, SerialPort, serious

#: linux/vm_sockets.h: VMADDR_CID_ANY and VMADDR_CID_HOST.
_ANY = 0xFFFFFFFF
_HOST = 2
_MAX_CONNECTIONS = 16
TICK = 1.0
#: Ticks between attempts to open what could not be opened: kernel modules may be loaded late.
_AGAIN = 5


class Server:
    """:param port: of AF_VSOCK, 0 for none. :param serial: a device, "auto" or "". :param unix: a path or ""."""

    def __init__(self, agent: Agent, port: int = 0, serial: str = "", unix: str = "", sys: str = "/sys") -> None:
        self._agent = agent
        self._port = port
        self._unix = unix
        self._selector = selectors.DefaultSelector()
        self._listeners: Dict[str, socket.socket] = {}
        self._links: Dict[Link, socket.socket] = {}
        self._serial = SerialPort(serial, self._answer, agent.greeting, sys) if serial else None
        self._ticks = 0
        self.stopped = False

    def run(self) -> None:
        """Serve until `stopped` is set."""
        next_tick = time.monotonic()
        while not self.stopped:
            now = time.monotonic()
            if now >= next_tick:
                self._tick(now)
                next_tick = max(next_tick + TICK, now + TICK / 2)
            quiet_at = None if self._serial is None else self._serial.quiet_at
            deadline = next_tick if quiet_at is None else min(next_tick, quiet_at)
            for key, events in self._selector.select(max(0.0, deadline - time.monotonic())):
                handle: Callable[[int], None] = key.data
                handle(events)
            if self._serial is not None and self._serial.quiet_at is not None:
                self._serial.clear(time.monotonic())

    def close(self) -> None:
        for link in list(self._links):
            self._drop(link, "")
        for listener in self._listeners.values():
            listener.close()
        if self._unix in self._listeners:
            os.unlink(self._unix)
        self._selector.close()

    def _tick(self, now: float) -> None:
        if self._ticks % _AGAIN == 0:
            self._listen()
        self._ticks += 1
        if self._serial is not None:
            self._serial_tick(self._serial, now)
        links = list(self._links) + ([self._serial.link] if self._serial and self._serial.link else [])
        try:
            changed = self._agent.check()
        except Exception as err:
            serious(err)
            return
        for link in links:
            try:
                if changed is not None:
                    link.send(changed)
            except LinkClosed as err:
                self._drop(link, str(err))
            else:
                self._watch(link)
        self._watch_serial()

    def _answer(self, request: HostMessage) -> AgentMessage:
        """The answer; a Failure if the agent raised, so that the next request is answered again."""
        try:
            return self._agent.answer(request)
        except Exception as err:
            return Failure(request.id, serious(err))

    def _listen(self) -> None:
        if self._unix and self._unix not in self._listeners:
            self._add(self._unix, socket.AF_UNIX, self._unix)
        if self._port and "vsock" not in self._listeners and hasattr(socket, "AF_VSOCK"):
            self._add("vsock", socket.AF_VSOCK, (_ANY, self._port))

    def _add(self, name: str, family: int, address: Union[str, Tuple[int, int]]) -> None:
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            return  # no AF_VSOCK in this kernel, or not yet
        try:
            if family == socket.AF_UNIX and os.path.exists(self._unix):
                os.unlink(self._unix)
            listener.bind(address)
            listener.listen(_MAX_CONNECTIONS)
            listener.setblocking(False)
        except OSError as err:
            listener.close()
            if self._ticks == 0:
                file_io.log(f"cannot listen on {name}: {err.strerror}")
            return
        self._listeners[name] = listener
        self._selector.register(listener, selectors.EVENT_READ, lambda events: self._accept(listener))
        file_io.log(f"listening on {name}{f' port {self._port}' if name == 'vsock' else ''}")

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, peer = listener.accept()
        except OSError:
            return
        if not allowed(listener.family, peer) or len(self._links) >= _MAX_CONNECTIONS:
            connection.close()
            return
        connection.setblocking(False)
        link = Link(connection.fileno(), self._answer)
        self._links[link] = connection
        self._selector.register(connection, selectors.EVENT_READ, lambda events: self._ready(link, events))
        try:
            for answer in self._agent.greeting():
                link.send(answer)
        except LinkClosed as err:
            self._drop(link, str(err))

    def _ready(self, link: Link, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                link.flush()
            if events & selectors.EVENT_READ:
                link.feed(link.receive())
        except (LinkClosed, ProtocolError) as err:
            self._drop(link, str(err))
        else:
            self._watch(link)

    def _watch(self, link: Link) -> None:
        if link in self._links:
            self._set_events(link.fd, link, self._selector.get_key(link.fd).data)

    def _drop(self, link: Link, why: str) -> None:
        connection = self._links.pop(link, None)
        if self._serial is not None and self._serial.link is link:
            self._serial.link = None
        if connection is not None:
            self._selector.unregister(connection)
            connection.close()
            if why:
                file_io.log(f"connection ended: {why}")

    def _serial_tick(self, serial: SerialPort, now: float) -> None:
        if serial.fd < 0 and (self._ticks - 1) % _AGAIN == 0:
            serial.open()
        if serial.fd >= 0:
            serial.check(now)
            serial.clear(now)
            self._watch_serial()

    def _serial_ready(self, events: int) -> None:
        assert self._serial is not None
        try:
            if self._serial.link is not None and events & selectors.EVENT_WRITE:
                self._serial.link.flush()
        except LinkClosed:
            self._serial.link = None
        if events & selectors.EVENT_READ:
            self._serial.read(time.monotonic())
        self._watch_serial()

    def _watch_serial(self) -> None:
        """Keep the port in the selector only while the host's end is open."""
        if self._serial is None or self._serial.fd < 0:
            return
        self._set_events(self._serial.fd, self._serial.link, self._serial_ready)

    def _set_events(self, fd: int, link: Optional[Link], ready: Callable[[int], None]) -> None:
        """Wait for what the link has to do; for nothing without one."""
        registered: Optional[selectors.SelectorKey] = self._selector.get_map().get(fd)
        events = 0 if link is None else selectors.EVENT_READ | (selectors.EVENT_WRITE if link.waiting else 0)
        if registered is None and events:
            self._selector.register(fd, events, ready)
        elif registered is not None and not events:
            self._selector.unregister(fd)
        elif registered is not None and registered.events != events:
            self._selector.modify(fd, events, ready)


def allowed(family: int, peer: object) -> bool:
    """Whether the peer may connect: over AF_VSOCK the host only (a process of the guest has the guest's CID or 1)."""
    return family == socket.AF_UNIX or (isinstance(peer, tuple) and peer[:1] == (_HOST,))
