"""The pauses between attempts, and the loop of a task that makes them."""

from __future__ import annotations

import asyncio

import pytest

from vmpin.host.retry import Backoff, repeat


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 6.0, jitter=0.0)
    assert [backoff.pause() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 6.0, 6.0]
    backoff.reset()
    assert backoff.pause() == 0.5


def test_after_so_many_steps_every_pause_is_the_longest() -> None:
    backoff = Backoff(0.1, 300.0, steps=2, jitter=0.0)
    assert [backoff.pause() for _ in range(4)] == [0.1, 0.2, 300.0, 300.0]
    backoff.at_most(2)
    assert [backoff.pause() for _ in range(2)] == [0.2, 300.0]
    backoff.at_most(9)
    assert backoff.pause() == 300.0


def test_pauses_differ_by_chance_and_none_exceeds_the_longest() -> None:
    pauses = [Backoff(8.0, last, jitter=0.25).pause() for last in (8.0, 9.0, 30.0) for _ in range(200)]
    assert 6.0 <= min(pauses[:200]) < max(pauses[:200]) <= 8.0
    assert 8.0 < max(pauses[200:400]) <= 9.0 < max(pauses[400:]) <= 10.0


async def test_attempts_end_with_the_first_that_does_not_raise() -> None:
    count = 0

    async def attempt() -> None:
        nonlocal count
        count += 1
        if count < 4:
            raise ConnectionRefusedError

    await repeat(attempt, Backoff(0.001, 0.001), asyncio.Event(), 0.0)
    assert count == 4


async def test_the_end_of_the_task_is_no_failed_attempt() -> None:
    async def attempt() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(repeat(attempt, Backoff(0.001, 0.001), asyncio.Event(), 0.0))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_wake_makes_the_next_attempt_early_and_the_pauses_short() -> None:
    wake = asyncio.Event()
    backoff = Backoff(600.0, 600.0, jitter=0.0)
    count = 0

    async def attempt() -> None:
        nonlocal count
        count += 1
        if count < 3:
            wake.set()
            raise ConnectionRefusedError

    await repeat(attempt, backoff, wake, 0.0)
    assert count == 3
    assert not wake.is_set()
    assert backoff.pause() == 600.0
