"""The task that samples: its rounds do not wait for what else is done in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from strayed import Spinners, spinners

from vmpin.daemon.sampling import Sampling
from vmpin.features.isolation.thief_visits import ThiefVisits


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Spinners]:
    with spinners(tmp_path, proof_sample_seconds="0.1") as made:
        yield made


class Endless(ThiefVisits):
    """A visit that is under way for ever, as one of a node with very many threads."""

    steps = 0

    @property
    def under_way(self) -> bool:
        return True

    def step(self, budget: float) -> bool:
        self.steps += 1
        return False


def test_a_visit_without_an_end_delays_no_round(node: Spinners) -> None:
    """It goes on between the rounds."""
    sampling = Sampling(node.node_state)

    async def sampled() -> int:
        task = asyncio.create_task(sampling.run())
        while sampling.sampler is None or sampling.observer is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        visits = sampling.observer.visits = Endless(node.reconciler.view)
        begun = sampling.sampler.rounds
        async with asyncio.timeout(120):
            while sampling.sampler.rounds < begun + 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return visits.steps

    assert asyncio.run(sampled()) > 0
