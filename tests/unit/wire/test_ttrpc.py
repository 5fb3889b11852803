"""ttRPC's frames and its two messages, against bytes that containerd has sent and accepted."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.errors import WireError
from vmpin.wire.protos import Messages
from vmpin.wire.ttrpc import (
    MAX_MESSAGE,
    MAX_RECEIVED,
    MAX_SENT,
    PLUGIN,
    RUNTIME,
    Call,
    Demux,
    Reply,
    TtrpcDecoder,
    encode,
    frames,
)

#: request.proto, read by the protobuf library: what this codec has to agree with.
PROTO = Messages("ttrpc", """
    Request    service=1 method=2 payload=3:bytes timeout_nano=4:int64 metadata=5:KeyValue*
    KeyValue   key=1 value=2
    Response   status=1:Status payload=2:bytes
    Status     code=1:int32 message=2
""")

texts = st.text(st.characters(codec="utf-8"), max_size=20)
requests = st.builds(Call, st.integers(0, 2**32 - 1), texts, texts, st.binary(max_size=200),
                     st.integers(-(2**63), 2**63 - 1))
responses = st.builds(Reply, st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1), texts,
                      st.binary(max_size=200))


def framed(stream: int, kind: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">IIBB", len(body), stream, kind, flags) + body


def test_a_registration_is_what_containerd_takes() -> None:
    payload = b"\x0a\x05vmpin\x12\x0290"
    raw = encode(Call(1, "nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", payload))
    body = b"\x0a\x1cnri.pkg.api.v1alpha1.Runtime\x12\x0eRegisterPlugin\x1a\x0b" + payload
    assert raw == bytes.fromhex("0000003b 00000001 01 00") + body


def test_an_empty_success_has_no_body() -> None:
    assert encode(Reply(1)) == bytes.fromhex("00000000 00000001 02 00")
    assert TtrpcDecoder().feed(bytes.fromhex("00000000 00000003 02 00")) == [Reply(3)]


def test_a_reply_to_configure_is_what_containerd_takes() -> None:
    payload = bytes.fromhex("10ff03")  # events = 0x1ff
    assert encode(Reply(1, payload=payload)) == bytes.fromhex("00000005 00000001 02 00 12 03 10 ff 03")


def test_a_configure_is_read_as_containerd_sends_it() -> None:
    payload = bytes(0x21)
    body = bytes.fromhex("0a1b") + b"nri.pkg.api.v1alpha1.Plugin" + bytes.fromhex("1209") + b"Configure"
    raw = bytes.fromhex("00000051 00000001 01 00") + body + bytes.fromhex("1a21") + payload + bytes.fromhex(
        "20 80 94 eb dc 03")  # one second to answer
    assert len(raw) == 0x51 + 10  # as the golden frame is long
    assert TtrpcDecoder().feed(raw) == [
        Call(1, "nri.pkg.api.v1alpha1.Plugin", "Configure", payload, 1_000_000_000)]


def test_an_error_has_a_code_and_a_text() -> None:
    raw = encode(Reply(7, 12, "no method X"))
    assert raw == framed(7, 2, b"\x0a\x0f\x08\x0c\x12\x0bno method X")
    assert TtrpcDecoder().feed(raw) == [Reply(7, 12, "no method X")]


@given(requests)
def test_a_request_is_protobuf(request: Call) -> None:
    raw = encode(request)
    assert TtrpcDecoder().feed(raw) == [request]
    message = PROTO.decode("Request", raw[10:])
    assert (message.service, message.method, message.payload, message.timeout_nano) == request[1:]
    assert message.SerializeToString() == raw[10:]


@given(responses)
def test_a_response_is_protobuf(response: Reply) -> None:
    raw = encode(response)
    assert TtrpcDecoder().feed(raw) == [response]
    message = PROTO.decode("Response", raw[10:])
    assert (message.status.code, message.status.message, message.payload) == response[1:]


def test_what_is_not_known_is_skipped() -> None:
    message = PROTO["Request"](service="s", method="m", metadata=[PROTO["KeyValue"](key="a", value="b")])
    body = message.SerializeToString() + b"\x49" + bytes(8) + b"\x55" + bytes(4) + b"\x78\x05"  # fields 9, 10 and 15
    assert TtrpcDecoder().feed(framed(1, 1, body, flags=0xFF)) == [Call(1, "s", "m")]
    # A field of ours with the wrong wire type is one we do not know either, as protobuf has it.
    assert TtrpcDecoder().feed(framed(1, 1, b"\x08\x01")) == [Call(1, "", "")]


def test_messages_of_other_types_are_skipped() -> None:
    decoder = TtrpcDecoder()
    raw = encode(Reply(1)) + framed(5, 3, b"data" * 1000) + framed(5, 9, b"") + encode(Reply(3))
    assert [message for byte in raw for message in decoder.feed(bytes([byte]))] == [Reply(1), Reply(3)]


@given(st.lists(st.one_of(requests, responses), max_size=5), st.data())
def test_every_split_gives_the_same_messages(message: list[Call | Reply], data: st.DataObject) -> None:
    raw = b"".join(map(encode, message))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    decoder = TtrpcDecoder()
    found: list[Call | Reply] = []
    for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += decoder.feed(raw[begin:end])
    assert found == message


def test_a_message_too_long_is_refused_with_its_header() -> None:
    assert TtrpcDecoder().feed(struct.pack(">IIBB", MAX_MESSAGE, 1, 1, 0)) == []
    for kind in 1, 2, 3:
        decoder = TtrpcDecoder()
        for byte in struct.pack(">IIBB", 5 << 20, 1, kind, 0)[:-1]:
            assert decoder.feed(bytes([byte])) == []
        with pytest.raises(WireError, match="5242880 bytes long, at most 4194304"):
            decoder.feed(b"\0")
        with pytest.raises(WireError, match="5242880"):
            decoder.feed(encode(Reply(1)))  # where it would begin cannot be found
    with pytest.raises(WireError, match="at most 10 "):
        TtrpcDecoder(limit=10).feed(framed(1, 1, bytes(11)))


@pytest.mark.parametrize("body", [
    b"\x0a", b"\x0a\x05abc", b"\x0a\xff\xff\xff\xff\x7f", b"\x80", b"\x08" + b"\xff" * 10, b"\x00\x00", b"\x0b",
    b"\x0c", b"\x0f", b"\x09\x00", b"\x0d\x00", b"\x0a\x01\xff",
])
def test_a_body_that_is_no_protobuf_is_an_error(body: bytes) -> None:
    with pytest.raises(WireError):
        TtrpcDecoder().feed(framed(1, 1, body))


def test_the_text_of_an_error_may_be_anything() -> None:
    found = TtrpcDecoder().feed(framed(1, 2, b"\x0a\x05\x08\x02\x12\x01\xff"))
    assert found == [Reply(1, 2, "\N{REPLACEMENT CHARACTER}")]


def test_a_message_beyond_the_limit_is_not_sent() -> None:
    with pytest.raises(WireError, match="too long to send"):
        encode(Call(1, "s", "m", bytes(MAX_MESSAGE)))


def streams(found: Iterable[tuple[int, bytes]]) -> dict[int, bytes]:
    joined: dict[int, bytes] = {}
    for connection, payload in found:
        joined[connection] = joined.get(connection, b"") + payload
    return joined


def test_a_frame_is_two_numbers_and_a_payload() -> None:
    # What a containerd 2.1 sends to grant a registration.
    raw = bytes.fromhex("00000002 0000000a 00000000 00000001 02 00")
    assert Demux().feed(raw) == [(RUNTIME, bytes.fromhex("00000000 00000001 02 00"))]
    assert frames(RUNTIME, raw[8:]) == raw


def test_what_is_sent_is_cut_where_the_go_side_would_break() -> None:
    payload = bytes(range(256)) * 33
    raw = frames(PLUGIN, payload)
    lengths = []
    at = 0
    while at < len(raw):
        connection, length = struct.unpack_from(">II", raw, at)
        assert connection == PLUGIN
        lengths.append(length)
        at += 8 + length
    assert lengths == [4096, 4096, 256]
    assert streams(Demux().feed(raw)) == {PLUGIN: payload}
    assert frames(PLUGIN, bytes(MAX_SENT)) == struct.pack(">II", PLUGIN, MAX_SENT) + bytes(MAX_SENT)
    assert frames(PLUGIN, b"") == b""


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=40)), max_size=8), st.data())
def test_every_split_gives_the_same_streams(sent: list[tuple[int, bytes]], data: st.DataObject) -> None:
    raw = b"".join(struct.pack(">II", connection, len(payload)) + payload for connection, payload in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    demux = Demux()
    found: list[tuple[int, bytes]] = []
    for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += demux.feed(raw[begin:end])
    assert streams(found) == streams((connection, payload) for connection, payload in sent if payload)


def test_byte_by_byte_is_a_split_as_well() -> None:
    raw = frames(1, b"abc") + frames(2, b"de") + frames(1, b"f")
    demux = Demux()
    assert streams(item for byte in raw for item in demux.feed(bytes([byte]))) == {1: b"abcf", 2: b"de"}


def test_a_frame_longer_than_any_is_refused_with_its_header() -> None:
    assert Demux().feed(struct.pack(">II", 1, MAX_RECEIVED)) == []
    demux = Demux()
    with pytest.raises(WireError, match="5000000 bytes long"):
        demux.feed(struct.pack(">II", 1, 5_000_000))
    with pytest.raises(WireError, match="5000000 bytes long"):
        demux.feed(b"\0")  # and for ever
