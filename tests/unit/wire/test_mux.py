"""NRI's multiplexer: frames are cut and joined anywhere, and only their length can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.errors import WireError
from vmpin.wire.mux import MAX_RECEIVED, MAX_SENT, PLUGIN, RUNTIME, Demux, frames


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
        demux.feed(b"")  # and for ever
