"""Kata's agent as a test holds it: ttrpc, without a guest."""

from __future__ import annotations

import asyncio

from vmpin.guests.kata_agent import agent_messages
from vmpin.wire import ttrpc


class Server:
    """The agent. `containers` are the ones it has, with their cpusets."""

    def __init__(self, *containers: str) -> None:
        self.containers = dict.fromkeys(containers or ("c1", "c2"), "")
        self.calls: list[tuple[str, str]] = []
        self.connections = 0
        self.policy: set[str] = set()
        self.online = 4
        #: The times of each CPU.
        self.user, self.idle = [0.0] * 4, [0.0] * 4
        self.slow = 0.0
        self.raw: bytes | None = None

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        decoder = ttrpc.TtrpcDecoder()
        while data := await reader.read(65536):
            for request in decoder.feed(data):
                assert isinstance(request, ttrpc.Call)
                assert request.timeout_ns > 0
                self.calls.append((request.service, request.method))
                await asyncio.sleep(self.slow)
                writer.write(self.raw if self.raw is not None else ttrpc.encode(self.answer(request)))

    def answer(self, request: ttrpc.Call) -> ttrpc.Reply:
        if request.method in self.policy:
            return ttrpc.Reply(request.stream, 7, f"{request.method}Request is blocked by policy: \x1b[31m")
        match request.service, request.method:
            case "grpc.Health", "Version":
                found = agent_messages()["VersionCheckResponse"](grpc_version="0.0.1", agent_version="4.1.0")
            case "grpc.AgentService", "GetMetrics":
                found = agent_messages()["Metrics"](metrics="".join(
                    f'kata_guest_cpu_time{{cpu="{cpu}",item="{item}"}} {times[cpu]}\n'
                    for cpu in range(self.online) for item, times in (("user", self.user), ("idle", self.idle))))
            case "grpc.AgentService", "UpdateContainer":
                update = agent_messages().decode("UpdateContainerRequest", request.payload)
                # Nothing but the CPUs: what else is there would be changed, too.
                bare = agent_messages()["UpdateContainerRequest"](container_id=update.container_id)
                bare.resources.CPU.Cpus = update.resources.CPU.Cpus
                assert request.payload == bare.SerializeToString()
                if update.container_id not in self.containers:
                    return ttrpc.Reply(request.stream, 3, "invalid container id")
                self.containers[update.container_id] = update.resources.CPU.Cpus
                return ttrpc.Reply(request.stream)
            case _:
                raise AssertionError(request)
        return ttrpc.Reply(request.stream, payload=found.SerializeToString())
