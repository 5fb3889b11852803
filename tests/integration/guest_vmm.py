"""A VMM without a guest: a process that looks like a Firecracker of Kata's, and answers itself where a guest would be
reached, over hybrid vsock::

    with GuestVmm(node, "a", {10789: "agent"}) as vm:
        vm.sandbox, vm.pid
        vm.ports({10789: "garbage", 1024: "kata"})      # from the next connection on
        vm.received("map")                              # what came, and when

By port: "agent" speaks the protocol of vmpin's agent as it should, "kata" that of Kata's; "garbage", "liar", "flood"
and "deaf" are what a guest may come to. Nothing listens on any other port. For what a real guest does, `RealGuest`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from guest_peer import Agent
from kata_peer import Server
from real_node import Node
from waiting import PATIENCE, wait

from vmpin.guests.kata_agent import agent_messages
from vmpin.protocol.frames import encode
from vmpin.protocol.messages import Applied, HostMessage, Pong, VcpuMap, as_json
from vmpin.wire import ttrpc


class GuestVmm:
    """One, running between `with` and its end. Its vCPU threads wait for ever.

    :param containers: those that Kata's agent has.
    :param policy: methods that it refuses.
    """

    def __init__(self, node: Node, name: str, ports: dict[int, str], *, vcpus: int = 3,
                 containers: tuple[str, ...] = (), policy: tuple[str, ...] = ()) -> None:
        self.sandbox = node.id(name)
        place = node.top / "vc/vm" / self.sandbox
        place.mkdir(parents=True)
        self._log = place / "log"
        self._argv = ["firecracker", __file__, "--config-file", f"/run/vc/firecracker/{self.sandbox}/fcConfig.json",
                      str(place / "kata.hvsock"), str(vcpus), json.dumps([*containers]),
                      json.dumps([*policy])]
        self._ports = ports
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> GuestVmm:
        with self._log.open("wb") as log:
            # Started under another name, Python does not find what is installed beside it.
            self._process = subprocess.Popen(self._argv, executable=sys.executable, stdin=subprocess.PIPE, stdout=log,
                                             text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
        self.ports(self._ports)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if kind is not None:
            print(self._log.read_text()[-4000:])
        assert self._process is not None
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def ports(self, ports: dict[int, str]) -> None:
        """What answers on each port from now on; the present connections end."""
        count = len(self.received("ports"))
        self._say(ports)
        wait(lambda: len(self.received("ports")) > count,
             lambda: f"it is not ready: {self._log.read_text()}", PATIENCE)

    def _say(self, ports: dict[int, str]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(ports) + "\n")
        self._process.stdin.flush()

    def received(self, what: str = "") -> list[dict[str, Any]]:
        """What came, in order: "connect" (port), "map" (message), "unpin", "ping", "call" (method), and
        for Kata's agent "cpus" (container, cpus). `time` is CLOCK_MONOTONIC."""
        *lines, _ = self._log.read_text().split("\n")
        found = [json.loads(line) for line in lines]
        return [each for each in found if what in ("", each["what"])]


# The process


class _Guest:
    def __init__(self, containers: list[str], policy: list[str]) -> None:
        self.by_port: dict[int, str] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._agent = _Agent()
        self._kata = _Kata(*containers)
        self._kata.policy |= set(policy)

    def become(self, ports: dict[str, str]) -> None:
        self.by_port = {int(port): who for port, who in ports.items()}
        for writer in self._writers:
            writer.transport.abort()
        log("ports")

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError):
                await self._talk(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = int((await reader.readline()).split()[1])
        log("connect", port=port)
        who = self.by_port.get(port)
        if who is None:
            return
        writer.write(b"OK 1073741824\n")
        if who == "agent":
            await self._agent.talk(reader, writer)
        elif who == "kata":
            await self._kata.talk(reader, writer)
        elif who == "liar":  # it begins well
            await _Liar().talk(reader, writer)
        elif who == "deaf":
            await asyncio.sleep(1e6)
        else:
            number = 0
            while True:
                number += 1
                writer.write(random.Random(number).randbytes(5000) if who == "garbage" else
                             encode(as_json(Pong(number, "\x1b[31m"))))
                await writer.drain()


class _Agent(Agent):
    def answer(self, request: HostMessage) -> None:
        log(as_json(request)["type"], message=as_json(request))
        super().answer(request)


class _Liar(Agent):
    """It says that it holds a newer map than any it was sent, again and again."""

    def applied(self, request: VcpuMap) -> Applied:
        return Applied(request.id, request.generation + 1, {})


class _Kata(Server):
    def answer(self, request: ttrpc.Call) -> ttrpc.Reply:
        log("call", method=request.method)
        if request.method == "UpdateContainer":
            update = agent_messages().decode("UpdateContainerRequest", request.payload)
            log("cpus", container=update.container_id, cpus=update.resources.CPU.Cpus)
        return super().answer(request)


def log(what: object, **more: object) -> None:
    print(json.dumps({"what": what, "time": time.monotonic(), **more}), flush=True)


def _vcpu(number: int) -> None:
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(f"fc_vcpu {number}")
    threading.Event().wait()


async def main(path: str, vcpus: int, containers: list[str], policy: list[str]) -> None:
    for number in range(vcpus):
        threading.Thread(target=_vcpu, args=[number], daemon=True).start()
    guest = _Guest(containers, policy)
    loop = asyncio.get_running_loop()
    async with await asyncio.start_unix_server(guest.connected, path):
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            guest.become(json.loads(line))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5]), json.loads(sys.argv[6])))
