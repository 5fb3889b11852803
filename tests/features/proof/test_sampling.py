"""The task that samples: its rounds do not wait for what its listener does in between, and off it sleeps."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from strayed import Spinners, spinners

from vmpin.config import loading as settings
from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadRole
from vmpin.features.proof import run_time_books
from vmpin.features.proof.residency_ledger import ResidencyLedger
from vmpin.features.proof.run_time_books import RunTimeBooks
from vmpin.features.proof.sampler import Sampler
from vmpin.features.proof.sampling import Sampling


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


def listening(listener: Endless) -> Callable[[Sampler], Awaitable[Endless]]:
    async def listen(sampler: Sampler) -> Endless:
        return listener

    return listen


async def becomes(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_what_a_listener_does_between_rounds_delays_none(node: Spinners) -> None:
    listener = Endless()
    sampling = Sampling(node.reconciler, listen=listening(listener))

    async def sampled() -> None:
        task = asyncio.create_task(sampling.run())
        await becomes(lambda: listener.ended >= 3)
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
        sampling = Sampling(node.reconciler, listen=listening(listener))
        task = asyncio.create_task(sampling.run())
        await asyncio.sleep(0)
        assert [handle for handle in asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
                if not handle.cancelled()] == []
        assert sampling.sampler is None
        node.node_state.config = on
        sampling.reconfigured.set()
        await becomes(lambda: listener.ended)
        node.node_state.config = off
        await becomes(lambda: listener.closed)
        assert await sampling.settled() is None
        # And on once more: with the books as they are, which the file need not have.
        sums = sampling.ledger.of(SandboxId("a")).of(ThreadRole.VCPU)
        sums.placed += 7
        node.node_state.config, rounds = on, listener.ended
        sampling.reconfigured.set()
        await becomes(lambda: listener.ended > rounds)
        assert sampling.ledger.roles()[ThreadRole.VCPU].placed == 7
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        sampling.close()

    asyncio.run(switched())


def test_while_earlier_books_are_read_the_loop_goes_on_and_nothing_is_lost(
        node: Spinners, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = ResidencyLedger(Counter({"tuned": 2}))
    earlier.began = 5.0
    RunTimeBooks(node.node_state.config.paths.run / "proof", node.node_state.boot_id, earlier).close()
    readable, read = threading.Event(), run_time_books.kept_ledger

    def slow(connection: sqlite3.Connection) -> ResidencyLedger | None:
        assert readable.wait(120)
        return read(connection)

    monkeypatch.setattr(run_time_books, "kept_ledger", slow)

    async def begun() -> None:
        sampling = Sampling(node.reconciler)
        task, asked = asyncio.create_task(sampling.run()), asyncio.create_task(sampling.settled())
        for _ in range(10):
            await asyncio.sleep(0)
        node.node_state.counters.drift["tuned"] += 1
        assert not asked.done()
        readable.set()
        assert await asked is sampling.sampler is not None
        assert (sampling.ledger.began, sampling.ledger.drift) == (5.0, {"tuned": 3})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        sampling.close()

    asyncio.run(begun())
