"""The task that samples: its rounds do not wait for what else is done in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from strayed import Spinners, spinners

from vmpin.daemon.samples.sampling import Sampling


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Spinners]:
    with spinners(tmp_path, proof_sample_seconds="0.1") as made:
        yield made


def test_a_visit_without_an_end_delays_no_round(node: Spinners, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a node with very many threads: it goes on between the rounds."""
    sampling = Sampling(node.reconciler)

    async def sampled() -> int:
        task = asyncio.create_task(sampling.run())
        steps = 0
        while sampling.sampler is None or sampling.observer is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        visits = sampling.observer.visits

        def step(budget: float) -> bool:
            nonlocal steps
            steps += 1
            return False

        monkeypatch.setattr(type(visits), "under_way", True)
        monkeypatch.setattr(visits, "step", step)
        begun = sampling.sampler.rounds
        async with asyncio.timeout(120):
            while sampling.sampler.rounds < begun + 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return steps

    assert asyncio.run(sampled()) > 0
