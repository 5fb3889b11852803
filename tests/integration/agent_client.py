"""The host's end of vmpin's agent, as a test needs it: it asks and waits, and keeps what was said unasked::

    with AgentClient.serial(guest.agent_socket) as agent:
        agent.ask(agent.map({"c1": "2-3"}, system="0-1"))
        agent.wait_for({"c1": APPLIED})

Only the protocol's codec is vmpin's.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from vmpin.protocol.frames import FrameDecoder, encode, parse_ids
from vmpin.protocol.messages import (
    AgentMessage,
    Applied,
    ContainerVcpus,
    Failure,
    HostMessage,
    VcpuMap,
    as_json,
)
from vmpin.protocol.parsing import PORT, parse_answer

#: Emulated guests on a busy machine: Python takes a second to start in one.
PATIENCE = 300.0


class AgentClient:
    """One connection. :param patience: seconds for each answer."""

    def __init__(self, line: socket.socket, patience: float = PATIENCE) -> None:
        self._line = line
        self._decoder = FrameDecoder()
        self._ids = itertools.count(1)
        self.patience = patience
        self._generation = 0
        #: Everything that came, the newest last.
        self.said: list[AgentMessage] = []

    @classmethod
    def serial(cls, path: str) -> AgentClient:
        """A virtio-serial port by its socket; also a plain unix socket."""
        line = socket.socket(socket.AF_UNIX)
        line.connect(path)
        return cls(line)

    @classmethod
    def vsock(cls, cid: int, port: int = PORT, patience: float = PATIENCE) -> AgentClient:
        """Over AF_VSOCK, as soon as the agent listens."""
        deadline = time.monotonic() + patience
        while True:
            line = socket.socket(socket.AF_VSOCK)
            try:
                line.connect((cid, port))
                return cls(line, patience)
            except OSError:
                line.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    @classmethod
    def hybrid(cls, path: str, port: int = PORT, patience: float = PATIENCE) -> AgentClient:
        """Over a hybrid vsock: a unix socket where the port is asked for. As soon as the agent listens."""
        deadline = time.monotonic() + patience
        while True:
            line = socket.socket(socket.AF_UNIX)
            line.connect(path)
            line.sendall(b"CONNECT %d\n" % port)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while not answer.endswith(b"\n") and (byte := line.recv(1)):
                    answer += byte
            if answer.startswith(b"OK "):
                return cls(line, patience)
            line.close()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} answers {answer!r} to CONNECT {port}")
            time.sleep(0.1)

    def __enter__(self) -> AgentClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._line.close()

    def map(self, containers: Mapping[str, str], system: str | None = None, *, exclusive: tuple[str, ...] = (),
            export: bool = False) -> VcpuMap:
        """The next generation's map. :param containers: lists of hardware ids."""
        self._generation += 1
        return VcpuMap(None, self._generation, "sandbox",
                       {cid: ContainerVcpus(parse_ids(hw), cid in exclusive) for cid, hw in containers.items()},
                       None if system is None else parse_ids(system), export)

    def ask(self, request: HostMessage) -> AgentMessage:
        """The answer to it. :raises TimeoutError: when none comes."""
        number = next(self._ids)
        self.send(encode(as_json(request._replace(id=number))))
        return self.until(lambda answer: getattr(answer, "id", None) == number, f"an answer to {request}")

    def send(self, raw: bytes) -> None:
        self._line.sendall(raw)

    def until(self, wanted: Callable[[AgentMessage], object], what: str, seconds: float = 0.0) -> AgentMessage:
        """The first message from now on that is wanted. :raises TimeoutError: when none comes, with the last ones."""
        deadline = time.monotonic() + (seconds or self.patience)
        while True:
            for answer in self._receive(deadline, what):
                if wanted(answer):
                    return answer

    def _receive(self, deadline: float, what: str) -> list[AgentMessage]:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self._line], [], [], left)[0]:
            raise TimeoutError(f"there is not {what}; the last that came: {self.said[-3:]}")
        data = self._line.recv(1 << 16)
        if not data:
            raise EOFError(f"the connection ended before {what}; the last that came: {self.said[-3:]}")
        found = [parse_answer(message) for message in self._decoder.feed(data)]
        self.said += found
        return found

    def applied(self) -> Applied | None:
        """What became of the newest map, as last reported."""
        return next((each for each in reversed(self.said) if isinstance(each, Applied)), None)

    def wait_for(self, states: Mapping[str, str], seconds: float = 0.0) -> Applied:
        """Until the newest map's containers have these states: asked or not, from what was said last on."""
        def reached(answer: AgentMessage | None) -> bool:
            return (isinstance(answer, Applied) and answer.generation == self._generation
                    and {cid: each.state for cid, each in answer.containers.items()} == dict(states))

        last = self.applied()
        if not reached(last):
            last = self.until(reached, f"{dict(states)} of generation {self._generation}", seconds)  # type: ignore[assignment]
        assert last is not None
        return last

    def put(self, containers: Mapping[str, str], states: Mapping[str, str] | None = None, system: str | None = None,
            *, exclusive: tuple[str, ...] = (), export: bool = False) -> Applied:
        """Send a map and wait until it is applied, or else until the states are as said."""
        answer = self.ask(self.map(containers, system, exclusive=exclusive, export=export))
        assert not isinstance(answer, Failure), answer
        return self.wait_for(states or dict.fromkeys(containers, "applied"))

    def quiet(self, seconds: float) -> None:
        """Read what there is, until nothing came for so long."""
        with contextlib.suppress(TimeoutError):
            while True:
                self._receive(time.monotonic() + seconds, "anything")
