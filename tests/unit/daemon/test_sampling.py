"""The task that samples: its rounds do not wait for what its listener does in between, and off it sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from strayed import Spinners, spinners

from vmpin.config import loading as settings
from vmpin.cpuset import CpuSet
from vmpin.daemon.sampling import Sampling
from vmpin.domain.model import SandboxId


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Spinners]:
    with spinners(tmp_path, proof_sample_seconds="0.1") as made:
        yield made


class Endless:
    """A listener with work between the rounds that never ends."""

    steps = begun = ended = 0
    closed = False

    def round_begins(self) -> None:
        self.begun += 1

    def ran(self, sandbox: SandboxId, spent: int, cpu: int, stayed: bool, place: CpuSet | None) -> None:
        pass

    def unplaced(self, sandbox: SandboxId, spent: int) -> None:
        pass

    def sampled(self, sandbox: SandboxId) -> None:
        pass

    def round_ended(self) -> None:
        self.ended += 1

    def go_on(self, budget: float) -> bool:
        self.steps += 1
        return True

    def close(self) -> None:
        self.closed = True


def test_what_a_listener_does_between_rounds_delays_none(node: Spinners) -> None:
    listener = Endless()
    sampling = Sampling(node.node_state, lambda sampler: listener)

    async def sampled() -> None:
        task = asyncio.create_task(sampling.run())
        async with asyncio.timeout(120):
            while listener.ended < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(sampled())
    assert listener.steps > 0
    assert listener.begun >= 3
    sampling.close()
    assert listener.closed


def test_it_sleeps_while_it_is_off_and_begins_when_it_is_switched_on(node: Spinners) -> None:
    """Off, it waits for another configuration and for no clock."""
    on = node.node_state.config
    off = settings.load(None, {}, {**node.flags, "proof.sample_seconds": "off"})
    node.node_state.config = off
    listener = Endless()

    async def switched() -> None:
        sampling = Sampling(node.node_state, lambda sampler: listener)
        task = asyncio.create_task(sampling.run())
        await asyncio.sleep(0)
        assert [handle for handle in asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
                if not handle.cancelled()] == []
        assert sampling.sampler is None
        node.node_state.config = on
        sampling.reconfigured()
        async with asyncio.timeout(120):
            while not listener.ended:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            node.node_state.config = off
            while not listener.closed:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert sampling.sampler is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(switched())
