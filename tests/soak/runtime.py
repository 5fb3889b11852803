"""A container runtime for the story: NRI on a socket, which reports all to its plugin, killed and started at will."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nri_peer import NriRuntime

#: Seconds for a plugin to answer: one that is stopped or killed does not.
DEADLINE = 3.0
#: What a connection that has ended shows as, at this end.
ENDED = (OSError, AssertionError, TimeoutError, ValueError)


class Runtime:
    """`listing` gives all pods and containers there are, for a plugin that connects. A thread takes connections."""

    def __init__(self, path: Path, listing: Callable[[], tuple[list[Any], list[Any]]]) -> None:
        self.path = path
        self.syncs = 0
        self._listing = listing
        self._lock = threading.Lock()
        self._plugin: NriRuntime | None = None
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def up(self) -> bool:
        return self._listener is not None

    @property
    def connected(self) -> bool:
        with self._lock:
            return self._plugin is not None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """No plugin connects meanwhile: its list then has all that changed, or none of it."""
        with self._lock:
            yield

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = made = socket.socket(socket.AF_UNIX)
        made.bind(str(self.path))
        made.listen()
        self._thread = threading.Thread(target=self._take, args=(made,))
        self._thread.start()

    def kill(self) -> None:
        """With the plugin's connection. The socket stays behind, as that of a killed runtime does."""
        listener, self._listener = self._listener, None
        if listener is None or self._thread is None:
            return
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        listener.close()
        with self._lock:
            self._drop()

    def report(self, event: int, pod: Any, container: Any = None) -> bool:
        """Within `changing`. :returns: whether a plugin received it."""
        if self._plugin is None:
            return False
        try:
            self._plugin.state_change(event, pod, container)
        except ENDED:
            self._drop()
        return self._plugin is not None

    def check(self) -> None:
        """Find out whether the plugin is still there."""
        with self._lock:
            if self._plugin is None or not select.select([self._plugin.socket], [], [], 0)[0]:
                return
            try:
                gone = not self._plugin.socket.recv(1, socket.MSG_PEEK)
            except OSError:
                gone = True
            if gone:
                self._drop()

    def _drop(self) -> None:
        if self._plugin is not None:
            self._plugin.close()
        self._plugin = None

    def _take(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._drop()
                plugin = NriRuntime(connection)
                connection.settimeout(DEADLINE)
                try:
                    plugin.begin(*self._listing())
                except ENDED:
                    plugin.close()
                    continue
                self._plugin = plugin
                self.syncs += 1
