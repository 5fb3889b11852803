"""When sandboxes are looked at again."""

from __future__ import annotations

import asyncio
import time

import pytest

from vmpin.daemon import recheck
from vmpin.daemon.recheck import STEPS, RecheckSchedule
from vmpin.domain.model import SandboxId

A, B = SandboxId("a"), SandboxId("b")


async def soon(made: RecheckSchedule, wanted: list[SandboxId]) -> float:
    """After how long they are due."""
    began = time.monotonic()
    async with asyncio.timeout(120):
        assert await made.due() == wanted
    return time.monotonic() - began


def test_it_is_looked_at_ever_more_seldom_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (0.02, 0.05, 0.1)
    monkeypatch.setattr(recheck, "STEPS", steps)

    async def scenario() -> None:
        made = RecheckSchedule()
        made.soon([A])
        for step in steps[:-1]:
            assert await soon(made, [A]) >= step - 0.005
            assert made.looked([A]) == []
        assert await soon(made, [A]) >= steps[-1] - 0.005
        assert made.looked([A]) == [A]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(made.due(), 0.3)

    asyncio.run(scenario())


def test_what_was_not_looked_at_stays_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the look failed."""
    monkeypatch.setattr(recheck, "STEPS", (0.001, 60.0))

    async def scenario() -> None:
        made = RecheckSchedule()
        made.soon([A])
        await soon(made, [A])
        await soon(made, [A])
        made.looked([A])
        made.soon([B])
        await soon(made, [B])

    asyncio.run(scenario())


def test_whoever_waits_hears_of_one_that_is_due_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recheck, "STEPS", (0.02, 60.0))

    async def scenario() -> None:
        made = RecheckSchedule()
        made.soon([A])
        await soon(made, [A])
        made.looked([A])
        waiting = asyncio.create_task(made.due())
        await asyncio.sleep(0.01)
        made.soon([A])  # something is told of it again
        async with asyncio.timeout(120):
            assert await waiting == [A]

    asyncio.run(scenario())


def test_threads_without_names_that_come_all_the_time_do_not_begin_it_anew() -> None:
    async def scenario() -> None:
        made = RecheckSchedule()
        made.more([A])
        assert made._next[A][0] == 0
        for step in range(1, len(STEPS)):
            assert made.looked([A]) == []
            before = made._next[A]
            made.more([A])
            assert made._next[A][0] == min(step, recheck.UNNAMED)
            assert made._next[A][1] <= before[1]
            made._next[A] = before
        assert made.looked([A]) == [A]

    asyncio.run(scenario())
