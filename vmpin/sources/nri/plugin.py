"""The NRI plugin: a connection to the container runtime that is kept, in a thread of its own.

The runtime holds every pod and container until each plugin has answered, and drops one that takes two seconds. So one
thread does nothing but answer, and another hands on what was told: neither a pass of the watcher's nor a slow handler
delays a container. What stays out: the protocol (nri_session), where a connection comes from
(nri_connect), and what the facts mean (nri_facts).
"""

from __future__ import annotations

import logging
import os
import random
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING

from vmpin.domain.model import ContainerId
from vmpin.errors import ConfigError, WireError
from vmpin.sources.nri.connect import explained, inherited
from vmpin.sources.nri.event_queue import NriQueue
from vmpin.sources.nri.translation import Disconnected, NriCounters, NriEvent, NriUpdate

if TYPE_CHECKING:
    from vmpin.sources.nri.session import NriSession

logger = logging.getLogger(__name__)

#: Seconds between attempts to connect, doubled each time; and how long a connection has to last to start again.
FIRST_DELAY = 0.1
LAST_DELAY = 5.0
#: For `sys.setswitchinterval`, by who runs the process: a thread that computes keeps Python's lock 5 ms from the one
#: that answers, each time that one comes back from the kernel. With this an answer takes 0.4 ms then (0.2 ms idle).
SWITCH_INTERVAL = 0.0002
#: A runtime lists what there is within seconds of the connection; it gives a plugin five to register.
LIST_DEADLINE = 30.0
#: Answers the runtime does not read; they are some bytes each.
_MAX_UNSENT = 1 << 20

#: Why a connection ended that this process has ended.
_AGAIN = "everything is listed again"
_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_INDEX = re.compile(r"[0-9]{2}")


class NriPlugin:
    """Keeps a connection, and says on `handle` what was told over it and on `on_state` whether it is up, and to whom
    or why not. Both are called from threads of the plugin's own; what they raise is logged.

    After a connection that had listed everything (`Synced`), `Disconnected` comes; from the next one `Synced` again.
    """

    def __init__(self, connect: Callable[[], socket.socket], handle: Callable[[NriEvent], None],
                 name: str = "vmpin", index: str = "90",
                 on_state: Callable[[bool, str], None] = lambda up, text: None, once: bool = False) -> None:
        """:param index: two digits; plugins are called in this order.
        :param once: end with the first connection, as a plugin that the runtime started does.
        :raises ConfigError: for a name or index that no runtime takes.
        """
        if not _NAME.fullmatch(name) or not _INDEX.fullmatch(index):
            raise ConfigError(f"NRI plugin {name!r} with index {index!r}: a name is made of A-Za-z0-9_.+-, an index "
                              "is two digits")
        self.name = name
        self.index = index
        self.counters = NriCounters()
        #: No connection will come any more (`once`, or stopped).
        self.ended = threading.Event()
        self._connect = connect
        self._handle = handle
        self._on_state = on_state
        self._once = once
        self._waiting = NriQueue()
        self._lock = threading.Lock()
        self._updates: Mapping[ContainerId, NriUpdate] = {}
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = threading.Event()
        self._again = threading.Event()
        self._threads: list[threading.Thread] = []
        self._state: tuple[bool, str] | None = None
        #: What was logged since a connection was last up.
        self._told: set[str] = set()
        self._odd: set[str] = set()

    def start(self) -> None:
        for name, target in ("vmpin-nri", self._keep), ("vmpin-nri-facts", self._hand_on):
            thread = threading.Thread(target=target, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Close the connection and end the threads; waits for at most `timeout` seconds each, for a handler that
        hangs. Nothing is handed on any more, `Disconnected` neither. Does nothing the second time."""
        with self._lock:
            if self._stopping.is_set():
                return
            self._waiting.end()
            self._stopping.set()
            os.eventfd_write(self._wake, 1)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout)
        if not any(thread.is_alive() for thread in self._threads):
            with self._lock:
                os.close(self._wake)
                self._wake = -1
        self.ended.set()

    @property
    def can_reconnect(self) -> bool:
        """Whether another connection can be made (`again`)."""
        return not self._once

    def again(self, updates: Mapping[ContainerId, NriUpdate] | None = None) -> None:
        """Drop the connection and make another, over which everything is listed anew. From any thread.

        :param updates: CPUs for containers, for the answer to the next list; what it took is in `Synced`.
        """
        with self._lock:
            if self._wake >= 0:
                self._updates = {**self._updates, **(updates or {})}
                self._again.set()
                os.eventfd_write(self._wake, 1)

    def serve_once(self) -> str:
        """One connection, from beginning to end. :returns: why it ended.

        :raises OSError: when there is none to be had, or it broke.
        :raises WireError: when what came was no NRI.
        """
        # Here, as it loads the protobuf library: 60 ms that the first pass of a starting watcher does not wait for.
        from vmpin.sources.nri.session import NriSession

        with self._connect() as connection:
            connection.setblocking(False)
            self.counters.connects += 1
            with self._lock:
                updates, self._updates = self._updates, {}
                self._again.clear()
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # struct ucred: pid, uid, gid
            session = NriSession(self.name, self.index, self.counters, self._odd, updates=updates,
                              peer=int.from_bytes(peer[:4], sys.byteorder))
            try:
                return self._serve(connection, session)
            except WireError:
                self.counters.refused += 1
                raise
            finally:
                if session.synced:
                    self._waiting.put(Disconnected())

    def _serve(self, connection: socket.socket, session: NriSession) -> str:
        unsent = _send(connection, session.register())
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(connection, select.POLLIN)
        silent = time.monotonic() + LIST_DEADLINE
        while not self._stopping.is_set() and not (session.closing and not unsent):
            poll.modify(connection, select.POLLIN | select.POLLOUT if unsent else select.POLLIN)
            left = None if session.synced or self._once else max(0.0, silent - time.monotonic()) * 1000 + 1
            ready = dict(poll.poll(left))
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if self._again.is_set():
                return _AGAIN
            if not session.synced and not self._once and time.monotonic() > silent:
                return f"connected, and for {LIST_DEADLINE:g} s nothing was listed: does the runtime hang?"
            if connection.fileno() not in ready:
                continue
            unsent = _send(connection, unsent)
            try:
                data = connection.recv(65536)
            except BlockingIOError:
                continue
            if not data:
                return session.ending()
            for item in session.feed(data):
                if isinstance(item, bytes):
                    unsent = _send(connection, unsent + item)
                    if len(unsent) > _MAX_UNSENT:
                        raise WireError("NRI", f"the runtime does not read {len(unsent)} bytes of answers")
                elif not self._told_on(item):
                    return "more was told than was taken: all is asked for again"
            if session.synced:
                self._up(session.runtime)
        return session.ending()

    def _told_on(self, event: NriEvent | None) -> bool:
        """:returns: False when the queue has overflowed, and was emptied."""
        if event is None or self._waiting.put(event):
            return True
        self.counters.overflows += 1
        return False

    def _keep(self) -> None:
        delay = FIRST_DELAY
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                why = self.serve_once()
            except WireError as err:
                why = str(err)
            except OSError as err:
                why = explained(err)
            except Exception as err:  # a mistake of ours must not end the thread; the next connection is a new start
                why = f"{type(err).__name__}: {err}"
                if why not in self._told:
                    logger.exception("nri: unforeseen")
            if self._stopping.is_set():
                break
            if why == _AGAIN:
                logger.info("nri: everything is listed again, over a new connection")
            else:
                self._down(why)
            if self._once:
                break
            if time.monotonic() - began > LAST_DELAY:
                delay = FIRST_DELAY
            self._rest(delay * random.uniform(1, 1.25))
            delay = min(2 * delay, LAST_DELAY)
        self.ended.set()

    def _rest(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        until = time.monotonic() + seconds
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            if poll.poll(left * 1000 + 1):
                os.eventfd_read(self._wake)

    def _up(self, runtime: str) -> None:
        if self._state != (True, runtime):
            logger.info("nri=up runtime=%r plugin=%s-%s", runtime, self.index, self.name)
            self._told.clear()
            self._say(True, runtime)

    def _down(self, why: str) -> None:
        """One line for each trouble, not for each attempt."""
        self.counters.last_error = why
        if why not in self._told and len(self._told) < 64:
            self._told.add(why)
            logger.warning("nri=down: %s%s", why, "" if self._once else "; it is tried again")
        if self._state != (False, why):
            self._say(False, why)

    def _say(self, up: bool, text: str) -> None:
        self._state = (up, text)
        try:
            self._on_state(up, text)
        except Exception:
            logger.exception("nri: the state cannot be told")

    def _hand_on(self) -> None:
        failed = set()
        while (event := self._waiting.take()) is not None:
            try:
                self._handle(event)
            except Exception as err:
                kind = (type(event), type(err))
                if kind not in failed:
                    failed.add(kind)
                    logger.exception("nri: a %s cannot be used; the next ones of its kind are not logged",
                                     type(event).__name__)


def from_environment(handle: Callable[[NriEvent], None], on_state: Callable[[bool, str], None],
                     environ: MutableMapping[str, str] = os.environ) -> NriPlugin | None:
    """The plugin that the runtime itself has started, with its connection; with that it ends. None when this process
    is none. :raises ConfigError: see `nri_connect.inherited`.
    """
    found = inherited(environ)
    if found is None:
        return None
    return NriPlugin(lambda: found.connection, handle, found.name, found.idx, on_state, once=True)


def _send(connection: socket.socket, unsent: bytes) -> bytes:
    """Send what can be sent at once. :returns: what is left."""
    while unsent:
        try:
            unsent = unsent[connection.send(unsent, socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            break
    return unsent
