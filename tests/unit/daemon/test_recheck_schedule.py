"""When sandboxes are looked at again."""

from __future__ import annotations

import asyncio
import time

import pytest

from vmpin.config.timeouts import TIMEOUTS
from vmpin.daemon.recheck_schedule import UNNAMED, RecheckSchedule
from vmpin.domain.model import SandboxId

A, B = SandboxId("a"), SandboxId("b")


async def soon(made: RecheckSchedule, wanted: list[SandboxId]) -> None:
    async with asyncio.timeout(120):
        assert await made.due() == wanted


def test_it_is_looked_at_ever_more_seldom_and_then_no_more() -> None:
    steps = (0.02, 0.05, 0.1)

    async def scenario() -> None:
        made = RecheckSchedule(steps)
        before = time.monotonic()  # of the step's begin
        made.restart([A])
        for step in steps:
            await soon(made, [A])
            assert time.monotonic() >= before + step
            before = time.monotonic()
            assert made.checked([A]) == ([A] if step == steps[-1] else [])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(made.due(), 0.3)

    asyncio.run(scenario())


def test_what_was_not_looked_at_stays_due() -> None:
    """As when the look failed."""

    async def scenario() -> None:
        made = RecheckSchedule((0.001, 60.0))
        made.restart([A])
        await soon(made, [A])
        await soon(made, [A])
        made.checked([A])
        made.restart([B])
        await soon(made, [B])

    asyncio.run(scenario())


def test_a_waiter_is_woken_by_one_that_is_due_sooner() -> None:
    async def scenario() -> None:
        made = RecheckSchedule((0.02, 60.0))
        made.restart([A])
        await soon(made, [A])
        made.checked([A])
        waiting = asyncio.create_task(made.due())
        await asyncio.sleep(0.01)
        made.restart([A])  # something is settled of it again
        async with asyncio.timeout(120):
            assert await waiting == [A]

    asyncio.run(scenario())


def test_threads_without_names_that_come_all_the_time_do_not_begin_it_anew() -> None:
    async def scenario() -> None:
        made = RecheckSchedule()
        made.unnamed_thread([A])
        assert made.pending[A].step == 0
        for step in range(1, len(TIMEOUTS.rechecks)):
            assert made.checked([A]) == []
            before = made.pending[A]
            assert before.step == step
            if step > UNNAMED:
                made.unnamed_thread([A])
                assert made.pending[A].step == UNNAMED
                assert made.pending[A].due <= before.due
                while made.pending[A].step < step:
                    assert made.checked([A]) == []
        assert made.checked([A]) == [A]
        assert not made.pending

    asyncio.run(scenario())


def test_a_settled_vm_is_rechecked_twice(
        monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    settled = {A}
    made = RecheckSchedule(settled=settled.__contains__)
    steps = []
    made.restart([A])
    while A in made.pending:
        steps.append(made.pending[A].step)
        now = made.pending[A].due
        made.checked([A])
    assert steps == [3, 6]
    assert now == pytest.approx(1000.0 + sum(TIMEOUTS.rechecks[:7]))
    made.restart([A])
    settled.clear()  # a thread without a name is searched for as often as before
    made.checked([A])
    assert made.pending[A].step == 4


def test_a_pass_that_comes_shortly_before_a_recheck_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    made = RecheckSchedule(settled={A}.__contains__)
    made.restart([A, B])
    made.passed([A, B])
    assert (made.pending[A].step, made.pending[B].step) == (3, 0)
    now = made.pending[A].early
    made.passed([A, B])
    assert (made.pending[A].step, made.pending[B].step) == (6, 0)  # B may have threads that no event reports
    now = made.pending[A].early
    assert asyncio.run(made.due()) == [A, B]  # in one turn of the loop


def test_a_recheck_whose_place_a_pass_took_since_it_was_due_is_no_error() -> None:
    """As when the recheck finds a new process of the VM, and a pass follows at once."""

    async def scenario() -> None:
        made = RecheckSchedule((0.001,), lambda sandbox: True)
        made.restart([A])
        await soon(made, [A])
        made.passed([A])
        assert made.checked([A]) == []
        assert made.pending == {}

    asyncio.run(scenario())
