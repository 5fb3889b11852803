"""The NRI plugin against a runtime of the test's own: its registration, the list, and the events that it reports."""

from __future__ import annotations

import struct

import pytest
from nri_connected import Connected, begun
from nri_peer import NriRuntimes, container, pod

from vmpin.cpuset import CpuSet
from vmpin.host import boottime
from vmpin.sources.nri.nri_events import ContainerEvent, PodEvent, Synced
from vmpin.wire import nri_messages
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES

pytest_plugins = ["given_nri"]


def test_a_plugin_registers_and_takes_the_events_that_every_version_knows(
        runtimes: NriRuntimes, connected: Connected) -> None:
    runtime = runtimes.next()
    asked = runtime.request("RegisterPlugin")
    registration = MESSAGES.decode("RegisterPluginRequest", asked.payload)
    assert (asked.service, asked.stream) == (nri_messages.RUNTIME_SERVICE, 1)
    assert (registration.plugin_name, registration.plugin_idx) == ("vmpin", "90")
    runtime.grant(asked)
    assert runtime.configure() == 0x7FF
    assert not runtime.synchronize([pod("pod1", runtime_handler="kata", pid=77, annotations={"a": "b"})], [
        container("c1", cpus="2-3,7", pid=78), container("c2")])
    synced = connected.fact()
    assert isinstance(synced, Synced)
    assert [(item.id, item.namespace, item.name, item.uid, item.handler, item.pid, item.annotations)
            for item in synced.pods] == [("pod1", "default", "web", "u-1", "kata", 77, {"a": "b"})]
    assert [(item.id, item.pod, item.name, item.cpus, item.pid) for item in synced.containers] == [
        ("c1", "pod1", "app", CpuSet.parse("2-3,7"), 78), ("c2", "pod1", "app", None, 0)]
    assert 0 < synced.time_ns <= boottime.now()
    assert connected.state() == (True, "containerd v2.1.9")


def test_configure_may_come_before_the_registration_is_granted(runtimes: NriRuntimes, connected: Connected) -> None:
    runtime = runtimes.next()
    asked = runtime.request("RegisterPlugin")
    assert runtime.configure() == 0x7FF
    assert not runtime.synchronize()
    runtime.grant(asked)
    assert isinstance(connected.fact(), Synced)
    assert runtime.state_change(Verb.RUN_POD, pod()).code == 0


def test_a_list_in_parts_is_one_list(runtimes: NriRuntimes, connected: Connected) -> None:
    runtime = runtimes.next()
    runtime.grant(runtime.request("RegisterPlugin"))
    runtime.configure()
    assert runtime.synchronize([pod("p1")], [container("a", "p1")], more=True)
    assert runtime.synchronize([pod("p2")], [], more=True)
    assert connected.states.empty()
    assert not runtime.synchronize([], [container("b", "p2")])
    synced = connected.fact()
    assert isinstance(synced, Synced)
    assert [item.id for item in synced.pods] == ["p1", "p2"]
    assert [item.id for item in synced.containers] == ["a", "b"]


def test_what_has_happened_and_what_is_asked_for_is_reported(runtimes: NriRuntimes, connected: Connected) -> None:
    runtime = begun(runtimes, connected)
    for event in range(1, 12):
        pods_own = event in (Verb.RUN_POD, Verb.STOP_POD, Verb.REMOVE_POD)
        reply = runtime.state_change(event, pod(), None if pods_own else container(cpus=str(event)))
        assert (reply.code, reply.payload) == (0, b"")
    facts = [connected.fact() for _ in range(11)]
    assert [(type(item), item.verb) for item in facts if isinstance(item, PodEvent | ContainerEvent)] == [
        *((PodEvent, verb) for verb in (Verb.RUN_POD, Verb.STOP_POD, Verb.REMOVE_POD)),
        *((ContainerEvent, verb) for verb in (Verb.CREATE, Verb.POST_CREATE, Verb.START, Verb.POST_START, Verb.UPDATE,
                                              Verb.POST_UPDATE, Verb.STOP, Verb.REMOVE))]
    updated = facts[8]
    assert isinstance(updated, ContainerEvent)
    assert updated.container.cpus == CpuSet([Verb.POST_UPDATE])
    assert updated.pod is not None
    assert updated.pod.id == "pod1"
    assert connected.facts.empty()


def test_a_call_for_each_event_is_taken_as_well(runtimes: NriRuntimes, connected: Connected) -> None:
    """NRI 0.12 tries these first; StopContainer has been one from the start."""
    runtime = begun(runtimes, connected)
    for method, verb in (("RunPodSandbox", Verb.RUN_POD), ("PostStartContainer", Verb.POST_START),
                         ("UpdateContainer", Verb.UPDATE),
                         ("PostUpdateContainer", Verb.POST_UPDATE), ("StopContainer", Verb.STOP),
                         ("RemoveContainer", Verb.REMOVE),
                         ("ValidateContainerAdjustment", None), ("PostUpdatePodSandbox", None)):
        reply = runtime.call(method, MESSAGES["EventRequest"](
            pod=pod(), container=None if method == "RunPodSandbox" else container()))
        assert (reply.code, reply.payload) == (0, b""), method
        if verb is not None:
            fact = connected.fact()
            assert isinstance(fact, PodEvent | ContainerEvent)
            assert fact.verb == verb
    assert connected.facts.empty()
    assert connected.plugin.counters.unknown == 0


@pytest.mark.parametrize(("cpus", "asked"), [("4-5", CpuSet((4, 5))), ("", None), ("5-4", None)])
def test_an_update_that_is_asked_for_has_the_new_cpus_beside_the_old_ones(
        runtimes: NriRuntimes, connected: Connected, cpus: str, asked: CpuSet | None) -> None:
    runtime = begun(runtimes, connected)
    request = MESSAGES["UpdateContainerRequest"](pod=pod(), container=container(cpus="2-3"))
    request.linux_resources.cpu.cpus = cpus
    reply = runtime.call("UpdateContainer", request)
    assert (reply.code, reply.payload) == (0, b"")
    fact = connected.fact()
    assert isinstance(fact, ContainerEvent)
    assert (fact.verb, fact.container.cpus, fact.requested) == (Verb.UPDATE, CpuSet((2, 3)), asked)
    assert connected.plugin.counters.dropped == (cpus == "5-4")


def test_what_is_unknown_is_answered_and_counted(runtimes: NriRuntimes, connected: Connected) -> None:
    runtime = begun(runtimes, connected)
    reply = runtime.call("EvictContainer", MESSAGES["EventRequest"](pod=pod()))
    assert (reply.code, reply.message) == (12, "no method EvictContainer")
    assert runtime.call("Configure", service="ttrpc.Health").code == 12
    assert runtime.state_change(99, pod(), container()).code == 0
    assert runtime.state_change(-1).code == 0
    raw = b"no connection"
    runtime.socket.sendall(struct.pack(">II", 3, len(raw)) + raw)
    assert runtime.state_change(Verb.RUN_POD, pod()).code == 0
    assert isinstance(connected.fact(), PodEvent)
    assert connected.plugin.counters.unknown == 5
    assert connected.plugin.counters.refused == 0


def test_a_container_without_a_pod_is_taken_when_it_says_whose_it_is(
        runtimes: NriRuntimes, connected: Connected, caplog: pytest.LogCaptureFixture) -> None:
    runtime = begun(runtimes, connected)
    runtime.state_change(Verb.POST_START, None, container("c1", "pod9"))
    runtime.state_change(Verb.POST_START, None, container("c2", ""))
    runtime.state_change(Verb.POST_START, pod("pod8"), container("c3", ""))
    runtime.state_change(Verb.POST_START, pod(), None)
    runtime.state_change(Verb.RUN_POD)
    runtime.state_change(Verb.REMOVE_POD, pod("pod9"))
    facts = [connected.fact() for _ in range(3)]
    assert [(item.pod and item.pod.id, item.container.pod) for item in facts if isinstance(item, ContainerEvent)] == [
        (None, "pod9"), ("pod8", "pod8")]
    assert connected.plugin.counters.dropped == 3
    assert [record.getMessage() for record in caplog.records if "left out" in record.getMessage()] == [
        "NRI: left out: a container has the id 'c2', and its pod ''"]


@pytest.mark.parametrize("bad", ["../etc", "", "a/b", "x" * 300, "a\n[31m"])
def test_an_id_that_is_none_is_left_out_and_the_rest_is_taken(
        runtimes: NriRuntimes, connected: Connected, bad: str) -> None:
    runtime = runtimes.next()
    runtime.begin([pod(bad), pod("p2", name="a\x1b[31mb")], [container(bad), container("c", "p2")])
    synced = connected.fact()
    assert isinstance(synced, Synced)
    assert [(item.id, item.name) for item in synced.pods] == [("p2", "a[31mb")]
    assert [item.id for item in synced.containers] == ["c"]
    assert connected.plugin.counters.dropped == 2


@pytest.mark.parametrize("cpus", ["x", "3-1", "0-99999999", "1,,2-", "-1"])
def test_cpus_that_are_none_change_nothing(runtimes: NriRuntimes, connected: Connected, cpus: str) -> None:
    runtime = begun(runtimes, connected)
    assert runtime.state_change(Verb.POST_UPDATE, pod(), container(cpus=cpus)).code == 0
    fact = connected.fact()
    assert isinstance(fact, ContainerEvent)
    assert (fact.container.id, fact.container.cpus) == ("c1", None)
    assert connected.plugin.counters.dropped == 1


def test_a_container_whose_cpus_are_none_is_listed_all_the_same(runtimes: NriRuntimes, connected: Connected) -> None:
    """A container that is not listed has ended."""
    runtime = runtimes.next()
    runtime.begin([pod()], [container("a", cpus="2-3,9000"), container("b", cpus="1")])
    synced = connected.fact()
    assert isinstance(synced, Synced)
    assert [(each.id, str(each.cpus)) for each in synced.containers] == [("a", "None"), ("b", "1")]
