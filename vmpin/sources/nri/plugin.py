"""The NRI plugin: keeps a connection to the container runtime, in a thread of its own.

The runtime holds every pod and container until each plugin has answered, and drops a plugin that takes two seconds. So
this thread only answers, and queues events for the event loop (event_queue): no pass of the watcher delays a
container."""

from __future__ import annotations

import logging
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING

from vmpin.domain.model import ContainerId
from vmpin.errors import ConfigError, WireError
from vmpin.sources.nri.connection import MAX_UNSENT, NriStream, explained, inherited
from vmpin.sources.nri.event_queue import NriQueue
from vmpin.sources.nri.nri_events import Disconnected, NriCounters, NriUpdate, never_waits

if TYPE_CHECKING:
    from vmpin.host.retry import Backoff
    from vmpin.sources.nri.nri_events import CanWait, CpuDecider
    from vmpin.sources.nri.session import NriSession

logger = logging.getLogger(__name__)

#: Seconds between attempts to connect, doubled each time (host.retry), and reset after a connection that lasted for
#: the longest pause.
FIRST_DELAY = 0.1
LAST_DELAY = 5.0
#: Seconds, for `sys.setswitchinterval` in the process that runs the plugin. By default a computing thread keeps
#: Python's lock for 5 ms; with this an answer takes 0.4 ms then (0.2 ms idle).
SWITCH_INTERVAL = 0.0002
#: Seconds. A runtime lists its pods within seconds of the connection; it gives a plugin five to register.
LIST_DEADLINE = 30.0

_RECONNECTING = "everything is listed again"  #: The reason for the end of a connection at `reconnect`.


class NriPlugin:
    """Keeps a connection, and puts its events into `queue`, which `stop` closes: `Synced` first, and `Disconnected` at
    the end of a connection with a `Synced`. `on_state` is called in the plugin's thread with whether the connection is
    up, and the runtime's name or the reason; its exceptions are logged.
    :param index: two digits; the runtime calls plugins in this order.
    :param once: stop after the first connection, as a plugin started by the runtime.
    :param rest: called with the seconds between two attempts, instead of waiting.
    :param max_unsent: see `NriStream`.
    :param decider, can_wait: see `NriSession`.
    :raises ConfigError: for a name or index that no runtime accepts."""

    def __init__(self, connect: Callable[[], socket.socket], queue: NriQueue, name: str = "vmpin", index: str = "90",
                 on_state: Callable[[bool, str], None] = lambda up, text: None, once: bool = False,
                 rest: Callable[[float], None] | None = None, max_unsent: int = MAX_UNSENT,
                 decider: CpuDecider | None = None,
                 can_wait: CanWait = never_waits) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.+-]{1,64}", name) or not re.fullmatch(r"[0-9]{2}", index):
            raise ConfigError(f"NRI plugin {name!r} with index {index!r}: a name is made of A-Za-z0-9_.+-, an index "
                              "is two digits")
        self.name = name
        self.index = index
        self.queue = queue
        self.counters = NriCounters()
        #: Set when there will be no other connection (`once`, or stopped).
        self.ended = threading.Event()
        self._connect = connect
        self._on_state = on_state
        #: Whether `reconnect` can make another connection.
        self.can_reconnect = not once
        self._rest = rest or self._wait
        self._max_unsent = max_unsent
        self._decider, self._can_wait = decider, can_wait
        self._backoff: Backoff | None = None
        self._lock = threading.Lock()
        #: CPUs for the answer to the runtime's next list.
        self.updates: Mapping[ContainerId, NriUpdate] = {}
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = threading.Event()
        self._reconnecting = False
        self._thread = threading.Thread(target=self._run, name="vmpin-nri", daemon=True)
        self._state: tuple[bool, str] | None = None
        self._logged: set[str] = set()  #: The reasons logged since a connection was last up.
        self._unusable: set[str] = set()  #: The kinds of unusable data logged, over all connections.

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Close the queue and the connection, and end the thread; waits for it at most `timeout` seconds."""
        with self._lock:
            if self._stopping.is_set():
                return
            self.queue.close()
            self._stopping.set()
            os.eventfd_write(self._wake, 1)
        if self.running and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        if not self.running:
            with self._lock:
                os.close(self._wake)
                self._wake = -1
        self.ended.set()

    def reconnect(self, updates: Mapping[ContainerId, NriUpdate] | None = None) -> None:
        """Connect again, so that the runtime lists everything again. May be called from any thread.
        :param updates: CPUs for the answer to that list; `Synced.updated` has the containers they were sent for."""
        with self._lock:
            if self._wake >= 0:
                self.updates = {**self.updates, **(updates or {})}
                self._reconnecting = True
                os.eventfd_write(self._wake, 1)

    def _attempt(self) -> str:
        """Connect, and serve the connection until it ends. :returns: why it ended, or could not be made."""
        try:
            # Not at the top: the protobuf library takes 60 ms to load, which a starting watcher must not wait for.
            from vmpin.sources.nri.session import NriSession

            with self._connect() as connection:
                self.counters.connects += 1
                with self._lock:
                    updates, self.updates = self.updates, {}
                    self._reconnecting = False
                stream = NriStream(connection, self._wake, self._max_unsent)
                session = NriSession(self.name, self.index, self.counters, self._unusable, updates, stream.peer_pid,
                                     self._decider, self._can_wait)
                try:
                    return self._serve(stream, session)
                finally:
                    if session.listed:
                        self.queue.put(Disconnected())
                    self.queue.announce()
        except WireError as err:
            self.counters.refused += 1
            return str(err)
        except OSError as err:
            return explained(err)
        except Exception as err:  # a bug must not end the thread; the next connection starts anew
            why = f"{type(err).__name__}: {err}"
            if why not in self._logged:
                logger.exception("nri: unexpected error; reconnecting")
            return why

    def _serve(self, stream: NriStream, session: NriSession) -> str:
        """Answer the runtime's calls. :returns: why the connection ended."""
        stream.send(session.register())
        # A plugin started by the runtime may never get a list (containerd 1.7: containerd/nri#43).
        list_by = time.monotonic() + LIST_DEADLINE if self.can_reconnect else None
        up = False
        while not self._stopping.is_set() and not (session.closing and stream.flushed):
            left = None if list_by is None else list_by - time.monotonic()
            if left is not None and left <= 0:
                return f"connected, and for {LIST_DEADLINE:g} s nothing was listed: does the runtime hang?"
            pause = self.queue.announce()
            data = stream.receive(left if pause is None or left is not None else pause)
            if self._reconnecting:
                return _RECONNECTING
            if data == b"":
                break
            if data and not self._process(stream, session, data):
                return "the queue of events overflowed: everything is listed again"
            if not up and session.listed:
                up, list_by = True, None
                self._report_up(session.runtime)
        return session.ending()

    def _process(self, stream: NriStream, session: NriSession, data: bytes) -> bool:
        """Queue the events of each call, then send its answer. :returns: False if the queue overflowed."""
        for answer, outcome, size in session.feed(data):
            queued = True
            try:
                for event in outcome.events:
                    queued = self.queue.put(event, size, outcome.waits) and queued
                    size = 0
            finally:
                stream.send(answer)
            if not queued:
                self.counters.overflows += 1
                return False
        return True

    def _run(self) -> None:
        """The thread: one connection after another."""
        while not self._stopping.is_set():
            began = time.monotonic()
            why = self._attempt()
            if self._stopping.is_set():
                break
            if why == _RECONNECTING:
                logger.info("nri: reconnecting; everything is listed again")
            else:
                self._report_down(why)
            if not self.can_reconnect:
                break
            self._rest(self._pause(lasted=time.monotonic() - began))
        self.ended.set()

    def _pause(self, lasted: float) -> float:
        """The seconds until the next attempt. :param lasted: the duration of the last connection in seconds."""
        if self._backoff is None:
            from vmpin.host.retry import Backoff  # a lasting connection does not need it

            self._backoff = Backoff(FIRST_DELAY, LAST_DELAY)
        if lasted > LAST_DELAY:
            self._backoff.reset()
        return self._backoff.pause()

    def _wait(self, seconds: float) -> None:
        """Wait, at most until the plugin is stopped."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        until = time.monotonic() + seconds
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            if poll.poll(left * 1000 + 1):
                os.eventfd_read(self._wake)

    def _report_up(self, runtime: str) -> None:
        if self._state != (True, runtime):
            logger.info("nri=up runtime=%r plugin=%s-%s", runtime, self.index, self.name)
            self._logged.clear()
        self._report(True, runtime)

    def _report_down(self, why: str) -> None:
        """Report a lost connection or a failed attempt; logged once for each reason."""
        self.counters.last_error = why
        if why not in self._logged and len(self._logged) < 64:
            self._logged.add(why)
            logger.warning("nri=down: %s%s", why, "; reconnecting" if self.can_reconnect else "")
        self._report(False, why)

    def _report(self, up: bool, text: str) -> None:
        if self._state == (up, text):
            return
        self._state = (up, text)
        try:
            self._on_state(up, text)
        except Exception:
            logger.exception("nri: the connection's state cannot be reported")


def from_environment(queue: NriQueue, on_state: Callable[[bool, str], None],
                     environ: MutableMapping[str, str] = os.environ, decider: CpuDecider | None = None,
                     can_wait: CanWait = never_waits) -> NriPlugin | None:
    """If the runtime started this process as a plugin: the plugin with the inherited connection, which it ends with;
    else None. :raises ConfigError: see `connection.inherited`."""
    started = inherited(environ)
    if started is None:
        return None
    connection, name, index = started
    return NriPlugin(lambda: connection, queue, name, index, on_state, once=True, decider=decider,
                     can_wait=can_wait)

