"""NRI's calls as values, from their bytes."""

from __future__ import annotations

import pytest
from nri_peer import container, pod

from vmpin.cpuset import CpuSet
from vmpin.errors import WireError
from vmpin.sources.nri.call_decoding import MAX_LISTED, CallDecoder, NriCall
from vmpin.sources.nri.nri_events import NriCounters
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES


@pytest.fixture
def decoder() -> CallDecoder:
    return CallDecoder(NriCounters(), set())


def event(**fields: object) -> bytes:
    return bytes(MESSAGES["EventRequest"](**fields).SerializeToString())


def test_a_request_is_read_where_something_decides_alone(decoder: CallDecoder) -> None:
    raw = event(pod=pod(), container=container(cpus="2-3"))
    call = decoder.call(Verb.CREATE, raw, request=False)
    assert (call.verb, call.request) == (Verb.CREATE, None)
    decided = decoder.call(Verb.CREATE, raw, request=True)
    assert decided.container == call.container
    assert decided.request is not None
    assert (decided.request.id, decided.request.cpuset) == ("c1", CpuSet((2, 3)))


def test_an_updates_request_has_the_resources_that_it_asks_for(decoder: CallDecoder) -> None:
    message = MESSAGES["UpdateContainerRequest"](pod=pod(), container=container(cpus="2-3"))
    message.linux_resources.cpu.cpus = "4"
    message.linux_resources.cpu.mems = "x"
    call = decoder.call(Verb.UPDATE, message.SerializeToString(), request=True)
    assert call.container is not None
    assert call.request is not None
    assert (call.container.cpus, call.requested, call.request.cpuset, call.request.mems) == (
        CpuSet((2, 3)), CpuSet((4,)), CpuSet((4,)), None)


def test_a_state_change_of_an_unknown_event_is_its_number(decoder: CallDecoder) -> None:
    def decoded(number: int) -> NriCall | int:
        return decoder.state_change(MESSAGES["StateChangeEvent"](event=number, pod=pod()).SerializeToString())

    assert (decoded(0), decoded(99), decoded(-1)) == (0, 99, -1)
    run = decoded(Verb.RUN_POD)
    assert isinstance(run, NriCall)
    assert (run.verb, run.container, str(run)) == (Verb.RUN_POD, None, "sandbox=pod1 pod=default/web")


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
        decoder.call(Verb.CREATE, b"\x12\x05ab", request=True)
    many = MESSAGES["SynchronizeRequest"](pods=[MESSAGES["PodSandbox"]()] * (MAX_LISTED + 1), more=True)
    with pytest.raises(WireError, match=f"lists {MAX_LISTED + 1} pods"):
        decoder.list_part(many.SerializeToString(), requests=False)


def test_data_without_use_is_counted_once() -> None:
    counters = NriCounters()
    call = CallDecoder(counters, set()).call(Verb.CREATE, event(pod=pod(), container=container("../x")), request=True)
    assert (call.container, call.request, counters.dropped) == (None, None, 1)
