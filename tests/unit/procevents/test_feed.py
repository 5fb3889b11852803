"""The feed of births in an event loop, with the kernel's real events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import pytest
from need import lacking, need_root

from vmpin.config import loading as settings
from vmpin.domain.model import SandboxId
from vmpin.host.proc_connector import ProcConnector
from vmpin.host.procfs import Procfs
from vmpin.procevents import feed
from vmpin.procevents.feed import ProcEventsFeed
from vmpin.procevents.newborn_placer import FollowUp
from vmpin.reconcile.reconciler import Reconciler
from vmpin.wire.proc_events import Event, Exec

pytestmark = pytest.mark.root

PREFIX = f"f{secrets.token_hex(5)}-"


class Heard:
    """What the feed calls."""

    def __init__(self, path: Path) -> None:
        (path / "run").mkdir()
        paths = {f"paths.{key}": str(path / key) for key in ("run", "kata_go", "kata_rs", "kubelet", "nri")}
        self.reconciler = Reconciler(settings.load(None, {}, {**paths, "watch.only": f"{PREFIX}*"}))
        self.touched: list[FollowUp] = []
        self.since: list[float] = []
        self.lost = 0
        self.wrong = False
        #: Seconds that pass with each look at the clock.
        self.step = 0.0
        self._now = 0.0
        self.feed = ProcEventsFeed(self.reconciler, self._take, self._lose, self._clock)

    def _clock(self) -> float:
        self._now += self.step
        return self._now

    def _take(self, touched: FollowUp, since: float) -> None:
        assert 0 <= time.perf_counter() - since < 60
        self.since.append(since)
        if self.wrong:
            raise OSError(24, "Too many open files")
        self.touched.append(touched)

    def _lose(self) -> None:
        self.lost += 1


@pytest.fixture
def heard(tmp_path: Path) -> Heard:
    need_root()
    return Heard(tmp_path)


@contextlib.asynccontextmanager
async def running(heard: Heard) -> AsyncIterator[None]:
    task = asyncio.create_task(heard.feed.run())
    await until(lambda: heard.feed.source_health().up or "not told" in str(heard.feed.data()["state"]))
    if not heard.feed.source_health().up:
        lacking(f"needs the kernel's proc connector: {heard.feed.data()}")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def sh(script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sh", "-c", script])


def vmm(name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["qemu-system-x86_64", "-c", "read line", "-name", f"sandbox-{PREFIX}{name}"],
                            executable="/bin/sh", stdin=subprocess.PIPE)


def test_a_vmm_is_told_of_and_all_that_was_before_is_to_be_read(heard: Heard) -> None:
    async def scenario() -> None:
        async with running(heard):
            assert heard.lost == 1
            with vmm("a"):
                await until(lambda: heard.touched)
        (touched,) = heard.touched
        assert touched.begun == {f"{PREFIX}a"}

    asyncio.run(scenario())
    data = heard.feed.data()
    assert data["state"] == "no more told"
    assert heard.reconciler.tally.proc_events["exec"] >= 1
    assert not heard.feed.source_health().up


def test_in_a_storm_of_others_the_loop_wakes_seldom_and_misses_nothing(heard: Heard,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    calm = 0.05
    monkeypatch.setattr(feed, "CALM", calm)

    async def scenario() -> None:
        async with running(heard):
            reads = 0
            read = heard.feed._take

            def counted(since: float) -> tuple[int, bool]:
                nonlocal reads
                reads += 1
                return read(since)

            heard.feed._take = counted  # type: ignore[method-assign]
            storm = sh("while :; do /bin/true; done")
            try:
                before, begin = heard.reconciler.tally.proc_events["exec"], time.monotonic()
                await asyncio.sleep(1)
                # On a busy machine the storm itself is slow.
                await until(lambda: heard.reconciler.tally.proc_events["exec"] - before > 100)
                told, seconds = heard.reconciler.tally.proc_events["exec"] - before, time.monotonic() - begin
                assert told > 100
                assert reads <= 2 * seconds / calm + 10
                with vmm("a"):
                    await until(lambda: heard.touched)
            finally:
                storm.kill()
                storm.wait()

    asyncio.run(scenario())


def test_events_that_take_their_time_leave_turns_to_the_loops_other_work(heard: Heard,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two pieces of what was read at once everything else that is due has its turn."""
    happened: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with running(heard):
            took = heard.feed._placer.take

            def taking(events: Iterable[Event]) -> FollowUp:
                taken = list(events)
                happened.append(f"took {len(taken)}")
                return took(taken)

            monkeypatch.setattr(heard.feed._placer, "take", taking)
            heard.step = feed.BUDGET  # so long each of them takes
            heard.feed._waiting.extend(Exec(time.monotonic_ns(), os.getpid()) for _ in range(50))
            heard.feed._look_later(heard.feed._connector)  # type: ignore[arg-type]
            loop.remove_reader(heard.feed._connector.fd)  # type: ignore[union-attr]

            def other() -> None:
                happened.append("other")
                if heard.feed._waiting:
                    loop.call_soon(other)

            loop.call_soon(other)
            await until(lambda: not heard.feed._waiting)
            with vmm("a"):
                await until(lambda: heard.touched)

    asyncio.run(scenario())
    begun = happened[:happened.index("other") + 100]
    assert [one for one in happened if one != "other"][:50] == ["took 1"] * 50
    assert all("took 1" not in pair or "other" in pair for pair in itertools.pairwise(begun[:98]))


def test_what_goes_wrong_with_an_event_is_made_good_by_looking(heard: Heard,
                                                               caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(heard):
            heard.wrong = True
            with vmm("a"):
                await until(lambda: heard.lost >= 2)
            heard.wrong = False
            with vmm("b"):
                await until(lambda: heard.touched)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "Too many open files" in caplog.text


def test_kernel_threads_that_cannot_be_looked_at_are_looked_for(heard: Heard,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_descriptors(proc: Procfs, pid: int | str) -> None:
        raise OSError(24, "Too many open files")

    async def scenario() -> None:
        async with running(heard):
            monkeypatch.setattr(Procfs, "stat", out_of_descriptors)
            heard.feed._kernel_threads({os.getpid()}, 0.0)
            await until(lambda: heard.lost == 2)

    asyncio.run(scenario())


def test_what_was_done_ahead_is_looked_at_in_one_pass_a_moment_later(heard: Heard) -> None:
    one, two = SandboxId(f"{PREFIX}a"), SandboxId(f"{PREFIX}b")

    async def scenario() -> None:
        async with running(heard):
            since = time.perf_counter()
            heard.feed._pass_later({one}, since)
            heard.feed._pass_later({two, one}, since + 10)
            assert heard.touched == []
            await until(lambda: heard.touched)
            assert ([touched.reconcile for touched in heard.touched], heard.since) == ([{one, two}], [since])
            heard.feed._pass_later({two}, since)
            await until(lambda: len(heard.touched) == 2)
            heard.feed._pass_later({one}, since)
        await asyncio.sleep(0.05)  # it has stopped
        assert [touched.reconcile for touched in heard.touched] == [{one, two}, {two}]

    asyncio.run(scenario())


def test_it_says_once_why_nothing_is_told_and_asks_again(heard: Heard, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch,
                                                         caplog: pytest.LogCaptureFixture) -> None:
    async def possible() -> None:
        async with running(heard):
            pass

    asyncio.run(possible())
    asked = 0

    class Counted(ProcConnector):
        def __init__(self, proc: Procfs) -> None:
            nonlocal asked
            asked += 1
            super().__init__(proc)

    monkeypatch.setattr(feed, "ProcConnector", Counted)
    monkeypatch.setattr(feed, "_AGAIN", 0.01)
    (tmp_path / "proc" / "self" / "ns").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "ns" / "pid").symlink_to("pid:[4026539999]")
    real, heard.reconciler.proc = heard.reconciler.proc, Procfs(tmp_path / "proc")

    async def scenario() -> None:
        task = asyncio.create_task(heard.feed.run())
        await until(lambda: asked > 3)
        assert heard.feed.data()["state"] == "not told: it takes the machine's own pid namespace"
        assert (heard.feed.source_health().up, heard.lost) == (False, 1)
        (line,) = caplog.messages
        assert line.startswith("births are not told, and new threads found at a resync: ")
        heard.reconciler.proc = real
        await until(lambda: heard.feed.source_health().up)
        assert heard.lost == 2  # what was born meanwhile is looked for
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    caplog.clear()
    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


def test_nothing_is_left_open(heard: Heard) -> None:
    before = set(os.listdir("/proc/self/fd"))

    async def scenario() -> None:
        for _ in range(3):
            async with running(heard):
                pass

    asyncio.run(scenario())
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # the directory's own


def test_whoever_is_told_to_end_while_it_connects_leaves_no_listener_behind(heard: Heard,
                                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would make events for nobody until it boots again."""
    async def possible() -> None:
        async with running(heard):
            pass

    asyncio.run(possible())
    connecting, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow(ProcConnector):
        def __init__(self, proc: Procfs) -> None:
            connecting.set()
            assert go_on.wait(120)
            super().__init__(proc)

        def close(self) -> None:
            super().close()
            if not self._listening:
                closed.set()

    monkeypatch.setattr(feed, "ProcConnector", Slow)

    async def scenario() -> None:
        task = asyncio.create_task(heard.feed.run())
        await until(connecting.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert not closed.is_set()
    go_on.set()
    assert closed.wait(120)


def test_when_nothing_can_be_read_any_more_it_ends_to_be_started_again(heard: Heard,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ProcConnector, most: int = 0) -> tuple[list[Event], bool]:
        raise OSError(12, "Cannot allocate memory")

    async def scenario() -> None:
        async with running(heard):
            pass
        task = asyncio.create_task(heard.feed.run())
        await until(lambda: heard.feed.source_health().up)
        with monkeypatch.context() as patch:
            patch.setattr(ProcConnector, "read", broken)
            with vmm("a"), pytest.raises(OSError, match="allocate"):
                await asyncio.wait_for(task, 120)
        assert not heard.feed.source_health().up
        async with running(heard):
            assert heard.lost == 3

    asyncio.run(scenario())
