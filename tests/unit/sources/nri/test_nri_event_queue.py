"""The queue between the NRI plugin and the watcher: a busy reader, overflow, and order."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from nri_connected import Connected, begun
from nri_peer import PATIENCE, NriRuntimes, container, pod

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId
from vmpin.sources.nri import plugin as nri
from vmpin.sources.nri.event_queue import PATIENCE as PATIENCE_OF_EVENTS
from vmpin.sources.nri.event_queue import NriQueue, merged
from vmpin.sources.nri.nri_events import ContainerEvent, Disconnected, NriPod, PodEvent, Synced, UndecodedCall
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES

pytest_plugins = ["given_nri"]


def test_a_thousand_updates_at_once_are_all_reported(runtimes: NriRuntimes, connected: Connected) -> None:
    runtime = begun(runtimes, connected)
    streams = [runtime.send("StateChange", MESSAGES["StateChangeEvent"](
        event=Verb.POST_UPDATE, pod=pod(), container=container(cpus=str(number)))) for number in range(1000)]
    assert all(runtime.answer(stream).code == 0 for stream in streams)
    facts = [connected.fact() for _ in range(1000)]
    assert [item.container.cpus for item in facts if isinstance(item, ContainerEvent)] == [
        CpuSet([number]) for number in range(1000)]


@pytest.fixture
def waiting() -> NriQueue:
    return NriQueue()


@pytest.fixture
def unread(runtimes: NriRuntimes, waiting: NriQueue) -> Iterator[Connected]:
    """Nothing takes what waits."""
    made = Connected(runtimes, waiting)
    made.plugin.start()
    yield made
    made.plugin.stop(PATIENCE)


@pytest.mark.usefixtures("unread")
def test_what_an_answered_call_is_about_waits_in_the_queue(runtimes: NriRuntimes, waiting: NriQueue) -> None:
    """From the moment that the runtime has the answer, and may act on it."""
    runtime = runtimes.next()
    runtime.begin([pod("listed")])
    for name in ("listed", *(f"pod{number}" for number in range(200))):
        if name != "listed":
            runtime.call("CreateContainer", MESSAGES["EventRequest"](pod=pod(name), container=container("c", name)))
        assert waiting.sandboxes() == {name}
        waiting.take()


def test_a_busy_loop_delays_no_answer(runtimes: NriRuntimes, waiting: NriQueue, unread: Connected) -> None:
    runtime = runtimes.next()
    runtime.begin()
    for number in range(200):
        assert runtime.state_change(Verb.POST_UPDATE, pod(), container(cpus=str(number))).code == 0
    runtime.close()
    assert unread.state()[0]
    assert not unread.state()[0]  # reported after everything has been put
    assert [type(event) for event in waiting.take().events] == [Synced, *[ContainerEvent] * 200, Disconnected]
    assert waiting.take().events == []


_PEER = """\
import json, socket, sys, time
from nri_connected import Connected, begun
from nri_peer import delivering, NriRuntime, container, pod
runtime = NriRuntime(socket.socket(fileno=int(sys.argv[1])))
runtime.begin()
took = []
for number in range(100):
    time.sleep(0.003)
    began = time.perf_counter()
    runtime.state_change(9, pod(), container(cpus="2-3"))
    took.append(time.perf_counter() - began)
print(json.dumps(took))
"""


def answers_beside_a_busy_thread(interval: float) -> list[float]:
    """How long each took (seconds). The runtime is a process of its own, as always."""
    theirs, ours = socket.socketpair()
    made = nri.NriPlugin(lambda: theirs, NriQueue(), once=True)
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        with ours, subprocess.Popen(
                [sys.executable, "-c", _PEER, str(ours.fileno())], pass_fds=[ours.fileno()], stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as peer:
            ours.close()
            made.start()
            while peer.poll() is None:
                until = time.monotonic() + 0.1
                while time.monotonic() < until:
                    pass
            assert peer.stdout is not None
            return [float(each) for each in json.loads(peer.stdout.read())]
    finally:
        sys.setswitchinterval(before)
        made.stop(PATIENCE)


def test_a_busy_main_thread_delays_answers_by_little() -> None:
    """The watcher's loop computes while a container waits. With Python's own interval nearly every answer takes 5 ms
    or more. A busy machine adds slices of others' to either, so the quickest of each are compared."""
    def quickest(interval: float) -> float:
        return statistics.quantiles(answers_beside_a_busy_thread(interval), n=10)[0]

    assert any(quickest(nri.SWITCH_INTERVAL) < 0.8 * quickest(0.005) for _ in range(30))


def test_more_than_can_wait_is_dropped_and_listed_anew(runtimes: NriRuntimes) -> None:
    waiting = NriQueue(max_waiting=10)
    made = Connected(runtimes, waiting)
    made.plugin.start()
    runtime = runtimes.next()
    runtime.begin()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may hang up before the last of them
        for number in range(11):
            runtime.send("StateChange", MESSAGES["StateChangeEvent"](
                event=Verb.POST_UPDATE, pod=pod(), container=container(cpus=str(number))))
    assert runtime.closed()
    again = runtimes.next()
    again.begin([pod()], [container(cpus="10")])
    again.close()
    assert [made.state()[0] for _ in range(4)] == [True, False, True, False]
    assert [type(event) for event in waiting.take().events] == [Disconnected, Synced, Disconnected]
    made.plugin.stop(PATIENCE)
    assert made.plugin.counters.overflows == 1


def test_an_overflow_leaves_what_no_list_repeats() -> None:
    waiting = NriQueue(max_waiting=2)
    event = PodEvent(Verb.RUN_POD, NriPod(SandboxId("p"), "", "", "", "", 0, {}, ""), 0)
    assert waiting.put(Disconnected())
    assert waiting.put(event)
    assert not waiting.put(event)
    assert waiting.put(event)
    assert waiting.take().events == [Disconnected(), event]


def test_a_burst_of_events_is_announced_once_and_after_their_answers() -> None:
    woken: list[int] = []
    waiting = NriQueue(lambda: woken.append(1))
    event = PodEvent(Verb.STOP_POD, NriPod(SandboxId("p"), "", "", "", "", 0, {}, ""), 0)
    assert waiting.announce() is None
    for _ in range(3):
        waiting.put(event, waits=True)
        pause = waiting.announce()
        assert pause is None or 0 < pause <= PATIENCE_OF_EVENTS  # None: the machine stood still for so long
    woken.clear()
    waiting.put(event, waits=True)
    waiting.put(Disconnected())  # cannot wait, nor those before it
    assert (waiting.announce(), woken) == (None, [1])
    assert (waiting.announce(), woken) == (None, [1])
    batch = waiting.take()
    assert ([type(each) for each in batch.events], batch.waited) == ([*[PodEvent] * 4, Disconnected], False)
    waiting.put(event, waits=True)
    assert waiting.take().waited
    assert (waiting.announce(), woken) == (None, [1])  # nothing waits any more


def test_a_call_is_decoded_when_it_is_taken() -> None:
    waiting, event = NriQueue(), PodEvent(Verb.STOP_POD, NriPod(SandboxId("p"), "", "", "", "", 0, {}, ""), 0)
    decoded: list[int] = []

    def decode() -> PodEvent:
        decoded.append(1)
        return event

    waiting.put(UndecodedCall(SandboxId("p"), decode), waits=True)
    waiting.put(UndecodedCall(SandboxId("q"), lambda: None))  # has no usable id
    assert (waiting.sandboxes(), decoded) == ({"q"}, [])  # what can wait moves no CPUs
    batch = waiting.take()
    assert (batch.events, len(batch.times), batch.waited, decoded) == ([event], 1, True, [1])


def test_long_calls_count_by_their_size() -> None:
    woken: list[int] = []
    waiting = NriQueue(lambda: woken.append(1), max_bytes=50_000)
    fact = PodEvent(Verb.RUN_POD, NriPod(SandboxId("p"), "", "", "", "", 0, {}, ""), 0)
    began = time.perf_counter()
    for event, fits in ((fact, True), (Disconnected(), True), (fact, True), (fact, False), (fact, True)):
        assert waiting.put(event, 20_000 if event is fact else 0) is fits
        assert waiting.announce() is None
    events, times, *_ = waiting.take()
    assert events == [Disconnected(), fact]
    assert began <= times[0] <= times[1] <= time.perf_counter()
    assert len(woken) == 5
    waiting.put(fact)
    waiting.close()
    assert waiting.put(fact)
    assert waiting.take().events == []


def test_two_plugins_events_are_taken_in_the_order_they_came() -> None:
    """A list that one plugin received must not overtake a container's start that the other received after it."""
    started_by_runtime, connected = NriQueue(), NriQueue()
    events = [PodEvent(Verb.RUN_POD, NriPod(SandboxId(f"p{number}"), "", "", "", "", 0, {}, ""), 0)
              for number in range(6)]
    for number, event in enumerate(events):
        (connected if number % 3 else started_by_runtime).put(event)
    batch = merged([connected, started_by_runtime])
    assert batch.events == events
    assert batch.times == sorted(batch.times)
    assert merged([connected, started_by_runtime]).events == []


def test_a_call_that_cannot_be_decoded_loses_itself_alone() -> None:
    def failing() -> PodEvent:
        raise ZeroDivisionError("a bug")

    queue = NriQueue()
    queue.put(UndecodedCall(SandboxId("a"), failing))
    queue.put(Disconnected())
    assert (batch := merged([queue])).events == [Disconnected()]
    assert batch.lost


def test_large_events_that_could_wait_do_not() -> None:
    queue = NriQueue(max_bytes=800)
    queue.put(Disconnected(), 90, waits=True)
    assert queue.announce() is not None, "it waits"
    queue.put(Disconnected(), 20, waits=True)
    assert queue.announce() is None
