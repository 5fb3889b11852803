"""What the NRI plugin sets by its answer to a list; that it calls nothing but RegisterPlugin."""

from __future__ import annotations

from typing import Any

from nri_connected import Connected, begun
from nri_peer import NriRuntime, NriRuntimes, container, pod

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.sources.nri.nri_events import Disconnected, NriUpdate, Synced
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES

pytest_plugins = ["given_nri"]


def updates_of(runtime: NriRuntime, *listed: Any) -> list[tuple[str, str, bool]]:
    """What the plugin's answer to the last part of a list sets."""
    runtime.grant(runtime.request("RegisterPlugin"))
    runtime.configure()
    sent = runtime.call("Synchronize", MESSAGES["SynchronizeRequest"](pods=[pod()], containers=list(listed)))
    return [(item.container_id, item.linux.resources.cpu.cpus, item.ignore_failure)
            for item in MESSAGES.decode("SynchronizeResponse", sent.payload).update]


def test_updates_go_into_the_answer_to_the_list_of_a_new_connection(
        runtimes: NriRuntimes, connected: Connected) -> None:
    begun(runtimes, connected)
    connected.plugin.reconnect({ContainerId("c1"): NriUpdate(CpuSet.parse("0-1"), CpuSet.parse("7")),
                          ContainerId("c2"): NriUpdate(CpuSet([1]), CpuSet([7])),
                          ContainerId("c3"): NriUpdate(CpuSet([2])), ContainerId("gone"): NriUpdate(CpuSet([3]))})
    assert connected.fact() == Disconnected()
    # c2 has other CPUs by now: an update came in between.
    assert updates_of(runtimes.next(), container("c1", cpus="7"), container("c2", cpus="6"), container("c3")) == [
        ("c1", "0-1", True), ("c3", "2", True)]
    synced = connected.fact()
    assert isinstance(synced, Synced)
    assert synced.updated == ("c1", "c3")


def test_updates_are_given_once_and_with_the_last_part_of_a_list(runtimes: NriRuntimes, connected: Connected) -> None:
    begun(runtimes, connected)
    connected.plugin.reconnect({ContainerId("c1"): NriUpdate(CpuSet([1]))})
    assert connected.fact() == Disconnected()
    runtime = runtimes.next()
    runtime.grant(runtime.request("RegisterPlugin"))
    runtime.configure()
    first = runtime.call("Synchronize", MESSAGES["SynchronizeRequest"](containers=[container("c1")], more=True))
    assert not MESSAGES.decode("SynchronizeResponse", first.payload).update
    last = runtime.call("Synchronize", MESSAGES["SynchronizeRequest"](pods=[pod()]))
    assert [item.container_id for item in MESSAGES.decode("SynchronizeResponse", last.payload).update] == ["c1"]
    assert isinstance(connected.fact(), Synced)
    connected.plugin.reconnect()
    assert connected.fact() == Disconnected()
    assert updates_of(runtimes.next(), container("c1")) == []


def test_nothing_but_its_registration_is_ever_asked_of_the_runtime(
        runtimes: NriRuntimes, connected: Connected) -> None:
    """NRI's UpdateContainers hangs runtimes (containerd#13733)."""
    runtime = begun(runtimes, connected)
    for event in (Verb.RUN_POD, Verb.POST_START, Verb.POST_UPDATE, Verb.STOP):
        assert runtime.state_change(event, pod(), container()).code == 0
    connected.plugin.reconnect({ContainerId("c1"): NriUpdate(CpuSet([1]))})
    second = runtimes.next()
    assert updates_of(second, container("c1"))
    assert second.state_change(Verb.RUN_POD, pod()).code == 0
    assert (runtime.asked, second.asked) == ([], [])
