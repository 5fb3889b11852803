"""A session with vmpin's agent, and maps to send, for the tests of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from guest_peer import Agent, UnixChannel, serving, until

from vmpin.config.timeouts import Timeouts
from vmpin.domain.model import ContainerId
from vmpin.guests.agent_session import AgentSession
from vmpin.protocol.messages import ContainerVcpus, VcpuMap

#: No test waits minutes for the next attempt.
QUICK = Timeouts(agent_first=0.02, agent_last=0.05, agent_early=0.02, agent_answer=120.0)


MAP = VcpuMap(None, 0, "pod-a", {"c1": ContainerVcpus((2, 3), True), "c2": ContainerVcpus((0, 1))}, (0, 1))


OTHER = MAP._replace(containers={"c1": ContainerVcpus((1, 2), True)})


C1 = ContainerId("c1")


@asynccontextmanager
async def session(*paths: Path, timeouts: Timeouts = QUICK) -> AsyncIterator[AgentSession]:
    """A running one."""
    made = AgentSession("pod-a", lambda: [UnixChannel(path) for path in paths], 10789, timeouts=timeouts)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        assert not task.done(), task.exception()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def applied(agent: Agent, timeouts: Timeouts = QUICK) -> AsyncIterator[AgentSession]:
    """A session with this agent, which has applied MAP."""
    async with serving(agent.talk) as path, session(path, timeouts=timeouts) as ours:
        ours.push(MAP)
        await until(lambda: ours.done)
        yield ours
