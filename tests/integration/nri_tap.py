"""Between an NRI plugin and the runtime's socket: counts what the plugin asks of the runtime, by method, and reports
what the runtime asks of the plugin.

    tap = Tap(connect_to(containerd.nri_socket))
    NriPlugin(tap.connect, …)                       # a plugin in this process
    tap.listen(node.top / "tap.sock")               # a watcher's paths.nri
    …
    tap.close()                                     # when the plugin has ended
    assert tap.asked.keys() == {"RegisterPlugin"}
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from vmpin.wire import ttrpc

#: Seconds until a pump has ended with its connection.
PATIENCE = 300.0


class Tap:
    """:param connect: makes a connection to the runtime. :param record: called with each call of the runtime to the
    plugin, before the plugin gets it."""

    def __init__(self, connect: Callable[[], socket.socket],
                 record: Callable[[ttrpc.Call], None] | None = None) -> None:
        self.asked: Counter[str] = Counter()
        self._connect, self._record = connect, record
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._server: socket.socket | None = None

    def connect(self) -> socket.socket:
        """The plugin's end of a connection to the runtime."""
        plugin, ours = socket.socketpair()
        self._join(ours)
        return plugin

    def listen(self, path: Path) -> None:
        """Take the connections of a plugin that is another process."""
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._start(self._accept, self._server)

    def close(self) -> None:
        """When the plugin has ended."""
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE)
        for end in self._ends if self._server is None else (*self._ends, self._server):
            end.close()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = server.accept()
                try:
                    self._join(ours)
                except OSError:  # the runtime is away: so is this
                    ours.close()

    def _join(self, ours: socket.socket) -> None:
        runtime = self._connect()
        runtime.settimeout(None)
        self._ends += runtime, ours
        self._start(self._pump, ours, runtime, _calls(ttrpc.RUNTIME, self._count))
        record = self._record
        self._start(self._pump, runtime, ours, (lambda data: None) if record is None else _calls(
            ttrpc.PLUGIN, lambda message: record(message) if isinstance(message, ttrpc.Call) else None))

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket, look: Callable[[bytes], None]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                look(data)
                target.sendall(data)
        for end in source, target:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _count(self, message: ttrpc.Call | ttrpc.Reply) -> None:
        self.asked[message.method if isinstance(message, ttrpc.Call) else "an answer"] += 1


def _calls(wanted: int, look: Callable[[ttrpc.Call | ttrpc.Reply], None]) -> Callable[[bytes], None]:
    """A function of the bytes of one direction, which passes on the messages of one of its two connections."""
    demux, decoder = ttrpc.Demux(), ttrpc.TtrpcDecoder()

    def feed(data: bytes) -> None:
        for connection, payload in demux.feed(data):
            if connection == wanted:
                for message in decoder.feed(payload):
                    look(message)
    return feed
