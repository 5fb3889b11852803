"""Work in the watcher's loop that leaves time for the rest."""

from __future__ import annotations

import asyncio

import pytest

from vmpin.host.turns import Rationed


class Clock:
    """Of a loop in which nothing takes time but what says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def test_answers_take_their_part_of_the_time_and_no_more() -> None:
    async def main() -> None:
        clock = Clock()

        async def answer(raw: bytes, uid: int) -> bytes:
            clock.now += 0.5
            return raw + b"%d" % uid

        rationed = Rationed(answer, part=0.2, now=lambda: clock.now, sleep=clock.sleep)
        assert [await rationed(b"a", number) for number in range(3)] == [b"a0", b"a1", b"a2"]
        assert clock.slept == pytest.approx(2 * 0.5 / 0.2)
        clock.now += 60
        before = clock.slept
        await rationed(b"a", 0)
        assert clock.slept == before
    asyncio.run(main())


def test_one_is_answered_at_a_time_and_few_wait() -> None:
    async def main() -> None:
        free = asyncio.Event()
        busy = most = 0

        async def answer(raw: bytes, uid: int) -> bytes:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            await free.wait()
            busy -= 1
            return raw

        rationed = Rationed(answer, part=1.0, waiting=3)
        asked = [asyncio.create_task(rationed(b"ok", 0)) for _ in range(5)]
        refused, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert all(b"too many requests" in bytes(each.result()) for each in refused)  # type: ignore[arg-type]
        free.set()
        answers = await asyncio.gather(*asked)
        assert answers.count(b"ok") == 3
        assert most == 1
        assert await rationed(b"ok", 0) == b"ok"
    asyncio.run(main())


def test_a_handler_that_fails_keeps_no_place() -> None:
    async def main() -> None:
        async def fail(raw: bytes, uid: int) -> bytes:
            raise ValueError(raw)

        rationed = Rationed(fail, part=1.0, waiting=1)
        for _ in range(3):
            with pytest.raises(ValueError, match="x"):
                await rationed(b"x", 0)
    asyncio.run(main())
