"""Kata's own agent, asked to set containers' CPUs: nothing of vmpin's need be in the guest.

Its API has a call for that which its runtime never makes with CPUs in it (agent.proto: UpdateContainer). With nothing
but CPU.Cpus it writes the cpuset and leaves shares, quota, memory and devices as they are. (Up to 4.1 at least it
also lifts a limit of pids when it is told none, kata-containers issue 13824. It did so at the container's creation,
and no runtime of Kata's passes a limit on.) vmpin is one more client beside the runtime, for the time of a few calls.
A success says only that the call was made: a cpuset that could not be written is logged in the guest (rustjail/src/
cgroups/fs/mod.rs), and under a systemd older than 244 none is. No method is called but those in `METHODS`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.errors import SourceError, WireError
from vmpin.guests.transport import Channel, Stream
from vmpin.runtime.dialect import plain
from vmpin.wire import ttrpc

if TYPE_CHECKING:
    from vmpin.wire.protos import Messages

AGENT_SERVICE: Final = "grpc.AgentService"
HEALTH_SERVICE: Final = "grpc.Health"
#: gRPC's numbers for what the agent answers.
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED = 3, 5, 7

PORT: Final = 1024
#: An answer takes milliseconds; the agent is the runtime's first of all, and is not waited for longer (seconds).
DEADLINE = 2.0
#: Metrics are some 100 kB in a guest with many disks and interfaces.
MAX_ANSWER = 1 << 20

METHODS: Final = frozenset(((AGENT_SERVICE, "UpdateContainer"), (AGENT_SERVICE, "GetMetrics"),
                            (HEALTH_SERVICE, "Version")))


class AgentError(SourceError):
    """The agent answered no. `code` is gRPC's."""

    def __init__(self, method: str, code: int, text: str) -> None:
        super().__init__(f"Kata's agent: {method}", f"code {code}: {plain(text, 200)}")
        self.code = code


class Refused(AgentError):
    """Its policy does not allow the call, or it has no such call: it will not be otherwise the next time."""


class UnknownContainer(AgentError):
    """It has no container of this id (yet, or any more)."""


class KataAgent:
    """One connection; calls are made one after the other. Use as `async with await KataAgent.connect(channel)`.

    Every call raises SourceError for a no, WireError for what is no ttrpc, OSError and TimeoutError; after the last
    three the connection is of no more use.
    """

    def __init__(self, stream: Stream, messages: Messages) -> None:
        self._stream = stream
        self._messages = messages
        self._decoder = ttrpc.TtrpcDecoder(MAX_ANSWER)
        self._number = -1

    @classmethod
    async def connect(cls, channel: Channel) -> KataAgent:
        # In a thread: the protobuf library takes a while at the first time, and others are to be looked after.
        messages = await asyncio.to_thread(_messages)
        return cls(await channel.open(PORT), messages)

    async def __aenter__(self) -> KataAgent:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stream.close()

    async def version(self) -> str:
        """The agent's version, which shows that it is one."""
        answer = await self._call(HEALTH_SERVICE, "Version", "CheckRequest", "VersionCheckResponse")
        return plain(answer.agent_version, 64)

    async def set_cpus(self, container: ContainerId, cpus: CpuSet) -> None:
        """Ask for these of the guest's CPUs. :raises ValueError: for none: the agent would take that for no wish."""
        if not cpus:
            raise ValueError(f"no CPU for container {container}")
        await self._call(AGENT_SERVICE, "UpdateContainer", "UpdateContainerRequest", None, container_id=container,
                         resources={"CPU": {"Cpus": str(cpus)}})

    async def metrics(self) -> str:
        """In Prometheus's text format."""
        answer = await self._call(AGENT_SERVICE, "GetMetrics", "GetMetricsRequest", "Metrics")
        return str(answer.metrics)

    async def _call(self, service: str, method: str, request: str, reply: str | None, **fields: object) -> Any:
        """:param request: the name of the question's message. :param reply: that of the answer's, None when it says
        nothing."""
        assert (service, method) in METHODS
        self._number += 2
        # The agent gives up by itself, too: nothing of ours goes on in the guest when we do.
        payload = self._messages[request](**fields).SerializeToString()
        raw = ttrpc.encode(ttrpc.Call(self._number, service, method, payload, int(DEADLINE * 1e9)))
        async with asyncio.timeout(DEADLINE):
            self._stream.writer.write(raw)
            await self._stream.writer.drain()
            answer = await self._answer(method)
        if answer.code in (PERMISSION_DENIED, ttrpc.UNIMPLEMENTED):
            raise Refused(method, answer.code, answer.message)
        if answer.code in (INVALID_ARGUMENT, NOT_FOUND):
            raise UnknownContainer(method, answer.code, answer.message)
        if answer.code:
            raise AgentError(method, answer.code, answer.message)
        return None if reply is None else self._messages.decode(reply, answer.payload)

    async def _answer(self, method: str) -> ttrpc.Reply:
        size = 0
        while True:
            data = await self._stream.reader.read(65536)
            size += len(data)
            if not data:
                raise ConnectionResetError(f"Kata's agent closed the connection before it answered {method}")
            if size > 2 * MAX_ANSWER:
                raise WireError("Kata's agent", "says much, and no answer")
            for message in self._decoder.feed(data):
                if isinstance(message, ttrpc.Call):
                    raise WireError("Kata's agent", "asks, where it should answer")
                if message.stream == self._number:
                    return message
                raise WireError("Kata's agent", f"answers call {message.stream}, which was not made")


def _messages() -> Messages:
    from vmpin.wire.agent_messages import MESSAGES

    return MESSAGES
