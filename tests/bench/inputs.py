"""The dearest inputs that are permitted: a guest's frame, a checkpoint, Kata's state file; and a guest that floods.

Each is beside what its JSON alone costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from measure import CannotMeasure, Figure, in_turn, median

from vmpin.cpuset import MAX_REGIONS
from vmpin.domain.model import SandboxId
from vmpin.guests.agent_session import AgentSession
from vmpin.guests.channels import Channel, Stream, open_unix
from vmpin.guests.limits import longest_answer, only_used
from vmpin.protocol.frames import MAX_VALUES, FrameDecoder
from vmpin.protocol.messages import ContainerVcpus, Pong, VcpuMap, as_json
from vmpin.protocol.parsing import parse_answer
from vmpin.runtime import kata, kubelet

#: Containers of the pod that a guest is asked about.
_CONTAINERS = 50
_LIMIT = 20  # ms


def _lists(count: int, regions: int) -> list[str]:
    """So many CPU lists, all different, with so many ranges in each, which are long and overlap."""
    return [",".join(f"{number}-{8191 - number - at}" for at in range(regions)) for number in range(count)]


def _cpu_ms(call: Callable[[], object]) -> float:
    """Of this thread: other work on the machine does not count."""
    begin = time.thread_time()
    call()
    return (time.thread_time() - begin) * 1000


def _dearest(name: str, rounds: int, texts: Sequence[bytes], parse: Callable[[bytes], object]) -> Figure:
    """The dearest of these texts: the median of each, and the largest of these."""
    def cost(text: bytes) -> tuple[float, float, int]:
        values, floors = in_turn(rounds, lambda: _cpu_ms(lambda: parse(text)),
                                 lambda: _cpu_ms(lambda: json.loads(text)))
        return median(values), median(floors), len(text)

    value, floor, size = max(cost(text) for text in texts)
    return Figure(name, value, "ms", floor, _LIMIT, "value", {"bytes": size, "inputs": len(texts), "rounds": rounds})


def _frames() -> list[bytes]:
    """Of a guest that was asked about 50 containers."""
    lists = _lists(_CONTAINERS, MAX_REGIONS // _CONTAINERS)
    room = longest_answer(_CONTAINERS) // _CONTAINERS

    def applied(**more: object) -> bytes:
        outcomes = [{"state": "applied", **{key: value(number) if callable(value) else value
                                           for key, value in more.items()}} for number in range(_CONTAINERS)]
        return json.dumps({"v": 1, "type": "applied", "generation": 1, "containers": {
            f"c{number}": outcome for number, outcome in enumerate(outcomes)}}, ensure_ascii=False).encode()

    return [applied(wanted=lambda number: lists[number], outside=list(range(16))),
            applied(cgroup="a\x80" * (room // 3 - 700), error="\x80" * 400),
            applied(unknown=[[]] * (MAX_VALUES // 3 // _CONTAINERS - 10)),
            applied(unknown=[1.5] * (MAX_VALUES // _CONTAINERS - 20))]


def frame(rounds: int) -> Figure:
    """The dearest frame, from its bytes to the message."""
    wanted = frozenset(f"c{number}" for number in range(_CONTAINERS))

    def parse(body: bytes) -> None:
        decoder = FrameDecoder(longest_answer(_CONTAINERS))
        for message in decoder.feed(struct.pack(">I", len(body)) + body):
            parse_answer(only_used(wanted, message))

    return _dearest("hostile_frame", rounds, _frames(), parse)


def checkpoint(rounds: int) -> Figure:
    """The dearest checkpoint of the kubelet's CPU manager."""
    def of(count: int, lists: Sequence[str], **more: object) -> dict[str, Any]:
        return {"policyName": "static", "defaultCpuSet": "0", "checksum": 1, **more, "entries": {
            f"{number:036d}": {f"name{number}": lists[number % len(lists)]} for number in range(count)}}

    half = kubelet.MAX_BYTES // 2 - 1000
    documents = [of(1023, _lists(1023, 3)), of(1023, _lists(40, 100)), of(200, ["1"]), of(10, ["1"], x="a" * 2 * half),
                 of(10, ["1"], x=[1] * 8 * 1000), {"data": json.dumps(of(1023, _lists(1023, 3))), "dataChecksum": 1}]
    return _dearest("hostile_checkpoint", rounds, [json.dumps(document).encode() for document in documents],
                    kubelet.parse_checkpoint)


def persist(rounds: int) -> Figure:
    """The dearest persist.json of Kata's Go runtime."""
    def of(count: int, lists: Sequence[str], annotations: dict[str, str]) -> bytes:
        return json.dumps({"Config": {"ContainerConfigs": [
            {"ID": f"c{number}", "Annotations": annotations,
             "Resources": {"cpu": {"cpus": lists[number % len(lists)]}}} for number in range(count)]}}).encode()

    short = {f"a{number}": "" for number in range(36)}
    texts = [of(512, _lists(512, 8), short), of(512, _lists(40, 100), {"x": "y" * 1000}),
             of(2, ["0-3"], {f"a{number}": "x" * 10 for number in range(12_000)})]
    return _dearest("hostile_persist", rounds, texts, lambda raw: kata.parse_go(SandboxId("pod"), raw, 0))


class _Way:
    """The way to the guest's socket."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def open(self, port: int) -> Stream:
        return await open_unix(self._path, os.getpid(), None)


def flooding(seconds: int) -> Figure:
    """What one guest that sends valid messages without end takes of a CPU, beside one that answers and is quiet."""
    dear = [struct.pack(">I", len(body)) + body for body in _frames()[:4]]
    return Figure("flooding_guest", _session_percent(seconds, b"".join(dear)), "% of a CPU",
                  _session_percent(seconds, b""), 2, "value", {"seconds": seconds})


def _session_percent(seconds: int, sent: bytes) -> float:
    """The CPU time of the thread with the session. What is sent comes from another one."""
    with tempfile.TemporaryDirectory(prefix="vmpin-bench-") as directory, _guest(f"{directory}/guest", sent) as path:
        channels: list[Channel] = [_Way(path)]

        async def main() -> float:
            session = AgentSession("pod", lambda: channels, 1)
            session.push(VcpuMap(0, 0, "pod", {f"c{number}": ContainerVcpus((0,)) for number in range(_CONTAINERS)}))
            used = time.thread_time()
            task = asyncio.create_task(session.run())
            await asyncio.sleep(seconds)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if not session.counters.answers:
                raise CannotMeasure("the guest was not reached")
            return 100 * (time.thread_time() - used) / seconds

        return asyncio.run(main())


@contextlib.contextmanager
def _guest(path: str, sent: bytes) -> Iterator[str]:
    pong = json.dumps(as_json(Pong(1, "0.1"))).encode()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    listening.settimeout(0.2)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.settimeout(0.2)
                    _flood(connection, struct.pack(">I", len(pong)) + pong, sent, ended)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield path
    finally:
        ended.set()
        thread.join()
        listening.close()


def _flood(connection: Any, pong: bytes, sent: bytes, ended: threading.Event) -> None:
    """Answer the ping, and send on until the session or the measurement ends."""
    connection.sendall(pong)
    left = memoryview(sent)
    while not ended.is_set():
        with contextlib.suppress(TimeoutError):
            if sent:
                left = left[connection.send(left):] or memoryview(sent)
            elif not connection.recv(65536):
                return
