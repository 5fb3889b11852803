"""The NRI plugin against a runtime of the test's own: what it answers, hands on, and survives."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nri_peer import PATIENCE, NriRuntime, NriRuntimes, container, delivering, pod

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.errors import ConfigError
from vmpin.host import boottime
from vmpin.host.retry import JITTER
from vmpin.sources.nri import plugin as nri
from vmpin.sources.nri.connect import connect_to
from vmpin.sources.nri.event_queue import NriQueue, merged
from vmpin.sources.nri.nri_events import ContainerEvent, Disconnected, NriEvent, NriPod, NriUpdate, PodEvent, Synced
from vmpin.sources.nri.stream import MAX_UNSENT
from vmpin.wire import nri_messages
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES


class Watched:
    """A plugin whose words are kept: each fact in `facts`, each state in `states`."""

    def __init__(self, runtimes: NriRuntimes, waiting: NriQueue | None = None, once: bool = False,
                 rest: Callable[[float], None] | None = None, max_unsent: int = MAX_UNSENT) -> None:
        self.facts: queue.Queue[NriEvent] = queue.Queue()
        self.states: queue.Queue[tuple[bool, str]] = queue.Queue()
        self.plugin = nri.NriPlugin(runtimes.connect, waiting or delivering(self.facts.put), once=once, rest=rest,
                                    on_state=lambda up, text: self.states.put((up, text)), max_unsent=max_unsent)

    def fact(self) -> NriEvent:
        return self.facts.get(timeout=PATIENCE)

    def state(self) -> tuple[bool, str]:
        return self.states.get(timeout=PATIENCE)


@pytest.fixture
def runtimes() -> Iterator[NriRuntimes]:
    made = NriRuntimes()
    yield made
    made.close()


@pytest.fixture
def watched(runtimes: NriRuntimes) -> Iterator[Watched]:
    made = Watched(runtimes)
    made.plugin.start()
    yield made
    made.plugin.stop(PATIENCE)


def begun(runtimes: NriRuntimes, watched: Watched) -> NriRuntime:
    """A connection that has listed nothing."""
    runtime = runtimes.next()
    runtime.begin()
    assert isinstance(watched.fact(), Synced)
    return runtime


def test_a_plugin_registers_and_takes_the_events_that_every_version_knows(
        runtimes: NriRuntimes, watched: Watched) -> None:
    runtime = runtimes.next()
    asked = runtime.request("RegisterPlugin")
    told = MESSAGES.decode("RegisterPluginRequest", asked.payload)
    assert (asked.service, asked.stream) == (nri_messages.RUNTIME_SERVICE, 1)
    assert (told.plugin_name, told.plugin_idx) == ("vmpin", "90")
    runtime.grant(asked)
    assert runtime.configure() == 0x7FF
    assert not runtime.synchronize([pod("pod1", runtime_handler="kata", pid=77, annotations={"a": "b"})], [
        container("c1", cpus="2-3,7", pid=78), container("c2")])
    synced = watched.fact()
    assert isinstance(synced, Synced)
    assert [(item.id, item.namespace, item.name, item.uid, item.handler, item.pid, item.annotations)
            for item in synced.pods] == [("pod1", "default", "web", "u-1", "kata", 77, {"a": "b"})]
    assert [(item.id, item.pod, item.name, item.cpus, item.pid) for item in synced.containers] == [
        ("c1", "pod1", "app", CpuSet.parse("2-3,7"), 78), ("c2", "pod1", "app", None, 0)]
    assert 0 < synced.time_ns <= boottime.now()
    assert watched.state() == (True, "containerd v2.1.9")


def test_configure_may_come_before_the_registration_is_granted(runtimes: NriRuntimes, watched: Watched) -> None:
    runtime = runtimes.next()
    asked = runtime.request("RegisterPlugin")
    assert runtime.configure() == 0x7FF
    assert not runtime.synchronize()
    runtime.grant(asked)
    assert isinstance(watched.fact(), Synced)
    assert runtime.state_change(Verb.RUN_POD, pod()).code == 0


def test_a_list_in_parts_is_one_list(runtimes: NriRuntimes, watched: Watched) -> None:
    runtime = runtimes.next()
    runtime.grant(runtime.request("RegisterPlugin"))
    runtime.configure()
    assert runtime.synchronize([pod("p1")], [container("a", "p1")], more=True)
    assert runtime.synchronize([pod("p2")], [], more=True)
    assert watched.states.empty()
    assert not runtime.synchronize([], [container("b", "p2")])
    synced = watched.fact()
    assert isinstance(synced, Synced)
    assert [item.id for item in synced.pods] == ["p1", "p2"]
    assert [item.id for item in synced.containers] == ["a", "b"]


def test_what_has_happened_and_what_is_asked_for_is_reported(runtimes: NriRuntimes, watched: Watched) -> None:
    runtime = begun(runtimes, watched)
    for event in range(1, 12):
        pods_own = event in (Verb.RUN_POD, Verb.STOP_POD, Verb.REMOVE_POD)
        reply = runtime.state_change(event, pod(), None if pods_own else container(cpus=str(event)))
        assert (reply.code, reply.payload) == (0, b"")
    told = [watched.fact() for _ in range(11)]
    assert [(type(item), item.verb) for item in told if isinstance(item, PodEvent | ContainerEvent)] == [
        *((PodEvent, verb) for verb in (Verb.RUN_POD, Verb.STOP_POD, Verb.REMOVE_POD)),
        *((ContainerEvent, verb) for verb in (Verb.CREATE, Verb.POST_CREATE, Verb.START, Verb.POST_START, Verb.UPDATE,
                                              Verb.POST_UPDATE, Verb.STOP, Verb.REMOVE))]
    updated = told[8]
    assert isinstance(updated, ContainerEvent)
    assert updated.container.cpus == CpuSet([Verb.POST_UPDATE])
    assert updated.pod is not None
    assert updated.pod.id == "pod1"
    assert watched.facts.empty()


def test_a_call_for_each_event_is_taken_as_well(runtimes: NriRuntimes, watched: Watched) -> None:
    """NRI 0.12 tries these first; StopContainer has been one from the start."""
    runtime = begun(runtimes, watched)
    for method, verb in (("RunPodSandbox", Verb.RUN_POD), ("PostStartContainer", Verb.POST_START),
                         ("UpdateContainer", Verb.UPDATE),
                         ("PostUpdateContainer", Verb.POST_UPDATE), ("StopContainer", Verb.STOP),
                         ("RemoveContainer", Verb.REMOVE),
                         ("ValidateContainerAdjustment", None), ("PostUpdatePodSandbox", None)):
        reply = runtime.call(method, MESSAGES["EventRequest"](
            pod=pod(), container=None if method == "RunPodSandbox" else container()))
        assert (reply.code, reply.payload) == (0, b""), method
        if verb is not None:
            fact = watched.fact()
            assert isinstance(fact, PodEvent | ContainerEvent)
            assert fact.verb == verb
    assert watched.facts.empty()
    assert watched.plugin.counters.unknown == 0


@pytest.mark.parametrize(("cpus", "asked"), [("4-5", CpuSet((4, 5))), ("", None), ("5-4", None)])
def test_an_update_that_is_asked_for_has_the_new_cpus_beside_the_old_ones(
        runtimes: NriRuntimes, watched: Watched, cpus: str, asked: CpuSet | None) -> None:
    runtime = begun(runtimes, watched)
    request = MESSAGES["UpdateContainerRequest"](pod=pod(), container=container(cpus="2-3"))
    request.linux_resources.cpu.cpus = cpus
    reply = runtime.call("UpdateContainer", request)
    assert (reply.code, reply.payload) == (0, b"")
    fact = watched.fact()
    assert isinstance(fact, ContainerEvent)
    assert (fact.verb, fact.container.cpus, fact.requested) == (Verb.UPDATE, CpuSet((2, 3)), asked)
    assert watched.plugin.counters.dropped == (cpus == "5-4")


def test_what_is_unknown_is_answered_and_counted(runtimes: NriRuntimes, watched: Watched) -> None:
    runtime = begun(runtimes, watched)
    reply = runtime.call("EvictContainer", MESSAGES["EventRequest"](pod=pod()))
    assert (reply.code, reply.message) == (12, "no method EvictContainer")
    assert runtime.call("Configure", service="ttrpc.Health").code == 12
    assert runtime.state_change(99, pod(), container()).code == 0
    assert runtime.state_change(-1).code == 0
    raw = b"for nobody"
    runtime.socket.sendall(struct.pack(">II", 3, len(raw)) + raw)
    assert runtime.state_change(Verb.RUN_POD, pod()).code == 0
    assert isinstance(watched.fact(), PodEvent)
    assert watched.plugin.counters.unknown == 5
    assert watched.plugin.counters.refused == 0


def test_a_container_without_a_pod_is_taken_when_it_says_whose_it_is(
        runtimes: NriRuntimes, watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    runtime = begun(runtimes, watched)
    runtime.state_change(Verb.POST_START, None, container("c1", "pod9"))
    runtime.state_change(Verb.POST_START, None, container("c2", ""))
    runtime.state_change(Verb.POST_START, pod("pod8"), container("c3", ""))
    runtime.state_change(Verb.POST_START, pod(), None)
    runtime.state_change(Verb.RUN_POD)
    runtime.state_change(Verb.REMOVE_POD, pod("pod9"))
    told = [watched.fact() for _ in range(3)]
    assert [(item.pod and item.pod.id, item.container.pod) for item in told if isinstance(item, ContainerEvent)] == [
        (None, "pod9"), ("pod8", "pod8")]
    assert watched.plugin.counters.dropped == 3
    assert [record.getMessage() for record in caplog.records if "left out" in record.getMessage()] == [
        "NRI: left out: a container has the id 'c2', and its pod ''"]


@pytest.mark.parametrize("bad", ["../etc", "", "a/b", "x" * 300, "a\n[31m"])
def test_an_id_that_is_none_is_left_out_and_the_rest_is_taken(
        runtimes: NriRuntimes, watched: Watched, bad: str) -> None:
    runtime = runtimes.next()
    runtime.begin([pod(bad), pod("p2", name="a\x1b[31mb")], [container(bad), container("c", "p2")])
    synced = watched.fact()
    assert isinstance(synced, Synced)
    assert [(item.id, item.name) for item in synced.pods] == [("p2", "a[31mb")]
    assert [item.id for item in synced.containers] == ["c"]
    assert watched.plugin.counters.dropped == 2


@pytest.mark.parametrize("cpus", ["x", "3-1", "0-99999999", "1,,2-", "-1"])
def test_cpus_that_are_none_change_nothing(runtimes: NriRuntimes, watched: Watched, cpus: str) -> None:
    runtime = begun(runtimes, watched)
    assert runtime.state_change(Verb.POST_UPDATE, pod(), container(cpus=cpus)).code == 0
    fact = watched.fact()
    assert isinstance(fact, ContainerEvent)
    assert (fact.container.id, fact.container.cpus) == ("c1", None)
    assert watched.plugin.counters.dropped == 1


def test_a_container_whose_cpus_are_none_is_listed_all_the_same(runtimes: NriRuntimes, watched: Watched) -> None:
    """Who is not listed has ended."""
    runtime = runtimes.next()
    runtime.begin([pod()], [container("a", cpus="2-3,9000"), container("b", cpus="1")])
    synced = watched.fact()
    assert isinstance(synced, Synced)
    assert [(each.id, str(each.cpus)) for each in synced.containers] == [("a", "None"), ("b", "1")]


def test_a_runtime_that_restarts_is_connected_to_again_and_lists_anew(
        runtimes: NriRuntimes, watched: Watched) -> None:
    for _ in range(3):
        runtime = begun(runtimes, watched)
        assert watched.state() == (True, "containerd v2.1.9")
        runtime.close()
        assert watched.fact() == Disconnected()
        assert watched.state() == (False, "containerd v2.1.9 closed the connection")
    counters = watched.plugin.counters
    assert (counters.connects >= 3, counters.syncs, counters.last_error) == (
        True, 3, "containerd v2.1.9 closed the connection")


def test_a_shutdown_is_answered_before_the_connection_ends(runtimes: NriRuntimes, watched: Watched) -> None:
    runtime = begun(runtimes, watched)
    assert runtime.call("Shutdown").code == 0
    assert runtime.closed()
    assert watched.fact() == Disconnected()
    begun(runtimes, watched)


def test_half_a_frame_and_the_end_is_a_restart(runtimes: NriRuntimes, watched: Watched) -> None:
    runtime = begun(runtimes, watched)
    runtime.socket.sendall(bytes.fromhex("00000001 0000005b 00000051 0000"))
    runtime.close()
    assert watched.fact() == Disconnected()
    begun(runtimes, watched)
    assert watched.plugin.counters.refused == 0


def test_half_a_frame_and_silence_harm_no_other(runtimes: NriRuntimes, watched: Watched) -> None:
    runtime = begun(runtimes, watched)
    runtime.socket.sendall(bytes.fromhex("00000001 0000"))
    watched.plugin.stop(timeout=PATIENCE)
    assert not watched.plugin.running
    assert runtime.closed()


@pytest.mark.parametrize("raw", [
    struct.pack(">II", 1, 5 << 20),
    struct.pack(">IIIIBB", 1, 4096, 5 << 20, 1, 1, 0),
    b"GET / HTTP/1.1\r\n\r\n",
    struct.pack(">IIIIBB", 1, 14, 4, 1, 1, 0) + b"\xff\xff\xff\xff",
], ids=["a 5 MB frame", "a 5 MB message", "HTTP", "no protobuf"])
def test_what_is_no_nri_costs_the_connection_and_nothing_else(
        runtimes: NriRuntimes, watched: Watched, caplog: pytest.LogCaptureFixture, raw: bytes) -> None:
    runtime = begun(runtimes, watched)
    runtime.socket.sendall(raw)
    assert runtime.closed()
    assert watched.fact() == Disconnected()
    begun(runtimes, watched)
    assert watched.plugin.counters.refused == 1
    assert len([record for record in caplog.records if "nri=down" in record.getMessage()]) == 1


def test_an_event_that_cannot_be_read_is_answered_and_all_is_listed_anew(
        runtimes: NriRuntimes, watched: Watched) -> None:
    runtime = begun(runtimes, watched)
    assert runtime.call("StateChange", b"\x12\x05ab").code == 0
    assert runtime.closed()
    assert watched.fact() == Disconnected()
    begun(runtimes, watched)
    assert watched.plugin.counters.refused == 1


def test_a_runtime_that_closes_at_once_is_one_line_and_not_one_a_second(
        runtimes: NriRuntimes, watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        runtime = runtimes.next()
        runtime.request("RegisterPlugin")
        runtime.close()
    up, text = watched.state()
    assert not up
    assert "disable_connections" in text
    runtime = runtimes.next()
    runtime.grant(runtime.request("RegisterPlugin"))
    runtime.configure()
    runtime.close()
    up, text = watched.state()
    assert not up
    assert "events asked for (0x7ff)" in text
    begun(runtimes, watched)
    assert watched.state() == (True, "containerd v2.1.9")
    lines = [record.getMessage() for record in caplog.records if "nri=down" in record.getMessage()]
    assert len(lines) == 2


def test_a_refusal_is_reported_with_the_runtimes_text(runtimes: NriRuntimes, watched: Watched) -> None:
    runtime = runtimes.next()
    runtime.grant(runtime.request("RegisterPlugin"), code=3, message="invalid plugin index \x1b[1m")
    assert watched.state() == (False, "the runtime refused the plugin: code 3: invalid plugin index [1m")
    assert runtime.closed()


def test_attempts_become_fewer(runtimes: NriRuntimes, caplog: pytest.LogCaptureFixture) -> None:
    runtimes.away = ConnectionRefusedError(111, "Connection refused", "/run/nri.sock")
    rests: list[float] = []
    enough = threading.Event()

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 9:
            enough.set()

    made = Watched(runtimes, rest=rest)
    made.plugin.start()
    assert enough.wait(PATIENCE)
    made.plugin.stop(timeout=PATIENCE)
    wanted = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5]
    assert all((1 - JITTER) * pause <= rest <= (1 + JITTER) * pause
               for rest, pause in zip(rests[:9], wanted, strict=True))
    assert made.state() == (False, "/run/nri.sock: Connection refused")
    assert [record.getMessage() for record in caplog.records] == [
        "nri=down: /run/nri.sock: Connection refused; reconnecting"]


def test_no_socket_says_what_to_do(tmp_path: Path) -> None:
    states: queue.Queue[tuple[bool, str]] = queue.Queue()
    plugin = nri.NriPlugin(connect_to(tmp_path / "nri.sock"), NriQueue(),
                        on_state=lambda up, text: states.put((up, text)))
    plugin.start()
    up, text = states.get(timeout=PATIENCE)
    plugin.stop(PATIENCE)
    assert not up
    assert text.startswith(f"{tmp_path}/nri.sock: No such file or directory: no container runtime")
    with pytest.raises(OSError, match="too long"):
        connect_to(tmp_path / ("x" * 200))()


def test_a_library_that_cannot_be_loaded_is_loaded_at_the_next_attempt(
        runtimes: NriRuntimes, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Watched(runtimes, rest=lambda seconds: time.sleep(0.01))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "vmpin.sources.nri.session", None)
        made.plugin.start()
        up, why = made.state()
        assert not up
        assert "session" in why
    begun(runtimes, made)
    made.plugin.stop(PATIENCE)


def test_a_thousand_updates_at_once_are_all_reported(runtimes: NriRuntimes, watched: Watched) -> None:
    runtime = begun(runtimes, watched)
    streams = [runtime.send("StateChange", MESSAGES["StateChangeEvent"](
        event=Verb.POST_UPDATE, pod=pod(), container=container(cpus=str(number)))) for number in range(1000)]
    assert all(runtime.answer(stream).code == 0 for stream in streams)
    told = [watched.fact() for _ in range(1000)]
    assert [item.container.cpus for item in told if isinstance(item, ContainerEvent)] == [
        CpuSet([number]) for number in range(1000)]


def test_a_busy_loop_delays_no_answer(runtimes: NriRuntimes) -> None:
    waiting = NriQueue()
    made = Watched(runtimes, waiting)
    made.plugin.start()
    runtime = runtimes.next()
    runtime.begin()
    for number in range(200):
        assert runtime.state_change(Verb.POST_UPDATE, pod(), container(cpus=str(number))).code == 0
    runtime.close()
    assert made.state()[0]
    assert not made.state()[0]  # reported after everything has been put
    assert [type(event) for event in waiting.take().events] == [Synced, *[ContainerEvent] * 200, Disconnected]
    assert waiting.take() == ([], [])
    made.plugin.stop(PATIENCE)


_PEER = """\
import json, socket, sys, time
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
    made = Watched(runtimes, waiting)
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


def test_long_annotations_count_by_their_size() -> None:
    woken: list[int] = []
    waiting = NriQueue(lambda: woken.append(1), max_bytes=50_000)
    fact = PodEvent(Verb.RUN_POD, NriPod(SandboxId("p"), "", "", "", "", 0, {"a": "x" * 20_000}, ""), 0)
    began = time.perf_counter()
    assert waiting.put(fact)
    assert waiting.put(Disconnected())
    assert waiting.put(fact)
    assert not waiting.put(fact)
    assert waiting.put(fact)
    events, times = waiting.take()
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
    assert merged([connected, started_by_runtime]) == ([], [])


def updates_of(runtime: NriRuntime, *listed: Any) -> list[tuple[str, str, bool]]:
    """What the plugin's answer to the last part of a list sets."""
    runtime.grant(runtime.request("RegisterPlugin"))
    runtime.configure()
    sent = runtime.call("Synchronize", MESSAGES["SynchronizeRequest"](pods=[pod()], containers=list(listed)))
    return [(item.container_id, item.linux.resources.cpu.cpus, item.ignore_failure)
            for item in MESSAGES.decode("SynchronizeResponse", sent.payload).update]


def test_updates_go_into_the_answer_to_the_list_of_a_new_connection(runtimes: NriRuntimes, watched: Watched) -> None:
    begun(runtimes, watched)
    watched.plugin.reconnect({ContainerId("c1"): NriUpdate(CpuSet.parse("0-1"), CpuSet.parse("7")),
                          ContainerId("c2"): NriUpdate(CpuSet([1]), CpuSet([7])),
                          ContainerId("c3"): NriUpdate(CpuSet([2])), ContainerId("gone"): NriUpdate(CpuSet([3]))})
    assert watched.fact() == Disconnected()
    # c2 has other CPUs by now: an update came in between.
    assert updates_of(runtimes.next(), container("c1", cpus="7"), container("c2", cpus="6"), container("c3")) == [
        ("c1", "0-1", True), ("c3", "2", True)]
    synced = watched.fact()
    assert isinstance(synced, Synced)
    assert synced.updated == ("c1", "c3")


def test_updates_are_given_once_and_with_the_last_part_of_a_list(runtimes: NriRuntimes, watched: Watched) -> None:
    begun(runtimes, watched)
    watched.plugin.reconnect({ContainerId("c1"): NriUpdate(CpuSet([1]))})
    assert watched.fact() == Disconnected()
    runtime = runtimes.next()
    runtime.grant(runtime.request("RegisterPlugin"))
    runtime.configure()
    first = runtime.call("Synchronize", MESSAGES["SynchronizeRequest"](containers=[container("c1")], more=True))
    assert not MESSAGES.decode("SynchronizeResponse", first.payload).update
    last = runtime.call("Synchronize", MESSAGES["SynchronizeRequest"](pods=[pod()]))
    assert [item.container_id for item in MESSAGES.decode("SynchronizeResponse", last.payload).update] == ["c1"]
    assert isinstance(watched.fact(), Synced)
    watched.plugin.reconnect()
    assert watched.fact() == Disconnected()
    assert updates_of(runtimes.next(), container("c1")) == []


def test_nothing_but_its_registration_is_ever_asked_of_the_runtime(runtimes: NriRuntimes, watched: Watched) -> None:
    """NRI's UpdateContainers hangs runtimes (containerd#13733)."""
    runtime = begun(runtimes, watched)
    for event in (Verb.RUN_POD, Verb.POST_START, Verb.POST_UPDATE, Verb.STOP):
        assert runtime.state_change(event, pod(), container()).code == 0
    watched.plugin.reconnect({ContainerId("c1"): NriUpdate(CpuSet([1]))})
    second = runtimes.next()
    assert updates_of(second, container("c1"))
    assert second.state_change(Verb.RUN_POD, pod()).code == 0
    assert (runtime.asked, second.asked) == ([], [])


def test_a_runtime_that_does_not_read_costs_no_memory(runtimes: NriRuntimes) -> None:
    watched = Watched(runtimes, max_unsent=10_000)
    watched.plugin.start()
    runtime = begun(runtimes, watched)
    runtime.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def send_on() -> None:
        for _ in range(1_000_000):
            runtime.send("NoSuchMethod")

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        send_on()
    assert watched.fact() == Disconnected()
    assert watched.state()[0]
    up, text = watched.state()
    assert not up
    assert text.startswith("NRI: the runtime does not read")
    watched.plugin.stop(PATIENCE)


def test_a_plugin_that_the_runtime_started_ends_with_its_connection() -> None:
    theirs, ours = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    fd = theirs.detach()
    environ = {"NRI_PLUGIN_SOCKET": str(fd), "NRI_PLUGIN_NAME": "pinner", "NRI_PLUGIN_IDX": "07", "PATH": "/bin"}
    told: queue.Queue[NriEvent] = queue.Queue()
    plugin = nri.from_environment(delivering(told.put), lambda up, text: None, environ)
    assert plugin is not None
    assert environ == {"PATH": "/bin"}
    assert not os.get_inheritable(fd)
    plugin.start()
    with ours:
        runtime = NriRuntime(ours)
        asked = runtime.request("RegisterPlugin")
        registration = MESSAGES.decode("RegisterPluginRequest", asked.payload)
        assert (registration.plugin_name, registration.plugin_idx) == ("pinner", "07")
        runtime.grant(asked)
        runtime.configure()
        runtime.synchronize()
        assert not plugin.ended.is_set()
    assert plugin.ended.wait(PATIENCE)
    assert isinstance(told.get(timeout=PATIENCE), Synced)
    assert told.get(timeout=PATIENCE) == Disconnected()
    plugin.stop(PATIENCE)


def test_a_process_that_no_runtime_started_is_no_such_plugin(tmp_path: Path) -> None:
    def made(environ: dict[str, str]) -> nri.NriPlugin | None:
        return nri.from_environment(NriQueue(), lambda up, text: None, environ)

    assert made({"NRI_PLUGIN_NAME": "x"}) is None
    with (tmp_path / "file").open("w") as file:
        for number in str(file.fileno()), "-1", "x", "9999", "99999999999999999999":
            with pytest.raises(ConfigError, match="no open socket"):
                made({"NRI_PLUGIN_SOCKET": number})


@pytest.mark.parametrize(("name", "index"), [("a b", "90"), ("", "90"), ("vmpin", "7"), ("vmpin", "007"), ("x", "ab")])
def test_a_name_that_no_runtime_takes_is_said_at_once(name: str, index: str) -> None:
    with pytest.raises(ConfigError, match="two digits"):
        nri.NriPlugin(lambda: socket.socket(), NriQueue(), name, index)


def test_nothing_stays_open(runtimes: NriRuntimes) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before, threads = opened(), threading.active_count()
    for _ in range(5):
        made = Watched(runtimes)
        made.plugin.start()
        runtime = begun(runtimes, made)
        made.plugin.stop(PATIENCE)
        assert runtime.closed()
        runtime.close()
    assert (opened(), threading.active_count()) == (before, threads)
