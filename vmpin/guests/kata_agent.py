"""A client of Kata's own agent, which sets containers' CPUs without any part of vmpin in the guest.

Its API has a call for this that its runtime never makes with CPUs in it (agent.proto: UpdateContainer). With nothing
but CPU.Cpus it writes the cpuset and leaves shares, quota, memory and devices as they are. (Up to 4.1 at least it also
lifts a limit of pids when the call has none, kata-containers issue 13824. It did so at the container's creation, and
no runtime of Kata's passes a limit on.) vmpin is one more client beside the runtime, for the duration of a few calls.
Success means only that the call was made: an error while writing the cpuset is logged in the guest (rustjail/src/
cgroups/fs/mod.rs), and a systemd older than 244 writes none. No methods but those in `METHODS` are called."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from vmpin.bounded import parse_whole
from vmpin.config.timeouts import TIMEOUTS
from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.errors import SourceError, WireError
from vmpin.guests.channels import Channel, Stream
from vmpin.runtime.dialect import plain
from vmpin.wire import ttrpc

if TYPE_CHECKING:
    from vmpin.wire.protos import Messages

AGENT_SERVICE: Final = "grpc.AgentService"
HEALTH_SERVICE: Final = "grpc.Health"
#: gRPC's status codes in the agent's answers.
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED = 3, 5, 7

PORT: Final = 1024
#: Metrics are some 100 kB in a guest with many disks and interfaces.
MAX_ANSWER = 1 << 20

#: A line of one CPU with a value that is a number.
_CPU_TIME = re.compile(r'kata_guest_cpu_time\{cpu="([0-9]{1,4})",item="[a-z]{1,32}"\} [0-9.e+]{1,32}$',
                       re.ASCII | re.MULTILINE)
METHODS: Final = {(AGENT_SERVICE, "UpdateContainer"), (AGENT_SERVICE, "GetMetrics"), (HEALTH_SERVICE, "Version")}


class AgentError(SourceError):
    """The agent answered with an error. `code` is gRPC's."""

    def __init__(self, method: str, code: int, text: str) -> None:
        super().__init__(f"Kata's agent: {method}", f"code {code}: {plain(text, 200)}")
        self.code = code


class Refused(AgentError):
    """Its policy forbids the call, or it has no such call: a repetition gets the same answer."""


class UnknownContainer(AgentError):
    """It has no container of this id, not yet or no longer."""


class KataAgent:
    """One connection, with one call at a time. Use as `async with await KataAgent.connect(channel)`. Every call raises
    AgentError for an error in the answer, and WireError (no ttRPC), OSError or TimeoutError, after which the
    connection cannot be used any more."""

    def __init__(self, stream: Stream, messages: Messages, deadline: float = TIMEOUTS.kata_answer) -> None:
        self._stream = stream
        self._messages = messages
        self._deadline = deadline
        self._decoder = ttrpc.TtrpcDecoder(MAX_ANSWER)
        self._number = -1

    @classmethod
    async def connect(cls, channel: Channel, deadline: float = TIMEOUTS.kata_answer) -> KataAgent:
        """Connect to the agent's port. :param deadline: for each answer (s). :raises OSError: as `Channel.open`."""
        stream = await channel.open(PORT)
        try:
            if not agent_messages.cache_info().currsize:
                # In a thread: loading the protobuf library takes 50 ms, in which the event loop must not stand still.
                await asyncio.to_thread(agent_messages)
            return cls(stream, agent_messages(), deadline)
        except BaseException:
            stream.close()
            raise

    async def __aenter__(self) -> KataAgent:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stream.close()

    async def version(self) -> str:
        """The agent's version. An answer shows that it is Kata's agent."""
        answer = await self._call(HEALTH_SERVICE, "Version", "CheckRequest", "VersionCheckResponse")
        return plain(answer.agent_version, 64)

    async def set_cpus(self, container: ContainerId, cpus: CpuSet) -> None:
        """Set a container's CPUs, by the guest's numbers. :raises ValueError: for none, which the agent ignores."""
        if not cpus:
            raise ValueError(f"no CPU for container {container}")
        await self._call(AGENT_SERVICE, "UpdateContainer", "UpdateContainerRequest", None, container_id=container,
                         resources={"CPU": {"Cpus": str(cpus)}})

    async def metrics(self) -> str:
        """The guest's metrics in Prometheus's text format."""
        answer = await self._call(AGENT_SERVICE, "GetMetrics", "GetMetricsRequest", "Metrics")
        return str(answer.metrics)

    async def _call(self, service: str, method: str, request: str, reply: str | None, **fields: object) -> Any:
        """Make one call and return its answer. :raises Refused, UnknownContainer, AgentError, WireError, TimeoutError:
        :param request: the name of the request's message.
        :param reply: the name of the answer's message, None if the answer is empty."""
        assert (service, method) in METHODS
        self._number += 2
        # The deadline is sent along, so that the agent abandons the call as well.
        payload = self._messages[request](**fields).SerializeToString()
        raw = ttrpc.encode(ttrpc.Call(self._number, service, method, payload, int(self._deadline * 1e9)))
        async with asyncio.timeout(self._deadline):
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
                raise WireError("Kata's agent", f"sends more than {2 * MAX_ANSWER} bytes and no answer")
            for message in self._decoder.feed(data):
                if isinstance(message, ttrpc.Call):
                    raise WireError("Kata's agent", "sends a request instead of an answer")
                if message.stream == self._number:
                    return message
                raise WireError("Kata's agent", f"answers call {message.stream}, which was not made")


def online_cpus(metrics: str) -> int:
    """The number of CPUs online in the guest, by the metrics of its agent: of lines of one CPU, of at most 1024.

    They repeat the guest's /proc/stat by position among the online CPUs (src/agent/src/metrics.rs); a position that
    was there once keeps its line when its CPU goes offline. Nothing in them is of any one container.

    >>> online_cpus('kata_guest_cpu_time{cpu="0",item="user"} 120\\nkata_guest_cpu_time{cpu="total",item="user"} 120')
    1
    """
    return len({parse_whole(match[1], 1023) for match in _CPU_TIME.finditer(metrics)} - {None})


@cache
def agent_messages() -> Messages:
    """The messages of Kata's agent that vmpin uses: src/libs/protocols/protos/agent.proto, oci.proto, health.proto.
    The field numbers are the same in Kata 2.0 and every later version. Loads the protobuf library."""
    from vmpin.wire.protos import Messages

    return Messages("grpc", """
        UpdateContainerRequest      container_id=1 resources=2:LinuxResources
        LinuxResources              CPU=3:LinuxCPU
        LinuxCPU                    Cpus=6 Mems=7
        GetMetricsRequest
        Metrics                     metrics=1
        CheckRequest                service=1
        VersionCheckResponse        grpc_version=1 agent_version=2
    """)
