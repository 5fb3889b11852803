"""The proc connector's messages: as the kernel makes them, malformed, and the filter as the kernel runs it."""

from __future__ import annotations

import array
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.errors import WireError
from vmpin.wire import proc_events
from vmpin.wire.proc_events import (
    COMM,
    EXEC,
    EXIT,
    FORK,
    MCAST_IGNORE,
    MCAST_LISTEN,
    Comm,
    Event,
    Exec,
    Exit,
    Fork,
)

#: As Linux 6.18 sent them.
RECORDED = [
    ("4c00000003000000a8b60200000000000100000001000000a8b60200000000002800000001000000010000006b034d88f2190000"
     "b8550000b8550000ba550000b95500000000000000000000", Fork(28529459528555, 21944, 21944, 21946, 21945)),
    ("4c00000003000000a7b60200000000000100000001000000a7b6020000000000280000000200000001000000313b6387f2190000"
     "b9550000b955000000000000000000000000000000000000", Exec(28529444207409, 21945)),
    ("4c00000003000000a9b60200000000000100000001000000a9b6020000000000280000000002000001000000dc0f4f88f2190000"
     "ba550000b955000043505520302f54434700000000000000", Comm(28529459662812, 21946, 21945, "CPU 0/TCG")),
    ("4c00000003000000aab60200000000000100000001000000aab602000000000028000000000000800100000008f27a88f2190000"
     "b9550000b95500000000000011000000b8550000b8550000", Exit(28529462538760, 21945, 21945)),
    ("4c0000000300000091800300000000000100000001000000918003000100000028000000000000000000000078284887f2190000"
     "000000000000000000000000000000000000000000000000", None),  # the answer to the subscription
]


def made(what: int, time: int, data: bytes) -> bytes:
    body = struct.pack("=IIQ", what, 1, time) + data.ljust(24, b"\0")
    return (struct.pack("=IHHII", 36 + len(body), 3, 0, 0, 0) + struct.pack("=IIIIHH", 1, 1, 7, 0, len(body), 0)
            + body)


u32, u64 = st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFFFFFFFFFF)
names = st.binary(max_size=15).filter(lambda raw: b"\0" not in raw)


@pytest.mark.parametrize(("raw", "event"), RECORDED, ids=[type(event).__name__ for _, event in RECORDED])
def test_events_as_the_kernel_sends_them(raw: str, event: Event | None) -> None:
    assert proc_events.parse(bytes.fromhex(raw)) == event


@given(u64, u32, u32, u32, u32, names)
def test_every_field_is_read_from_its_place(time: int, one: int, two: int, three: int, four: int, name: bytes) -> None:
    assert proc_events.parse(made(FORK, time, struct.pack("=IIII", one, two, three, four))) == Fork(
        time, one, two, three, four)
    assert proc_events.parse(made(EXEC, time, struct.pack("=II", one, two))) == Exec(time, two)
    assert proc_events.parse(made(COMM, time, struct.pack("=II16s", one, two, name))) == Comm(
        time, one, two, name.decode("utf-8", "replace"))
    assert proc_events.parse(made(EXIT, time, struct.pack("=IIII", one, two, three, four))) == Exit(time, one, two)


@given(u32.filter(lambda what: what not in (FORK, EXEC, COMM, EXIT)), u64)
def test_other_events_are_none_of_ours(what: int, time: int) -> None:
    assert proc_events.parse(made(what, time, b"")) is None


@given(st.binary(max_size=120))
def test_anything_else_is_refused(raw: bytes) -> None:
    try:
        proc_events.parse(raw)
    except WireError:
        return
    assert raw[4:6] == struct.pack("=H", 3)
    assert raw[16:24] == struct.pack("=II", 1, 1)


@given(st.sampled_from([bytes.fromhex(raw) for raw, _ in RECORDED]), st.data())
def test_a_spoilt_message_is_an_event_or_refused(raw: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(raw) - 1))
    spoilt = raw[:at] + bytes([data.draw(st.integers(0, 255))]) + raw[at + 1:]
    cut = spoilt[: data.draw(st.integers(0, len(spoilt)))]
    for each in (spoilt, cut):
        try:
            found = proc_events.parse(each)
        except WireError:
            continue
        assert found is None or isinstance(found, Event)


@pytest.mark.parametrize("length", [0, 16, 35, 51])
def test_what_is_too_short_is_refused(length: int) -> None:
    with pytest.raises(WireError):
        proc_events.parse(bytes.fromhex(RECORDED[0][0])[:length])


def test_an_event_that_ends_before_its_fields_is_refused() -> None:
    raw = bytearray(made(COMM, 1, struct.pack("=II16s", 1, 2, b"name")))
    struct.pack_into("=H", raw, 32, 39)
    with pytest.raises(WireError):
        proc_events.parse(bytes(raw))


@pytest.mark.parametrize("operation", [MCAST_LISTEN, MCAST_IGNORE])
def test_what_is_asked_for(operation: int) -> None:
    plain, choosing = proc_events.subscription(operation), proc_events.subscription(operation, FORK | COMM)
    assert plain == struct.pack("=IHHII", 40, 3, 0, 0, 0) + struct.pack("=IIIIHHI", 1, 1, 0, 0, 4, 0, operation)
    assert choosing == (struct.pack("=IHHII", 44, 3, 0, 0, 0)
                        + struct.pack("=IIIIHHII", 1, 1, 0, 0, 8, 0, operation, 0x201))


@given(u64, u32, u32, u32)
def test_the_kernel_keeps_what_is_nothing_to_us_away(time: int, parent: int, child: int, process: int) -> None:
    forks = [(parent, parent, child, child), (parent, parent, child, process), (0, 2, child, child)]
    sent = [made(FORK, time, struct.pack("=IIII", *numbers)) for numbers in forks]
    sent += [made(what, time, struct.pack("=II", parent, parent)) for what in (EXEC, COMM, EXIT, 0x0, 0x4)]

    def expected(*followed: int) -> list[proc_events.Event]:
        forked = [Fork(time, *numbers) for numbers in forks if followed and (
            numbers[1] == 2 or (numbers[2] != numbers[3] and numbers[3] in followed))]
        named = [Comm(time, parent, parent, "")] if parent in followed else []
        return [*forked, Exec(time, parent), *named]

    assert passed(proc_events.socket_filter(), sent) == expected(parent, process)
    assert passed(proc_events.socket_filter([parent, process]), sent) == expected(parent, process)
    assert passed(proc_events.socket_filter([parent ^ 1]), sent) == expected(parent ^ 1)
    assert passed(proc_events.socket_filter([]), sent) == expected()


@pytest.mark.parametrize("count", [0, 1, 250, 251, 1000, proc_events.MAX_FOLLOWED])
def test_only_names_and_threads_in_chosen_processes_are_passed(count: int) -> None:
    chosen = [1000 + 3 * number for number in range(count)]
    asked = [999, 1001, 1002, *chosen[:2], *chosen[248:252], *chosen[-2:], 1000 + 3 * count, (1 << 32) - 1]
    names = [made(COMM, 1, struct.pack("=II16s", 7, process, b"CPU 0/KVM")) for process in asked]
    threads = [made(FORK, 1, struct.pack("=IIII", 8, 8, 7, process)) for process in asked]
    for sent in names, threads:
        given = passed(proc_events.socket_filter(chosen), sent)
        assert [each.process for each in given if isinstance(each, Comm | Fork)] == [
            pid for pid in asked if pid in set(chosen)]


def passed(filter: bytes, messages: list[bytes]) -> list[proc_events.Event | None]:
    """What the kernel's own interpreter passes, on datagrams of another kind of socket."""
    program = array.array("B", filter)
    to, here = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with to, here:
        here.setsockopt(socket.SOL_SOCKET, 26, struct.pack("@HP", len(program) // 8, program.buffer_info()[0]))
        here.setblocking(False)
        for message in messages:
            to.send(message)
        found = []
        while True:
            try:
                found.append(proc_events.parse(here.recv(512)))
            except BlockingIOError:
                break
    return found
