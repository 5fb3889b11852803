"""The NRI feed with a runtime at the other end of a real socket: when it connects, what reaches the loop, and in how
many calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from guest_peer import until
from nri_peer import PATIENCE, NriRuntime, container, pod

from vmpin.config import loading
from vmpin.config.timeouts import Timeouts
from vmpin.daemon.feeds import NriFeed
from vmpin.sources.nri import event_queue
from vmpin.sources.nri.nri_events import CanWait, ContainerEvent, Disconnected, NriEvent, Synced, never_waits
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES


class Fed:
    """A feed whose runtime listens at `path`, and the batches that reached the loop."""

    def __init__(self, path: Path, mode: str = "auto", timeouts: Timeouts | None = None,
                 can_wait: CanWait = never_waits) -> None:
        self.path = path
        self.batches: list[list[NriEvent]] = []
        self.times: list[float] = []
        self.ends = 0
        config = loading.load(None, {}, {"paths.nri": str(path), "watch.nri": mode, "watch.resync_seconds": "0.1"})
        self.feed = NriFeed(config, self._take, self._ended, timeouts or Timeouts(), can_wait=can_wait)
        #: Called once, in the next call that takes events.
        self.during: Callable[[], object] = bool
        self._listener: socket.socket | None = None
        self._runtimes: list[NriRuntime] = []

    def _take(self, events: list[NriEvent], since: float, waited: bool) -> None:
        asyncio.get_running_loop()  # not in the plugin's thread, which has none
        during, self.during = self.during, bool
        during()
        self.batches.append(events)
        self.times.append(since)

    def _ended(self) -> None:
        asyncio.get_running_loop()
        self.ends += 1

    @property
    def events(self) -> list[NriEvent]:
        return [event for batch in self.batches for event in batch]

    def has_lists(self, count: int) -> bool:
        return sum(isinstance(event, Synced) for event in self.events) == count

    def listen(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._listener.settimeout(PATIENCE)

    def accept(self) -> NriRuntime:
        """The next connection of a plugin's."""
        assert self._listener is not None
        self._runtimes.append(NriRuntime(self._listener.accept()[0]))
        return self._runtimes[-1]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.feed.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for runtime in self._runtimes:
                runtime.close()
            if self._listener is not None:
                self._listener.close()


@pytest.fixture(autouse=True)
def _switch_interval() -> Iterator[None]:
    """The feed sets it for its process."""
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_the_plugin_connects_when_the_runtimes_socket_appears(tmp_path: Path) -> None:
    fed = Fed(tmp_path / "nri.sock")

    async def main() -> None:
        async with fed.running():
            await asyncio.sleep(0)
            assert fed.feed.plugin is None
            assert fed.feed.state == "waits for the runtime's socket"
            fed.listen()
            await until(lambda: fed.feed.plugin is not None)
            began = time.perf_counter()
            runtime = fed.accept()
            runtime.begin([pod()], [container(cpus="2-3")])
            await until(lambda: fed.batches)
            assert [type(event) for event in fed.events] == [Synced]
            assert began <= fed.times[0] <= time.perf_counter()
            await until(lambda: fed.feed.state.startswith("connected to containerd"))
            assert fed.feed.data()["syncs"] == 1
        assert fed.feed.plugin is None
        assert fed.feed.data()["syncs"] == 0

    asyncio.run(main())


def test_a_plugin_that_is_configured_tries_without_a_socket(tmp_path: Path) -> None:
    fed = Fed(tmp_path / "nri.sock", "on")

    async def main() -> None:
        async with fed.running():
            await until(lambda: fed.feed.state.startswith("not connected: "))
            assert str(fed.path) in fed.feed.state
        assert fed.batches == []

    asyncio.run(main())


def test_events_that_wait_for_the_loop_are_taken_in_one_call(tmp_path: Path) -> None:
    fed = Fed(tmp_path / "nri.sock")
    fed.listen()

    async def main() -> None:
        async with fed.running():
            await until(lambda: fed.feed.plugin is not None)
            runtime = fed.accept()
            runtime.begin([pod()])
            await until(lambda: fed.batches)
            # The plugin's thread answers a call, then puts its event; the loop runs no callback meanwhile.
            for number in range(6):
                runtime.state_change(Verb.POST_START, pod(), container(f"c{number}"))
            assert len(fed.batches) == 1
            await until(lambda: len(fed.events) == 7)
            assert len(fed.batches[1]) >= 5
            assert [event.container.id for event in fed.events[1:] if isinstance(event, ContainerEvent)] == [
                f"c{number}" for number in range(6)]

    asyncio.run(main())


def test_a_start_during_the_pass_of_its_containers_creation_does_not_wait(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be judged by what was before that pass. One of another pod waits, as does one that comes later."""
    monkeypatch.setattr(event_queue, "PATIENCE", 1e6)
    fed = Fed(tmp_path / "nri.sock", can_wait=lambda call: call.verb is Verb.START)
    fed.listen()

    def ids() -> list[str]:
        return [event.container.id for event in fed.events if isinstance(event, ContainerEvent)]

    async def main() -> None:
        async with fed.running():
            await until(lambda: fed.feed.plugin is not None)
            runtime = fed.accept()
            runtime.begin([pod(), pod("other")])
            await until(lambda: fed.batches)

            def start(name: str, of: str = "pod1") -> None:
                runtime.state_change(Verb.START, pod(of), container(name, of))

            fed.during = lambda: start("c1")
            runtime.state_change(Verb.POST_UPDATE, pod(), container("c1"))
            await until(lambda: len(ids()) == 2)
            fed.during = lambda: start("c2", "other")
            runtime.state_change(Verb.POST_UPDATE, pod(), container("c1"))
            await until(lambda: len(ids()) == 3)
            start("c3")
            runtime.state_change(Verb.POST_START, pod(), container("c4"))
            await until(lambda: len(ids()) == 6)
            assert ids() == ["c1", "c1", "c1", "c2", "c3", "c4"]
            assert len(fed.batches[-1]) == 3

    asyncio.run(main())


def test_a_lost_connection_is_reported_and_made_again(tmp_path: Path) -> None:
    fed = Fed(tmp_path / "nri.sock")
    fed.listen()

    async def main() -> None:
        async with fed.running():
            await until(lambda: fed.feed.plugin is not None)
            runtime = fed.accept()
            runtime.begin()
            await until(lambda: fed.feed.state.startswith("connected"))
            runtime.close()
            await until(lambda: Disconnected() in fed.events and fed.feed.state.startswith("not connected: "))
            again = fed.accept()
            again.begin([pod()])
            await until(lambda: len(fed.events) == 3)
            assert [type(event) for event in fed.events] == [Synced, Disconnected, Synced]
            assert fed.ends == 0

    asyncio.run(main())


def test_events_that_cannot_be_applied_are_listed_again(tmp_path: Path) -> None:
    """No other report has what was in them."""
    fed = Fed(tmp_path / "nri.sock")
    fed.listen()

    def mistaken() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        async with fed.running():
            await until(lambda: fed.feed.plugin is not None)
            runtime = fed.accept()
            runtime.begin([pod()])
            await until(lambda: fed.batches)
            fed.during = mistaken
            runtime.state_change(Verb.POST_START, pod(), container("c1"))
            again = await asyncio.to_thread(fed.accept)
            again.begin([pod()], [container("c1")])
            await until(lambda: Synced in map(type, fed.events[1:]))
            assert [type(event) for event in fed.events] == [Synced, Disconnected, Synced]

    asyncio.run(main())


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose time a test can put forward, by `skipped` seconds in all."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


def test_events_that_fail_soon_after_others_are_listed_again_later(tmp_path: Path) -> None:
    """Once for all of them: a container whose events always fail costs one list in that time."""
    fed = Fed(tmp_path / "nri.sock", timeouts=Timeouts(nri_lost=1e6))
    fed.listen()
    failed: list[None] = []

    def mistaken() -> None:
        failed.append(None)
        fed.during = mistaken
        raise ZeroDivisionError

    async def main(loop: SkippingLoop) -> None:
        async with fed.running():
            await until(lambda: fed.feed.plugin is not None)
            runtime, plugin = fed.accept(), fed.feed.plugin
            assert plugin is not None
            runtime.begin([pod()])
            await until(lambda: fed.batches)
            fed.during = mistaken
            runtime.state_change(Verb.POST_START, pod(), container("c1"))
            for connects in (2, 3):
                runtime = await asyncio.to_thread(fed.accept)
                runtime.begin([pod()], [container("c1")])
                for _ in range(3):
                    failed.clear()
                    runtime.state_change(Verb.POST_START, pod(), container("c1"))
                    await until(lambda: failed)
                assert plugin.counters.connects == connects
                loop.skipped += 1e6
            fed.during = bool
            runtime = await asyncio.to_thread(fed.accept)
            runtime.begin([pod()], [container("c1")])
            await until(lambda: fed.events[-1:] and isinstance(fed.events[-1], Synced))
            loop.skipped += 1e6
            await asyncio.sleep(0.01)  # what is due comes
            runtime.state_change(Verb.POST_START, pod(), container("c1"))
            assert plugin.counters.connects == 4

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SkippingLoop)
        runner.run(main(loop))


@contextlib.contextmanager
def started_by_the_runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[NriRuntime]:
    """This process has the environment of a plugin that the runtime has started; its end of the connection."""
    theirs, ours = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    for name, value in (("SOCKET", str(theirs.detach())), ("NAME", "pinner"), ("IDX", "07")):
        monkeypatch.setenv(f"NRI_PLUGIN_{name}", value)
    with ours:
        yield NriRuntime(ours)


def test_a_plugin_that_the_runtime_started_ends_with_its_connection(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Fed(tmp_path / "nri.sock", timeouts=Timeouts(nri_sync=PATIENCE))

    async def main() -> None:
        with started_by_the_runtime(monkeypatch) as runtime:
            async with fed.running():
                await until(lambda: fed.feed.plugin is not None)
                runtime.begin([pod()])
                await until(lambda: fed.batches)
                assert fed.ends == 0
                runtime.close()
                await until(lambda: fed.ends)
                assert fed.ends == 1
                assert fed.events[-1] == Disconnected()

    asyncio.run(main())


def test_a_plugin_that_the_runtime_started_has_another_one_connect_for_lost_events(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Fed(tmp_path / "nri.sock", timeouts=Timeouts(nri_sync=PATIENCE, nri_lost=0.0))
    fed.listen()

    def mistaken() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        with started_by_the_runtime(monkeypatch) as first:
            async with fed.running():
                await until(lambda: fed.feed.plugin is not None)
                first.begin([pod()])
                await until(lambda: fed.batches)
                for lists in 2, 3:  # the second time by a new connection
                    fed.during = mistaken
                    first.state_change(Verb.POST_START, pod(), container("c1"))
                    second = await asyncio.to_thread(fed.accept)
                    second.begin([pod()], [container("c1")])
                    await until(partial(fed.has_lists, lists))
                assert fed.ends == 0

    asyncio.run(main())


def test_a_plugin_that_gets_no_list_from_the_runtime_that_started_it_connects_for_one(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = Fed(tmp_path / "nri.sock", timeouts=Timeouts(nri_sync=0.05))
    fed.listen()

    async def main() -> None:
        with started_by_the_runtime(monkeypatch) as first:
            async with fed.running():
                await until(lambda: fed.feed.plugin is not None)
                begun = fed.feed.plugin
                first.grant(first.request("RegisterPlugin"))
                first.configure()
                await until(lambda: fed.feed.plugin is not begun)
                second = fed.accept()
                registration = second.request("RegisterPlugin")
                assert MESSAGES.decode("RegisterPluginRequest", registration.payload).plugin_name == "vmpin-sync"
                second.grant(registration)
                second.configure()
                second.synchronize([pod()], [container()])
                await until(lambda: fed.batches)
                # Events of either connection are taken.
                first.state_change(Verb.POST_START, pod(), container("c2"))
                await until(lambda: len(fed.events) == 2)
                assert isinstance(fed.events[0], Synced)

    asyncio.run(main())
