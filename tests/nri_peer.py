"""The other end of an NRI connection, at a container runtime: what a test sends to a plugin, and its answers."""

from __future__ import annotations

import queue
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from vmpin.sources.nri.event_queue import NriQueue
from vmpin.sources.nri.nri_events import NriEvent
from vmpin.wire import ttrpc
from vmpin.wire.nri_messages import MESSAGES, PLUGIN_SERVICE

#: Longer than any answer takes on a machine that is busy; nothing waits for it otherwise.
PATIENCE = 120.0


def pod(id_: str = "pod1", **fields: Any) -> Any:
    return MESSAGES["PodSandbox"](**{"id": id_, "name": "web", "namespace": "default", "uid": "u-1", **fields})


def container(id_: str = "c1", pod_id: str = "pod1", cpus: str = "", state: int = 3, **fields: Any) -> Any:
    made = MESSAGES["Container"](**{"id": id_, "pod_sandbox_id": pod_id, "name": "app", "state": state, **fields})
    made.linux.resources.cpu.cpus = cpus
    return made


def delivering(handle: Callable[[NriEvent], object]) -> NriQueue:
    """A plugin's queue from which each event goes to `handle` at once, in the plugin's thread."""
    def arrived() -> None:
        for event in made.take().events:
            handle(event)

    made = NriQueue(arrived)
    return made


class NriRuntime:
    """One connection. What the plugin asks comes to `asked`; every call of a test's waits for its answer."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.settimeout(PATIENCE)
        self.asked: list[ttrpc.Call] = []
        self._answers: dict[int, ttrpc.Reply] = {}
        self._demux = ttrpc.Demux()
        self._decoders = {ttrpc.PLUGIN: ttrpc.TtrpcDecoder(), ttrpc.RUNTIME: ttrpc.TtrpcDecoder()}
        self._stream = -1

    def send(self, method: str, message: Any = None, service: str = PLUGIN_SERVICE) -> int:
        """A call that is not waited for, with a message or its bytes. :returns: its stream."""
        self._stream += 2
        payload = message if isinstance(message, bytes) else b"" if message is None else message.SerializeToString()
        raw = ttrpc.encode(ttrpc.Call(self._stream, service, method, payload, 2_000_000_000))
        # The Go side puts a whole message into one frame.
        self.socket.sendall(struct.pack(">II", ttrpc.PLUGIN, len(raw)) + raw)
        return self._stream

    def answer(self, stream: int) -> ttrpc.Reply:
        while stream not in self._answers:
            self._receive()
        return self._answers.pop(stream)

    def call(self, method: str, message: Any = None, service: str = PLUGIN_SERVICE) -> ttrpc.Reply:
        return self.answer(self.send(method, message, service))

    def request(self, method: str) -> ttrpc.Call:
        """The plugin's next call, which has to be of this method."""
        while not self.asked:
            self._receive()
        found = self.asked.pop(0)
        assert found.method == method
        return found

    def grant(self, request: ttrpc.Call, payload: bytes = b"", code: int = 0, message: str = "") -> None:
        self.socket.sendall(ttrpc.frames(ttrpc.RUNTIME, ttrpc.encode(
            ttrpc.Reply(request.stream, code, message, payload))))

    def _receive(self) -> None:
        data = self.socket.recv(65536)
        assert data, "the plugin closed the connection"
        for connection, payload in self._demux.feed(data):
            for message in self._decoders[connection].feed(payload):
                if isinstance(message, ttrpc.Call):
                    self.asked.append(message)
                else:
                    self._answers[message.stream] = message

    def configure(self, name: str = "containerd") -> int:
        """:returns: the mask of events that the plugin wants."""
        reply = self.call("Configure", MESSAGES["ConfigureRequest"](
            runtime_name=name, runtime_version="v2.1.9"))
        return int(MESSAGES.decode("ConfigureResponse", reply.payload).events)

    def synchronize(self, pods: list[Any] | None = None, containers: list[Any] | None = None,
                    more: bool = False) -> bool:
        """:returns: the plugin's `more`."""
        reply = self.call("Synchronize", MESSAGES["SynchronizeRequest"](
            pods=pods or [], containers=containers or [], more=more))
        assert reply.code == 0
        return bool(MESSAGES.decode("SynchronizeResponse", reply.payload).more)

    def begin(self, pods: list[Any] | None = None, containers: list[Any] | None = None,
              name: str = "containerd") -> None:
        """From the registration to the list."""
        self.grant(self.request("RegisterPlugin"))
        self.configure(name)
        self.synchronize(pods, containers)

    def state_change(self, event: int, pod_: Any = None, container_: Any = None) -> ttrpc.Reply:
        return self.call("StateChange", MESSAGES["StateChangeEvent"](event=event, pod=pod_, container=container_))

    def closed(self) -> bool:
        """Whether the plugin closes the connection; what it still says is of no interest."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                if not self.socket.recv(65536):
                    return True
            except ConnectionResetError:
                return True
        return False

    def close(self) -> None:
        self.socket.close()


class NriRuntimes:
    """A runtime that is connected to again and again: `connect` is the plugin's, `next` the test's end."""

    def __init__(self) -> None:
        self._made: queue.Queue[NriRuntime] = queue.Queue()
        self._all: list[NriRuntime] = []
        self.away: OSError | None = None

    def connect(self) -> socket.socket:
        if self.away is not None:
            raise self.away
        theirs, ours = socket.socketpair()
        runtime = NriRuntime(ours)
        self._all.append(runtime)
        self._made.put(runtime)
        return theirs

    def next(self) -> NriRuntime:
        return self._made.get(timeout=PATIENCE)

    def close(self) -> None:
        for runtime in self._all:
            runtime.close()
