"""The proc-events feed and its connector: from the connection to its end, whatever fails."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import select
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from events_feed import Received, Scripter, running, until, vmm

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.host.proc_connector import ProcConnector
from vmpin.host.procfs import Procfs, Stat
from vmpin.procevents.feed import ProcEventsFeed
from vmpin.procevents.newborn_placer import FollowUp, NewbornPlacer
from vmpin.wire.proc_events import KTHREADD, Event, Exec, Fork

pytestmark = pytest.mark.root
pytest_plugins = ["given_feed"]


class Short(Procfs):
    """No process can be read while it is `short` of descriptors."""

    short = False

    def stat(self, pid: int | str) -> Stat | None:
        if self.short:
            raise OSError(24, "Too many open files")
        return super().stat(pid)


async def test_kernel_threads_that_cannot_be_read_cause_a_full_pass(received: Received) -> None:
    vars(received.reconciler.view)["proc"] = proc = Short()
    received.make(connect=Scripter(Fork(time.monotonic_ns(), KTHREADD, KTHREADD, os.getpid(), os.getpid())))
    async with running(received):
        proc.short = True
        with vmm("a"):
            await until(lambda: received.lost >= 2)


async def test_it_logs_once_why_the_connector_is_unavailable_and_tries_again(
        received: Received, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(received):
        pass  # it is skipped where there is no connector
    asked = 0

    def connect(proc: Procfs) -> ProcConnector:
        nonlocal asked
        asked += 1
        return ProcConnector(proc)

    lost = received.lost
    received.make(Timeouts(connector_retry=0.01), connect=connect)
    (tmp_path / "proc" / "self" / "ns").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "ns" / "pid").symlink_to("pid:[4026539999]")
    shown = vars(received.reconciler.view)
    real, shown["proc"] = shown["proc"], Procfs(tmp_path / "proc")
    caplog.clear()
    caplog.set_level(logging.WARNING)
    task = asyncio.create_task(received.feed.run())
    await until(lambda: asked > 3)
    assert received.feed.data()["state"] == "not reported: it needs the machine's own pid namespace"
    assert (received.feed.source_health().up, received.lost) == (False, lost)
    (line,) = caplog.messages
    assert line == ("proc connector unavailable (it needs the machine's own pid namespace): new threads are placed"
                    " at the next resync")
    shown["proc"] = real
    await until(lambda: received.feed.source_health().up)
    assert received.lost >= lost + 1  # what was born meanwhile is looked for
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_no_descriptor_is_left_open(received: Received) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        async with running(received):
            pass
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # the directory's own


async def test_a_failure_at_its_start_leaves_no_descriptor_open(received: Received) -> None:
    async with running(received):
        pass  # it is skipped where there is no connector
    before = set(os.listdir("/proc/self/fd"))

    def full() -> None:
        raise OSError(28, "No space left on device")
    failing = ProcEventsFeed(received.reconciler, received.follow_ups.append, full)  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            await failing.run()
    assert not failing.source_health().up
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # the directory's own


async def test_cancelled_while_it_connects_it_leaves_no_listener_behind(received: Received) -> None:
    """The kernel would make events for no listener until it boots again."""
    async with running(received):
        pass  # it is skipped where there is no connector
    connecting, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow(ProcConnector):
        def __init__(self, proc: Procfs) -> None:
            connecting.set()
            assert go_on.wait(120)
            super().__init__(proc)

        def close(self) -> None:
            super().close()
            if not self._listening:  # nothing public shows that the kernel counts it no more
                closed.set()

    received.make(connect=Slow)
    task = asyncio.create_task(received.feed.run())
    await until(connecting.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not closed.is_set()
    go_on.set()
    assert closed.wait(120)


async def test_it_ends_with_an_error_when_the_connector_cannot_be_read(received: Received,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ProcConnector, most: int = 0) -> tuple[list[Event], bool]:
        raise OSError(12, "Cannot allocate memory")

    async with running(received):
        pass
    task = asyncio.create_task(received.feed.run())
    await until(lambda: received.feed.source_health().up)
    with monkeypatch.context() as patch:
        patch.setattr(ProcConnector, "read", broken)
        with vmm("a"), pytest.raises(OSError, match="allocate"):
            await asyncio.wait_for(task, 120)
    assert not received.feed.source_health().up
    async with running(received):
        assert received.lost >= 3


async def test_it_ends_with_an_error_when_the_loop_cannot_wait_for_the_connector_again(received: Received) -> None:
    """After a storm, in which it was polled. A kernel without epoll watches for this user refuses it, as it refuses
    a descriptor that is there already. No new thread would be reported any more."""
    loop: Any = asyncio.get_running_loop()
    scripter = Scripter(*(Exec(time.monotonic_ns(), os.getpid()) for _ in range(3)))
    taken = itertools.count()

    class Storm(NewbornPlacer):
        def handle(self, events: Iterable[Event]) -> FollowUp:
            if next(taken) == 1:  # the first was read by the loop's reader, the others are polled
                assert scripter.made is not None
                select.epoll.fromfd(os.dup(loop._selector.fileno())).register(scripter.made.fd, 0)
            return super().handle(events)

    async with running(received):
        pass  # it is skipped where there is no connector
    received.make(TIMEOUTS, Storm(received.reconciler), scripter)
    received.step = TIMEOUTS.events_turn
    task = asyncio.create_task(received.feed.run())
    with vmm("a"), pytest.raises(FileExistsError):
        await asyncio.wait_for(task, 120)
    assert not received.feed.source_health().up
