"""Frames and messages between host and guest, and what neither end must fall for."""

from __future__ import annotations

import json
import os
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from effort import effort
from guest_fuzz import frame, spoilt

from vmpin.cpuset import MAX_REGIONS, CpuSet
from vmpin.protocol.frames import (
    MAX_CPUS,
    MAX_FRAME,
    FrameDecoder,
    ProtocolError,
    clean,
    encode,
    format_ids,
    parse_ids,
)
from vmpin.protocol.messages import (
    APPLIED,
    PENDING,
    AgentMessage,
    Applied,
    ContainerOutcome,
    ContainerVcpus,
    Failure,
    HostMessage,
    NeedMap,
    Ping,
    Pong,
    Unpin,
    VcpuMap,
    as_json,
)
from vmpin.protocol.parsing import MAX_CONTAINERS, UnknownMessage, VersionError, parse_answer, parse_request

REQUESTS: list[HostMessage] = [
    Ping(1), Unpin(3), VcpuMap(5, 7, "pod", {}),
    VcpuMap(6, 8, "pod", {"a": ContainerVcpus((0, 2, 3), True), "b.c-1": ContainerVcpus((0x10000,))}, (1,), True),
    VcpuMap(7, 9, "pod", {"a": ContainerVcpus((0,), True, CpuSet([14, 15])), "b": ContainerVcpus((1,))}),
]
ANSWERS: list[AgentMessage] = [
    Pong(1, "0.1.0"), Pong(2, "0.1.0", "hardware ids are guessed"),
    Applied(5, 7, {"a": ContainerOutcome(APPLIED, "/x/a", CpuSet([1]), CpuSet([1]), 1, 2),
                   "b": ContainerOutcome(PENDING, None, CpuSet([2]), CpuSet(), 1, 2, (77, 78),
                                         "why")}, ContainerOutcome(APPLIED)),
    NeedMap(), Failure(3, "unknown message"), Failure(None, "no"),
]


def decoded(raw: bytes) -> dict[str, Any]:
    (message,) = FrameDecoder().feed(raw)
    return message


@pytest.mark.parametrize("request_", REQUESTS)
def test_what_the_host_says_arrives(request_: HostMessage) -> None:
    assert parse_request(decoded(encode(as_json(request_)))) == request_


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_the_agent_says_arrives(answer: AgentMessage) -> None:
    assert parse_answer(decoded(encode(as_json(answer)))) == answer


def test_messages_come_out_however_the_stream_is_cut() -> None:
    raw = b"".join(encode(as_json(each)) for each in REQUESTS)
    decoder = FrameDecoder()
    found = [message for at in range(len(raw)) for message in decoder.feed(raw[at : at + 1])]
    assert [parse_request(each) for each in found] == REQUESTS
    assert FrameDecoder().feed(raw) == found
    assert decoder.pending == 0


@pytest.mark.parametrize("length", [0, 1, MAX_FRAME + 1, 1 << 30, (1 << 32) - 1])
def test_a_length_that_cannot_be_is_refused_at_once(length: int) -> None:
    decoder = FrameDecoder()
    with pytest.raises(ProtocolError, match=f"is {length} bytes long"):
        decoder.feed(struct.pack(">I", length))
    with pytest.raises(ProtocolError):
        decoder.feed(encode(as_json(Ping(1))))


@pytest.mark.parametrize(("body", "why"), [
    (b"[" * 100, "16 deep"), (b'{"a":' * 5000 + b"1", "16 deep"), (b"[" * MAX_FRAME, "32768 values"),
    (b"[" + b"1," * 200_000 + b"1]", "32768 values"),
    (b'{"a":' + b"9" * 1_000_000 + b"}", "a number is too long"), (b'{"a":1e999999999999999999999999999999999999999}',
                                                                  "too long"), (b'{"a":-1e999}', "is infinite"),
    (b'""' * 100_000, "32768 values"),
    (b'{"a":NaN}', "no JSON"), (b'{"a":-Infinity}', "no JSON"), (b"[]", "no JSON object"), (b"17", "no JSON object"),
    (b'{"a"', "no JSON"), (b"\xff\xfe{}", "no JSON"), (b'{"a":"\xc0\x80"}', "no JSON"), (b"  ", "no JSON"),
])
def test_a_frame_that_holds_something_else_is_refused_at_little_cost(body: bytes, why: str) -> None:
    def refuse() -> None:
        with pytest.raises(ProtocolError, match=why):
            FrameDecoder().feed(frame(body))

    assert effort(refuse, 1) < 400


@pytest.mark.parametrize("body", [
    b'{"a":"' + b"[" * 1000 + b'"}', b'{"a":"\\"' + b"[{" * 1000 + b'"}', b'{"a":"\\\\","b":"' + b"{" * 1000 + b'"}',
])
def test_brackets_within_text_are_not_depth(body: bytes) -> None:
    assert FrameDecoder().feed(frame(body)) == [json.loads(body)]


@pytest.mark.parametrize("body", [b'{"a":"\\\\",' + b'"b":' + b"[" * 20, b'{"a":"\\"","b":' + b"[" * 20])
def test_depth_does_not_hide_behind_escapes(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="deep"):
        FrameDecoder().feed(frame(body))


def test_no_more_than_a_frame_is_kept() -> None:
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        decoder.feed(struct.pack(">I", MAX_FRAME))
        for _ in range(15):
            decoder.feed(bytes(1 << 16))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_too_long_a_message_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="too long to send"):
        encode({"a": "x" * MAX_FRAME})


def test_unknown_fields_are_ignored_and_missing_ones_are_nothing() -> None:
    assert parse_request({"v": 1, "type": "ping", "id": 1, "colour": ["blue"]}) == Ping(1)
    assert parse_answer({"v": 1, "type": "applied", "generation": 3}) == Applied(None, 3, {})
    parsed = parse_request({"v": 1, "type": "map", "generation": 1, "containers": {"a": {"hw": "1", "later": {}}}})
    assert parsed == VcpuMap(None, 1, "", {"a": ContainerVcpus((1,))})


@pytest.mark.parametrize("parse", [parse_request, parse_answer])
def test_an_unknown_type_and_another_version_are_distinguished(parse: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(UnknownMessage, match="unknown message") as unknown:
        parse({"v": 1, "type": "dance", "id": 9})
    assert unknown.value.id == 9
    with pytest.raises(VersionError, match="version 2 of the protocol, this end speaks 1") as other:
        parse({"v": 2, "type": "ping", "id": 9})
    assert other.value.id == 9
    for version in None, True, "1", 1 << 70, [1]:
        with pytest.raises(VersionError):
            parse({"v": version, "type": "ping"})


@pytest.mark.parametrize(("field", "value", "why"), [
    ("id", -1, "id is no number"), ("id", True, "id is no number"), ("id", 1 << 64, "id is no number"),
    ("id", "1", "id is no number"), ("type", 3, "type is no text"), ("generation", None, "generation is not"),
    ("generation", 1.5, "generation is not"), ("generation", 1 << 63, "generation is not"),
    ("sandbox", 3, "sandbox is not text"), ("export", 1, "export is not true or false"),
    ("containers", [], "containers is not an object"), ("containers", {"../x": {"hw": "1"}}, "no container's id"),
    ("containers", {"": {"hw": "1"}}, "no container's id"), ("containers", {"a\n": {"hw": "1"}}, "no container's id"),
    ("containers", {"a": None}, "container a: no object"), ("containers", {"a": {}}, "container a: hw"),
    ("containers", {"a": {"hw": [1]}}, "container a: hw"), ("containers", {"a": {"hw": "1-"}}, "no id or range"),
    ("containers", {"a": {"hw": "0-99999999999"}}, "no range of ids"),
    ("containers", {"a": {"hw": "1", "exclusive": 0}}, "container a: exclusive"),
    ("containers", {"a": {"hw": "1", "host": 3}}, "container a: host is not text"),
    ("containers", {"a": {"hw": "1", "host": "3-1"}}, "container a: host"),
    ("containers", {f"c{n}": {"hw": "1"} for n in range(1025)}, "at most 1024"), ("system", [], "system: no object"),
    ("system", {"hw": "x"}, "system: hw"),
])
def test_a_map_that_is_wrong_says_what_is(field: str, value: object, why: str) -> None:
    good = as_json(VcpuMap(1, 2, "pod", {"a": ContainerVcpus((1,))}, (0,)))
    assert parse_request(good)
    with pytest.raises(ProtocolError, match=why):
        parse_request({**good, field: value})


@pytest.mark.parametrize(("field", "value"), [
    ("state", "fine"), ("state", 1), ("wanted", "3-1"), ("wanted", "0-99999"), ("effective", 3), ("processes", -1),
    ("threads", 1 << 63), ("outside", [True]), ("outside", ["1"]), ("outside", list(range(17))), ("error", {}),
    ("cgroup", 1),
])
def test_an_outcome_that_is_wrong_is_refused(field: str, value: object) -> None:
    with pytest.raises(ProtocolError, match="container a: "):
        parse_answer({"v": 1, "type": "applied", "generation": 1,
                      "containers": {"a": {"state": "applied", field: value}}})


def test_text_comes_out_printable_and_short() -> None:
    parsed = parse_answer({"v": 1, "type": "error", "error": "\x1b[2J\ud800\n" + "x" * 1000})
    assert isinstance(parsed, Failure)
    assert parsed.error.startswith("\\x1b[2J\\ud800\\nxxx")
    assert parsed.error.isprintable()
    assert len(parsed.error) == 400
    assert clean("abc", 3) == "abc"


@pytest.mark.parametrize(("text", "ids"), [
    ("", ()), ("0", (0,)), ("3,0-1", (0, 1, 3)), ("65536-65537", (65536, 65537)), ("0,0,0", (0,)),
    ("1099511627775", ((1 << 40) - 1,)),
])
def test_hardware_ids(text: str, ids: tuple[int, ...]) -> None:
    assert parse_ids(text) == ids
    assert parse_ids(format_ids(ids)) == ids


@pytest.mark.parametrize("text", ["a", "1-0", "-1", "1099511627776", "0-9999", "0-8191,9000-9001", "1;2", "٣"])
def test_what_is_no_hardware_id_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_ids(text)


def test_ids_are_counted_before_they_are_made() -> None:
    """A range repeated without end adds nothing to a set, and costs as much each time."""
    with pytest.raises(ProtocolError, match="more than 8192 ids"):
        parse_ids("0-8191," * 2 + "no id")
    assert len(parse_ids("0-4095,4096-8191")) == 8192


def outcomes(lists: Iterable[str]) -> dict[str, object]:
    return {"v": 1, "type": "applied", "generation": 1,
            "containers": {f"c{number}": {"state": "applied", "wanted": text} for number, text in enumerate(lists)}}


@pytest.mark.parametrize("text", ["0-8191:1/4095", "0-7:2/4", "3,0-1:1/2"])
def test_a_guest_sends_no_strides(text: str) -> None:
    with pytest.raises(ProtocolError, match="which only people write"):
        parse_answer(outcomes([text]))


def test_the_lists_of_a_message_are_bounded_together_and_equal_ones_count_once() -> None:
    many = ",".join(str(2 * number) for number in range(MAX_REGIONS // 2))
    assert isinstance(parse_answer(outcomes([many] * MAX_CONTAINERS)), Applied)
    parse_answer(outcomes([many, "1," + many.removesuffix(f",{MAX_REGIONS - 2}")]))
    with pytest.raises(ProtocolError, match="at most 0 are read"):
        parse_answer(outcomes([many, "1," + many.removesuffix(f",{MAX_REGIONS - 2}"), "7"]))


def test_the_hardware_ids_of_a_message_are_bounded_together() -> None:
    good = as_json(VcpuMap(1, 2, "pod", {}))
    lists = [f"{first}-{first + MAX_CPUS - 1}" for first in range(5)]
    many = {f"c{number}": {"hw": lists[number % 4]} for number in range(MAX_CONTAINERS)}
    assert parse_request({**good, "containers": many})
    with pytest.raises(ProtocolError, match="more than 0 ids"):
        parse_request({**good, "containers": {f"c{number}": {"hw": text} for number, text in enumerate(lists)}})


@pytest.mark.parametrize("text", ["\x80" * 100_000, "a\x80" * 100_000, "\ue000b" * 50_000])
def test_a_long_text_is_escaped_as_far_as_it_is_shown(text: str) -> None:
    shown = clean(text)
    assert (len(shown), shown.isprintable()) == (400, True)
    assert shown == clean(text[:401])


def test_neither_end_falls_for_anything() -> None:
    seed = os.environ.get("VMPIN_FUZZ_SEED") or "guestproto"
    chance = random.Random(seed)
    frames = [encode(as_json(each)) for each in [*REQUESTS, *ANSWERS]]
    refused = taken = 0
    for number in range(50_000):
        raw = spoilt(chance, chance.choice(frames))
        try:
            messages = FrameDecoder().feed(raw)
        except ProtocolError:
            refused += 1
            continue
        except Exception as err:
            pytest.fail(f"seed {seed}, {number}: {err!r} of {raw!r}")
        for message in messages:
            for parse in parse_request, parse_answer:
                try:
                    encode(as_json(parse(message)))
                    taken += 1
                except ProtocolError:
                    refused += 1
                except Exception as err:
                    pytest.fail(f"seed {seed}, {number}: {err!r} of {message!r}")
    assert refused > 1000
    assert taken > 1000
