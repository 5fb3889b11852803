"""The agent in a guest: how soon a change of placement is applied there, what it takes at rest, and how long it is.

It gets its maps from the host's own session.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import socket
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from bench_node import Node, cpus, resident_mib
from guest_node import PATIENCE, THREADS, Guest, guest_of
from measure import CannotMeasure, Figure, environment, median, progress
from processes import SYSTEM_PYTHON

from vmpin.cpuset import CpuSet
from vmpin.domain.guest_report import APPLIED
from vmpin.domain.model import Container, ContainerId, SandboxId, Vcpu, VcpuId
from vmpin.domain.policy import Policy
from vmpin.domain.sandbox_placement import Placement
from vmpin.domain.topology import Topology
from vmpin.features.installer import agent_zipapp
from vmpin.guests.agent_session import AgentSession
from vmpin.guests.vcpu_map import guest_map
from vmpin.install import data_files
from vmpin.placement.ownership import Node as HostCpus
from vmpin.placement.ownership import claims_of, ownership
from vmpin.placement.rules import PlacementRequest, place
from vmpin.placement.rulings import inferred
from vmpin.protocol.frames import FrameDecoder, encode
from vmpin.protocol.messages import Applied, ContainerVcpus, VcpuMap, as_json
from vmpin.protocol.parsing import parse_answer

sys.path.append(str(data_files.path("guest")))

from vmpin_agent.guest_cpus import CpuReader

#: Looks after the last change that are no rest yet: new threads may follow it (s).
_SETTLED = 4.0


# From a change of placement to applied


def apply(made: Node, count: int, rounds: int, build: Path) -> Figure:
    """A container of `count` gets a CPU for itself, which drives the others off its vCPU, and loses it: from the
    placement until the agent says that it is applied. The slower direction counts.

    The floor writes the same cpusets from here, and reads back what they leave.
    """
    with guest_of(made, count, build) as guest:
        return asyncio.run(_apply(guest, rounds))


async def _apply(guest: Guest, rounds: int) -> Figure:
    pool, other = cpus()
    known = _hw()
    hw = {VcpuId(number): known[cpu] for number, cpu in enumerate((pool, other))}
    placements = {name: _placed(list(guest.cgroups), pool, own) for name, own in (
        ("to_exclusive", CpuSet((other,))), ("to_shared", None))}
    maps = {name: _map(placement, hw) for name, placement in placements.items()}
    masks = {name: {ContainerId(cid): frozenset(cpu for cpu in (pool, other) if known[cpu] in share.hw)
                    for cid, share in wanted.containers.items()} for name, wanted in maps.items()}
    text = {mask: str(CpuSet(mask)).encode() for wanted in masks.values() for mask in wanted.values()}
    files = {cid: str(cgroup / "cpuset.cpus") for cid, cgroup in guest.cgroups.items()}
    changed = asyncio.Event()
    session = AgentSession("bench", lambda: [guest], 0, changed.set)

    async def once(name: str) -> float:
        begin = time.perf_counter()
        session.push(_map(placements[name], hw))
        while not session.done:
            changed.clear()
            await changed.wait()
        spent = time.perf_counter() - begin
        wrong = [f"{cid}: {said.text}" for cid, said in session.reports.items() if said.state != APPLIED]
        wrong += [f"{cid} may run on {found}" for cid, mask in masks[name].items()
                  if (found := set(guest.masks(cid))) != {mask}]
        if wrong or session.reports.keys() != guest.cgroups.keys():
            raise CannotMeasure(f"not applied: {', '.join(wrong[:3])} {session.text}")
        return spent * 1000

    def bare(name: str) -> float:
        """There and back, so that each write changes something and nothing is left changed."""
        back = next(each for each in masks if each != name)
        begin = time.perf_counter()
        for wanted in masks[back], masks[name]:
            for cid, file in files.items():
                _write(file, text[wanted[cid]])
            for file in files.values():
                _read(file)
        return (time.perf_counter() - begin) / 2 * 1000

    values: dict[str, list[float]] = {name: [] for name in placements}
    floors: list[float] = []
    task = asyncio.create_task(session.run())
    try:
        async with asyncio.timeout(PATIENCE + rounds):
            for name in values:
                await once(name)  # the first time it connects, and what was before is kept
            for _ in range(rounds):
                for name, times in values.items():
                    times.append(await once(name))
                    floors.append(bare(name))
    except TimeoutError:
        raise CannotMeasure(f"the agent did not answer: {session.text}") from None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    directions = {name: round(median(times), 4) for name, times in values.items()}
    return Figure("guest_apply", max(directions.values()), "ms", median(floors), 20, "value",
                  {"containers": len(guest.cgroups), "threads": THREADS * len(guest.cgroups), "rounds": rounds,
                   **directions})


def _hw() -> dict[int, int]:
    """What the hardware calls each CPU, as an agent on this machine finds it."""
    return {cpu.cpu: cpu.hw for cpu in CpuReader().read().cpus if cpu.hw is not None}


def _placed(names: list[ContainerId], pool: int, own: CpuSet | None) -> Placement:
    """Two vCPUs; the first container has these CPUs, the others the pool."""
    node = HostCpus(Topology.build(CpuSet(cpus())), CpuSet((pool,)))
    sandbox = SandboxId("bench")
    boxes = [Container(name, name, own if number == 0 else CpuSet((pool,))) for number, name in enumerate(names)]
    request = PlacementRequest(sandbox, (Vcpu(VcpuId(0)), Vcpu(VcpuId(1))), tuple(boxes))
    claims = claims_of(inferred(boxes, node.shared_pool), node)
    return place(request, node, ownership({sandbox: claims}, node), Policy())


def _map(placement: Placement, hw: Mapping[VcpuId, int]) -> VcpuMap:
    made = guest_map(placement, hw)
    assert made is not None
    return made


def _write(path: str, text: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, text)
    os.close(fd)


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    text = os.read(fd, 4096)
    os.close(fd)
    return text


# At rest


def at_rest(made: Node, count: int, seconds: float, build: Path) -> list[Figure]:
    """An agent that has a map and a host that says nothing, beside an interpreter that wakes up once a second."""
    with guest_of(made, count, build) as guest, contextlib.ExitStack() as stack:
        line = stack.enter_context(socket.socket(socket.AF_UNIX))
        line.settimeout(PATIENCE)
        line.connect(str(guest.socket))
        _send_maps(line, guest)
        floor = subprocess.Popen([SYSTEM_PYTHON, "-IS", "-c", "import time\nwhile True: time.sleep(1)"],
                                 env=environment())
        try:
            pids = (_listener(line), floor.pid)
            time.sleep(_SETTLED)
            before = [_switches(pid) for pid in pids]
            # From the middle between two looks to the middle between two others.
            while _switches(pids[0]) == before[0]:
                time.sleep(0.01)
            time.sleep(0.5)
            progress(f"the agent at rest for {seconds:g} s")
            before = [_switches(pid) for pid in pids]
            time.sleep(seconds)
            woken, least = ((_switches(pid) - was) / seconds for pid, was in zip(pids, before, strict=True))
            resident, bare = (resident_mib(pid) for pid in pids)
        finally:
            floor.kill()
            floor.wait()
    more = {"containers": count, "threads": THREADS * count, "seconds": seconds}
    return [Figure("guest_idle_rss", resident, "MiB", bare, 20, "value", more),
            Figure("guest_idle_wakes", woken, "per second", least, 1, "value", more)]


def _send_maps(line: socket.socket, guest: Guest) -> None:
    """A map with every container, to an agent that reports what changes."""
    shares = {str(container): ContainerVcpus((_hw()[cpus()[1]],)) for container in guest.cgroups}
    line.sendall(encode(as_json(VcpuMap(1, 1, "bench", shares))))
    decoder = FrameDecoder()
    while True:
        for message in decoder.feed(line.recv(1 << 16)):
            answer = parse_answer(message)
            if isinstance(answer, Applied):
                if any(each.state != APPLIED for each in answer.containers.values()):
                    raise CannotMeasure(f"not applied: {answer.containers}")
                return


def _listener(line: socket.socket) -> int:
    """The agent, by SO_PEERCRED: pid, uid, gid."""
    pid, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def _switches(pid: int) -> int:
    """How often a process of one thread gave its CPU up by itself, so how often it had to be woken."""
    for row in Path(f"/proc/{pid}/status").read_text().splitlines():
        if row.startswith("voluntary_ctxt_switches:"):
            return int(row.split()[1])
    raise CannotMeasure(f"process {pid} has ended")


# The file


def size() -> Figure:
    """The floor: its sources as one, compressed."""
    packed = agent_zipapp.packed()
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        sources = b"".join(archive.read(name) for name in archive.namelist())
    return Figure("pyz_size", len(packed) / 1000, "kB", len(zlib.compress(sources, 9)) / 1000, 100, "value",
                  {"files": len(agent_zipapp.NAMES), "unpacked": len(sources)})
