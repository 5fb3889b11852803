"""The proc-events feed in an event loop, with the kernel's real events."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterable

import pytest
from events_feed import PREFIX, Received, Scripter, running, until, vmm
from system_calls import system_calls

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.domain.model import SandboxId
from vmpin.procevents import feed
from vmpin.procevents.newborn_placer import FollowUp, NewbornPlacer
from vmpin.wire.proc_events import Event, Exec

pytestmark = pytest.mark.root
pytest_plugins = ["given_feed"]

#: A thousand names in one process.
RENAMES = "i=0; while [ $i -lt 1000 ]; do echo n$i >/proc/$$/comm; i=$((i + 1)); done"
#: A thousand threads in another.
THREADS = f"{sys.executable} -S -c 'import threading\nfor _ in range(1000): threading.Thread(target=int).start()'"

def sh(script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sh", "-c", script])


async def test_a_new_vmm_is_reported_and_older_processes_are_read_by_a_full_pass(received: Received) -> None:
    async with running(received):
        assert 1 <= received.lost <= 1 + received.overruns
        with vmm("a"):
            await until(lambda: received.follow_ups)
    (touched,) = received.follow_ups
    assert touched.started == {f"{PREFIX}a"}
    data = received.feed.data()
    assert data["state"] == "no longer reported"
    assert received.reconciler.node_state.counters.proc_events["exec"] >= 1
    assert not received.feed.source_health().up


async def test_a_storm_beside_a_followed_process_is_read_more_often(received: Received) -> None:
    async with running(received):
        pauses = []
        for followed in (None, frozenset((os.getpid(),)), frozenset[int]()):
            received.feed._followed = followed
            pauses.append(received.feed._calm())
    assert pauses == [TIMEOUTS.events_calm, TIMEOUTS.events_calm, TIMEOUTS.events_lull]


async def test_in_a_storm_of_other_processes_the_loop_wakes_rarely_and_no_event_is_lost(received: Received) -> None:
    calm, connect = 0.05, Scripter()
    # Other VMs and shims of this machine may come and go meanwhile.
    received.make(Timeouts(events_calm=calm, events_lull=calm), connect=connect)
    async with running(received):
        assert connect.made is not None
        storm = sh("while :; do /bin/true; done")
        try:
            events = received.reconciler.node_state.counters.proc_events
            before, reads, begin = events["exec"], connect.made.reads, time.monotonic()
            await asyncio.sleep(1)
            # On a busy machine the storm itself is slow.
            await until(lambda: events["exec"] - before > 100)
            # In a storm of others, too, a batch may be full: what is left is read at once.
            seldom = 2 * (time.monotonic() - begin) / calm + 10 + events.total() / 512
            assert connect.made.reads - reads <= seldom
            with vmm("a"):
                await until(lambda: received.follow_ups)
        finally:
            storm.kill()
            storm.wait()


async def test_slow_events_leave_turns_to_the_loops_other_work(received: Received) -> None:
    """Between two parts of a batch all other callbacks that are due run."""
    happened: list[str] = []

    class Slow(NewbornPlacer):
        def handle(self, events: Iterable[Event]) -> FollowUp:
            taken = list(events)
            happened.append(f"took {len(taken)}")
            if len(happened) == 1:
                asyncio.get_running_loop().call_soon(other)
            return super().handle(taken)

    def other() -> None:
        happened.append("other")
        if happened.count("took 1") < 50:
            asyncio.get_running_loop().call_soon(other)

    received.make(TIMEOUTS, Slow(received.reconciler),
                  Scripter(*(Exec(time.monotonic_ns(), os.getpid()) for _ in range(50))))
    received.step = TIMEOUTS.events_turn  # so long each of them takes
    async with running(received):
        with vmm("a"):  # the kernel's event of it wakes the feed
            await until(lambda: received.follow_ups)
    turns = [one for one in happened if one != "took 0"]
    turns = turns[: len(turns) - turns[::-1].index("other")]
    assert turns.count("took 1") >= 49
    assert not any(one == other == "took 1" for one, other in itertools.pairwise(turns))


async def test_a_storm_of_names_in_a_process_that_is_not_followed_is_never_received(received: Received) -> None:
    async with running(received):
        with vmm("a"):
            await until(lambda: received.follow_ups)
            comms = received.reconciler.node_state.counters.proc_events["comm"]
            storm = await asyncio.create_subprocess_exec("/bin/sh", "-c", RENAMES)
            assert await storm.wait() == 0
            with vmm("b"):
                await until(lambda: any(f"{PREFIX}b" in follow_up.started for follow_up in received.follow_ups))
            # What others of the machine name meanwhile may come until the first process is followed.
            assert received.reconciler.node_state.counters.proc_events["comm"] - comms < 1000


async def test_on_a_node_without_vms_no_thread_and_no_name_wakes_the_loop(received: Received) -> None:
    async with running(received):
        received.feed.after_pass(received.reconciler.resync(full=True), True)
        events = received.reconciler.node_state.counters.proc_events
        before = events["fork"] + events["comm"]
        for code in THREADS, RENAMES:
            storm = await asyncio.create_subprocess_exec("/bin/sh", "-c", code)
            assert await storm.wait() == 0
        with vmm("a"):  # its event comes after all others
            await until(lambda: received.follow_ups)
        # The shims of other tests may create some, and what was queued before the filter still comes.
        assert events["fork"] + events["comm"] - before < 1000


async def test_names_of_a_process_that_is_followed_are_received(received: Received) -> None:
    async with running(received):
        with vmm("a") as process:
            await until(lambda: received.follow_ups)
            asked = len(received.follow_ups)
            rename(process)
            await until(lambda: len(received.follow_ups) > asked)


async def test_a_newly_followed_vm_is_read_again_once_its_names_are_received(received: Received) -> None:
    """Its VMM may have created and named threads after the pass read them and before the kernel reports those."""
    with vmm("a") as process:
        async with running(received):
            received.reconciler.node_state.forks_reported(True)
            for _ in range(3):  # until its threads are not new any more
                report = received.reconciler.resync(full=True)
            received.reconciler.node_state.inventory.process_table.round = process.pid + 1  # not its turn to be read
            look = functools.partial(received.reconciler.reconcile, [SandboxId(f"{PREFIX}a")], scan=False)
            look()
            unlisted = system_calls(look)["listdir"]
            received.feed.after_pass(report, True)
            assert [follow_up.now for follow_up in received.follow_ups] == [{f"{PREFIX}a"}]
            assert system_calls(look)["listdir"] == unlisted + 1
            received.feed.after_pass(report, True)
            assert len(received.follow_ups) == 1
            rename(process)
            await until(lambda: len(received.follow_ups) > 1)


def rename(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


async def test_after_events_of_other_processes_the_feed_rests_in_proportion(received: Received) -> None:
    """A storm of others has a part of the loop's time, and hooks have the rest: no turn follows another at once."""
    handled: list[float] = []

    class Noting(NewbornPlacer):
        def handle(self, events: Iterable[Event]) -> FollowUp:
            if taken := list(events):
                handled.append(asyncio.get_running_loop().time())
            return super().handle(taken)

    rest = 5.0
    received.make(Timeouts(events_rest=rest), Noting(received.reconciler),
                  Scripter(*(Exec(time.monotonic_ns(), os.getpid()) for _ in range(8))))
    received.step = TIMEOUTS.events_turn  # so long each of them takes by its clock
    async with running(received):
        with vmm("a"):
            await until(lambda: len(handled) > 8 and received.follow_ups)
    # By the loop's own clock, which never fires a timer early by more than its resolution.
    assert all(other - one >= rest * received.step for one, other in itertools.pairwise(handled[:8]))


async def test_an_event_that_cannot_be_handled_causes_a_full_pass(received: Received,
                                                               caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with running(received):
        received.fails = True
        with vmm("a"):
            await until(lambda: received.lost >= 2)
        received.fails = False
        with vmm("b"):
            await until(lambda: received.follow_ups)
    assert "Too many open files" in caplog.text


async def test_losses_again_and_again_are_one_warning(received: Received, caplog: pytest.LogCaptureFixture,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user can execute programs faster than their events are read."""
    monkeypatch.setattr(feed, "_WARN_EVERY", float("inf"))  # however long the losses take on a busy machine
    caplog.set_level(logging.WARNING)
    received.make(Timeouts(events_lost=0.0))

    async def lose(name: str) -> None:
        before = received.lost
        with vmm(name):
            await until(lambda: received.lost > before)

    async with running(received):
        received.fails = True
        for name in "abc":
            await lose(name)
    assert caplog.text.count("a full pass follows") == 1


async def test_threads_placed_ahead_are_confirmed_by_one_pass_a_moment_later(received: Received) -> None:
    one, two = SandboxId(f"{PREFIX}a"), SandboxId(f"{PREFIX}b")
    soon = [{one}, {two, one}]

    class Ahead(NewbornPlacer):
        def handle(self, events: Iterable[Event]) -> FollowUp:
            super().handle(events)
            return FollowUp(soon=soon.pop(0) if soon else set())

    received.make(Timeouts(confirm_placed=1.0, events_turn=0.0), Ahead(received.reconciler),
                  Scripter(*(Exec(time.monotonic_ns(), os.getpid()) for _ in range(2))))
    async with running(received):
        with vmm("c"):
            await until(lambda: not soon)
        await until(lambda: received.follow_ups)
        assert [follow_up.now for follow_up in received.follow_ups] == [{one, two}]
        soon.append({one})
        with vmm("d"):
            await until(lambda: not soon)
    asked = len(received.follow_ups)
    await asyncio.sleep(1.1)  # it has stopped
    assert len(received.follow_ups) == asked
