"""NRI's calls as values, from their bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nri_peer import container, pod

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.domain.runtime_call import Adjustment, SideUpdate
from vmpin.errors import WireError
from vmpin.sources.nri.call_codec import (
    MAX_LISTED,
    MOST_ADDRESSES,
    MOST_NODES,
    CallDecoder,
    ReceivedCall,
    container_devices,
    encode_answer,
    encode_list_answer,
    request_of,
)
from vmpin.sources.nri.nri_events import ContainerEvent, CpuAnswer, NriCounters, PodEvent
from vmpin.sources.nri.session import NriSession
from vmpin.wire import ttrpc
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES


@pytest.fixture
def decoder() -> CallDecoder:
    return CallDecoder(NriCounters(), set())


def event(**fields: object) -> bytes:
    return bytes(MESSAGES["EventRequest"](**fields).SerializeToString())


def decoded(decoder: CallDecoder, verb: Verb, raw: bytes, again: bool = False) -> ContainerEvent:
    event = decoder.event(decoder.received(verb, raw), again)
    assert isinstance(event, ContainerEvent)
    return event


def test_a_request_has_the_containers_own_resources(decoder: CallDecoder) -> None:
    received = decoder.received(Verb.CREATE, event(pod=pod(), container=container(cpus="2-3")))
    call = decoder.event(received)
    assert isinstance(call, ContainerEvent)
    request = request_of(received, call)
    assert (call.verb, request.id, request.cpuset) == (Verb.CREATE, "c1", CpuSet((2, 3)))


def test_a_pod_is_remembered_until_its_removal(decoder: CallDecoder) -> None:
    """Also where a call that came before is decoded after it: such calls wait in a queue."""
    raw = event(pod=pod(pid=1), container=container())
    other = event(pod=pod("pod2"), container=container("c2", "pod2"))
    call = decoded(decoder, Verb.CREATE, raw)
    assert decoded(decoder, Verb.START, raw).pod is call.pod
    decoded(decoder, Verb.START, other)
    decoder.event(decoder.received(Verb.REMOVE_POD, event(pod=pod(pid=1))))
    late = decoded(decoder, Verb.REMOVE, raw)
    assert (late.pod, list(decoder._pods)) == (call.pod, ["pod2"])
    decoder.list_part(bytes(MESSAGES["SynchronizeRequest"](pods=[pod("pod3")]).SerializeToString()), False)
    assert list(decoder._pods) == ["pod3"]  # the end of the other one was not reported


def test_the_registration_names_the_newest_nri_whose_messages_these_are() -> None:
    """A runtime logs it; without it, "unknown"."""
    [(_, payload)] = ttrpc.Demux().feed(NriSession("vmpin", "90", NriCounters(), set(), {}, 0).register())
    [call] = ttrpc.TtrpcDecoder().feed(payload)
    message = MESSAGES.decode("RegisterPluginRequest", call.payload)
    assert (message.plugin_name, message.plugin_idx, message.NRI_version) == ("vmpin", "90", "v0.12.0")


def test_a_pod_is_decoded_once_and_again_for_a_decision(decoder: CallDecoder) -> None:
    first = decoded(decoder, Verb.START, event(pod=pod(pid=7), container=container()))
    again = decoded(decoder, Verb.POST_START, event(pod=pod(pid=7), container=container()))
    assert again.pod is first.pod
    moved = decoded(decoder, Verb.POST_START, event(pod=pod(pid=8), container=container()))
    assert (moved.pod and moved.pod.pid) == 8
    decided = decoded(decoder, Verb.CREATE, event(pod=pod(pid=8, name="new"), container=container()), again=True)
    assert (decided.pod and decided.pod.name) == "new"


def test_an_updates_request_has_the_resources_that_it_asks_for(decoder: CallDecoder) -> None:
    message = MESSAGES["UpdateContainerRequest"](pod=pod(), container=container(cpus="2-3"))
    message.linux_resources.cpu.cpus = "4"
    message.linux_resources.cpu.mems = "x"
    received = decoder.received(Verb.UPDATE, message.SerializeToString())
    call = decoder.event(received)
    assert isinstance(call, ContainerEvent)
    request = request_of(received, call)
    assert (call.container.cpus, call.requested, request.cpuset, request.mems) == (
        CpuSet((2, 3)), CpuSet((4,)), CpuSet((4,)), None)


def test_a_state_change_of_an_unknown_event_is_its_number(decoder: CallDecoder) -> None:
    def change(number: int) -> ReceivedCall | int:
        return decoder.state_change(MESSAGES["StateChangeEvent"](event=number, pod=pod()).SerializeToString())

    assert (change(0), change(99), change(-1)) == (0, 99, -1)
    received = change(Verb.RUN_POD)
    assert isinstance(received, ReceivedCall)
    run = decoder.event(received)
    assert isinstance(run, PodEvent)
    assert (run.verb, str(run)) == (Verb.RUN_POD, "sandbox=pod1")


def test_the_parts_of_a_list_are_whole_with_the_last(decoder: CallDecoder) -> None:
    def part(number: int, more: bool) -> bytes:
        return bytes(MESSAGES["SynchronizeRequest"](pods=[pod(f"p{number}")], containers=[
            container(f"c{number}", f"p{number}")], more=more).SerializeToString())

    assert decoder.list_part(part(1, more=True), requests=True) is None
    whole = decoder.list_part(part(2, more=False), requests=True)
    assert whole is not None
    assert ([each.id for each in whole.pods], [(each.id, each.pod) for each in whole.requests]) == (
        ["p1", "p2"], [("c1", "web"), ("c2", "web")])
    second = decoder.list_part(part(3, more=False), requests=False)
    assert second is not None
    assert ([each.id for each in second.containers], second.requests) == (["c3"], ())


def test_what_is_no_call_or_no_list_of_a_node_raises(decoder: CallDecoder) -> None:
    with pytest.raises(WireError):
        decoder.received(Verb.CREATE, b"\x12\x05ab")
    many = MESSAGES["SynchronizeRequest"](pods=[MESSAGES["PodSandbox"]()] * (MAX_LISTED + 1), more=True)
    with pytest.raises(WireError, match=f"lists {MAX_LISTED + 1} pods"):
        decoder.list_part(many.SerializeToString(), requests=False)


def test_data_without_use_is_counted_once() -> None:
    counters = NriCounters()
    raw = event(pod=pod(), container=container("../x"))
    decoder = CallDecoder(counters, set())
    assert (decoder.event(decoder.received(Verb.CREATE, raw)), counters.dropped) == (None, 1)


C7, C8 = ContainerId("c7"), ContainerId("c8")


def test_an_answer_that_changes_nothing_has_no_byte() -> None:
    for verb in (Verb.CREATE, Verb.UPDATE, Verb.STOP):
        assert encode_answer(verb, CpuAnswer()) == b""
        assert encode_answer(verb, CpuAnswer(updates=(SideUpdate(C7, CpuSet()),))) == b""


def test_a_creations_answer_alone_has_an_adjustment() -> None:
    answer = CpuAnswer(Adjustment(CpuSet((2, 3)), None, {"a": "b"}, {}), (SideUpdate(C7, CpuSet((0,))),))
    created = MESSAGES.decode("CreateContainerResponse", encode_answer(Verb.CREATE, answer))
    assert (created.adjust.linux.resources.cpu.cpus, dict(created.adjust.annotations)) == ("2-3", {"a": "b"})
    for verb in (Verb.UPDATE, Verb.STOP):
        assert encode_answer(verb, answer) == encode_answer(verb, answer._replace(adjustment=None)) != b""


def test_a_lists_answer_echoes_more_and_leaves_out_empty_updates() -> None:
    assert MESSAGES.decode("SynchronizeResponse", encode_list_answer((), more=True)).more
    last = MESSAGES.decode("SynchronizeResponse", encode_list_answer(
        [SideUpdate(C7, CpuSet((1,))), SideUpdate(C8, CpuSet())], more=False))
    assert (last.more, [each.container_id for each in last.update]) == (False, ["c7"])


def node(path: str, kind: str, major: int, minor: int) -> Any:
    return MESSAGES["LinuxDevice"](path=path.encode(), type=kind.encode(), major=major, minor=minor)


def test_device_nodes_and_addresses_in_the_environment_are_named() -> None:
    nodes = [node("/dev/vfio/12", "c", 511, 3), node("/dev/xvda", "b", 259, 0),
             node("/dev/raw", "u", 162, 1)]
    assert container_devices(nodes, ["PATH=/bin", "PCIDEVICE_INTEL_COM_NIC=0000:3b:00.0,0000:d8:02.1"]) == {
        "0000:3b:00.0": "PCIDEVICE_INTEL_COM_NIC", "0000:d8:02.1": "PCIDEVICE_INTEL_COM_NIC",
        "c511:3": "/dev/vfio/12", "b259:0": "/dev/xvda", "c162:1": "/dev/raw"}


@pytest.mark.parametrize("device", [
    node("/run/pipe", "p", 0, 0), node("/dev/x", "", 1, 3), node("/dev/x", "c", -1, 3),
    node("/dev/x", "b", 8, -1), node("/dev/x", "bc", 8, 1)])
def test_what_is_no_device_is_left_out(device: Any) -> None:
    assert container_devices([device], []) == {}


@pytest.mark.parametrize("entry", [
    "PCIDEVICE_X", "PCIDEVICE_X=", "PCIDEVICE_=0000:3b:00.0", "XPCIDEVICE_X=0000:3b:00.0",
    "PCIDEVICE_X_INFO={\"0000:3b:00.0\":{\"generic\":{\"deviceID\":\"0000:3b:00.0\"}}}",
    "PCIDEVICE_X=3b:00.0", "PCIDEVICE_X=0000:3B:00.0", "PCIDEVICE_X=0000:3b:00.8", "PCIDEVICE_X=../0000:3b:00.0",
    f"PCIDEVICE_X={',' * (MOST_ADDRESSES + 1)}0000:3b:00.0",  # not millions of pieces
    "PCIDEVICE_X=0000:3b:00.0/..", "PCIDEVICE_X=eth0", "PCIDEVICE_X=b8:0", "PCIDEVICE_X=0000:3b:00.0 0000:3b:00.1"])
def test_what_is_no_address_is_left_out(entry: str) -> None:
    assert container_devices([], [entry]) == {}


def test_an_address_is_named_once_by_the_first_variable() -> None:
    env = ["PCIDEVICE_A=0000:3b:00.0, 0000:3b:00.0,nothing", "PCIDEVICE_B=0000:3b:00.0,10000:01:00.1"]
    assert container_devices([], env) == {"0000:3b:00.0": "PCIDEVICE_A", "10000:01:00.1": "PCIDEVICE_B"}


def test_only_so_many_are_read() -> None:
    nodes = (node(f"/dev/tty{minor}", "c", 4, minor) for minor in range(10 * MOST_NODES))
    addresses = [f"0000:{bus:02x}:{slot:02x}.0" for bus in range(20) for slot in range(20)]
    found = container_devices(nodes, [f"PCIDEVICE_X={','.join(addresses)}"])
    assert len(found) == MOST_NODES + MOST_ADDRESSES
    assert "c4:0" in found
    assert addresses[0] in found
    assert next(nodes).minor <= MOST_NODES + 1  # the rest is not even looked at


@given(st.lists(st.text()), st.lists(st.text().map("PCIDEVICE_X=".__add__)))
def test_any_text_is_taken(paths: list[str], env: list[str]) -> None:
    nodes = [node(path, "c", number, number) for number, path in enumerate(paths)]
    assert len(container_devices(nodes, env)) >= len(paths)
