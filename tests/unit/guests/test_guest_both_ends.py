"""The host's session and the agent itself, each in its own process, over a Unix socket: real threads, real masks.

The agent gets made-up cgroups that hold the test's own processes alone, and nothing for `system`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from guest_peer import UnixChannel, until
from guest_tree import Worker, fill, worker, write
from need import lacking

from vmpin.config.timeouts import Timeouts
from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.guests.agent_session import AgentSession
from vmpin.protocol.messages import ContainerVcpus, VcpuMap
from vmpin_agent.guest_cpus import CpuReader

ROOT = Path(__file__).parents[3]
WEB, LOGS, NONE = ContainerId("web"), ContainerId("logs"), ContainerId("none")

QUICK = Timeouts(agent_first=0.02, agent_last=0.05, agent_early=0.02, agent_answer=120.0)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Worker, Worker]]:
    if not {0, 1} <= os.sched_getaffinity(0):
        lacking("needs CPUs 0 and 1")
    with worker() as web, worker() as logs:
        web.threads(20)
        root = write(tmp_path / "cgroup", {"cgroup.controllers": "memory"})
        fill(root / WEB, web)
        fill(root / LOGS, logs)
        yield web, logs


class Guest:
    """The agent's process, in a directory of the test's."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.socket = place / "agent.sock"
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "vmpin_agent", "--vsock-port", "0", "--serial", "", "--unix", str(self.socket),
             "--cgroup", str(self.place / "cgroup"), "--run", str(self.place / "run")],
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'guest'}"}, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.socket.unlink(missing_ok=True)


@asynccontextmanager
async def session(place: Path) -> AsyncIterator[tuple[Guest, AgentSession]]:
    guest = Guest(place)
    ours = AgentSession("pod-a", lambda: [UnixChannel(guest.socket)], 10789, timeouts=QUICK)
    task = asyncio.create_task(ours.run())
    try:
        yield guest, ours
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        guest.kill()


def ids() -> tuple[int, int]:
    """The hardware ids of CPUs 0 and 1, as the guest's agent receives them."""
    known = {cpu.cpu: cpu.hw for cpu in CpuReader().read().cpus}
    first, second = known[0], known[1]
    assert first is not None
    assert second is not None
    return first, second


async def test_threads_go_where_the_host_says_and_back(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    web, logs = both
    before = web.masks()
    first, second = ids()
    here = VcpuMap(None, 0, "pod-a", {WEB: ContainerVcpus((second,), True), LOGS: ContainerVcpus((first,)),
                                      NONE: ContainerVcpus((first,))})
    there = here._replace(containers={WEB: ContainerVcpus((first,), True), LOGS: ContainerVcpus((second,))})
    async with session(tmp_path) as (guest, ours):
        ours.push(here)
        await until(lambda: ours.done)
        assert (web.masks(), logs.masks()) == ({"1"}, {"0"})
        assert {cid: said.state for cid, said in ours.reports.items()} == {
            WEB: "applied", LOGS: "applied", NONE: "unknown"}
        said = ours.reports[WEB]
        assert (said.threads, said.effective, said.outside) == (21, CpuSet((1,)), ())
        ours.push(there)
        await until(lambda: ours.done)
        assert (web.masks(), logs.masks()) == ({"0"}, {"1"})
        # Killed: what it did stays, and the next one asks for the map.
        guest.kill()
        await until(lambda: not ours.up)
        assert ours.reports == {}
        assert web.masks() == {"0"}
        guest.process = guest.start()
        await until(lambda: ours.done and ours.reports.get(WEB) and ours.reports[WEB].state == "applied")
        # Another host session, as after a restart of the watcher: its map is the newer one.
        again = AgentSession("pod-a", lambda: [UnixChannel(guest.socket)], 10789, timeouts=QUICK)
        task = asyncio.create_task(again.run())
        again.push(here)
        await until(lambda: again.done and web.masks() == {"1"})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        ours.unpin()
        await until(lambda: ours.done)
        assert (web.masks(), logs.masks()) == (before, before)


async def test_each_change_is_done(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    """From what is wanted to the masks of the threads; how soon is the bench's to say (guest_apply)."""
    web, _ = both
    first, second = ids()
    async with session(tmp_path) as (_, ours):
        ours.push(VcpuMap(None, 0, "pod-a", {WEB: ContainerVcpus((first,), True)}))
        await until(lambda: ours.done)
        for hw, mask in ((second, "1"), (first, "0")) * 10:
            ours.push(VcpuMap(None, 0, "pod-a", {WEB: ContainerVcpus((hw,), True)}))
            await until(lambda: web.masks() == {mask})  # noqa: B023
            await until(lambda: ours.done)
