"""Messages from tables: the protobuf library's own, and NRI's as containerd sends them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.errors import WireError
from vmpin.wire import nri_enums
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES
from vmpin.wire.protos import Messages


def test_a_table_makes_every_kind_of_field() -> None:
    table = Messages("kinds", """
        Outer   a=1 b=2:bytes c=3:bool d=4:int32 e=5:int64 f=6:uint32 g=7:uint64 h=8:double \
                many=9:Inner* one=10:Inner labels=11:map numbers=12:int64* words=13:string*
        Inner   text=1 again=2:Outer
    """)
    sent = table["Outer"](a="x", b=b"\xff", c=True, d=-1, e=-(2**63), f=2**32 - 1, g=2**64 - 1, h=0.5,
                          many=[table["Inner"](text="y")], labels={"k": "v"}, numbers=[1, 300], words=["p", "q"])
    sent.one.again.a = "deep"
    read = table.decode("Outer", sent.SerializeToString())
    assert read == sent
    assert dict(read.labels) == {"k": "v"}
    assert read.one.again.a == "deep"
    assert not read.many[0].HasField("again")
    assert b"\x62\x03\x01\xac\x02" in sent.SerializeToString()  # numbers are packed, as proto3 has them


def test_two_tables_may_have_the_same_package() -> None:
    one, other = Messages("same", "Thing a=1"), Messages("same", "Thing a=1:int32")
    assert (one["Thing"](a="x").a, other["Thing"](a=7).a) == ("x", 7)


@pytest.mark.parametrize("table", ["Thing a=1:Nothing", "Thing a=x", "Thing a"])
def test_a_table_that_is_none_is_said_at_once(table: str) -> None:
    with pytest.raises(ValueError):
        Messages("bad", table)


def test_a_message_is_read_as_containerd_sends_it() -> None:
    pod = b"\x0a\x03pod" b"\x12\x03web" b"\x1a\x01u" b"\x22\x07default" b"\x2a\x06\x0a\x01k\x12\x01v" b"\x48\xd2\x09"
    cpu = b"\x12\x05\x32\x03" b"2-3"
    container = (b"\x0a\x01c" b"\x12\x03pod" b"\x1a\x03app" b"\x20\x03" b"\x3a\x05sleep"  # args, which we do not know
                 b"\x5a" + bytes([len(cpu) + 2]) + b"\x1a" + bytes([len(cpu)]) + cpu + b"\x60\x7b")
    raw = b"\x08\x09" b"\x12" + bytes([len(pod)]) + pod + b"\x1a" + bytes([len(container)]) + container
    sent = MESSAGES.decode("StateChangeEvent", raw)
    assert sent.event == Verb.POST_UPDATE
    assert (sent.pod.id, sent.pod.name, sent.pod.uid, sent.pod.namespace, sent.pod.pid) == (
        "pod", "web", "u", "default", 1234)
    assert (sent.container.id, sent.container.pod_sandbox_id, sent.container.name, sent.container.state) == (
        "c", "pod", "app", nri_enums.RUNNING)
    assert (sent.container.linux.resources.cpu.cpus, sent.container.pid) == ("2-3", 123)
    for unknown in b"\x3a\x05sleep", b"\x2a\x06\x0a\x01k\x12\x01v":  # labels, which we do not need
        assert unknown in sent.SerializeToString()  # what is not known is kept


def test_devices_and_environment_are_read_as_containerd_sends_them() -> None:
    """Container: env 8, linux 11; LinuxContainer: devices 2; LinuxDevice: path 1, type 2, major 3, minor 4, mode 5."""
    device = b"\x0a\x08/dev/gpu" b"\x12\x01c" b"\x18\xe2\x01" b"\x20\x80\x01" b"\x2a\x03\x08\xb6\x03"
    linux = b"\x12" + bytes([len(device)]) + device
    sent = MESSAGES.decode("Container", b"\x42\x03A=1" b"\x42\x03B=\xff" b"\x5a" + bytes([len(linux)]) + linux)
    assert list(sent.env) == [b"A=1", b"B=\xff"]  # not UTF-8: not a reason to refuse the message
    [found] = sent.linux.devices
    assert (found.path, found.type, found.major, found.minor) == (b"/dev/gpu", b"c", 226, 128)


def test_an_adjustment_is_sent_as_containerd_reads_it() -> None:
    """ContainerAdjustment: annotations 2, env 4 (key 1, value 2), linux 6 with resources 2; LinuxCPU in 2 of those."""
    cpu = b"\x12\x08" b"\x32\x03" b"2-3" b"\x3a\x01" b"0"
    linux = b"\x32\x0c" b"\x12\x0a" + cpu
    adjust = b"\x12\x06\x0a\x01k\x12\x01v" b"\x22\x06\x0a\x01E\x12\x01x" + linux
    other = b"\x0a\x01d" b"\x12\x09" b"\x0a\x07" b"\x12\x05\x32\x03" b"0-1" b"\x18\x01"
    made = MESSAGES["CreateContainerResponse"](adjust={"annotations": {"k": "v"}, "env": [{"key": "E", "value": "x"}]})
    made.adjust.linux.resources.cpu.cpus, made.adjust.linux.resources.cpu.mems = "2-3", "0"
    update = made.update.add(container_id="d", ignore_failure=True)
    update.linux.resources.cpu.cpus = "0-1"
    others = bytes([len(other)]) + other
    assert made.SerializeToString() == b"\x0a" + bytes([len(adjust)]) + adjust + b"\x12" + others
    same = b"\x0a" + others
    for answer in ("UpdateContainerResponse", "StopContainerResponse"):
        assert MESSAGES[answer](update=made.update).SerializeToString() == same


def test_a_cpu_value_that_is_not_set_differs_from_nought() -> None:
    cpu = MESSAGES.decode("LinuxCPU", b"\x0a\x03\x08\x80\x08" b"\x12\x0b\x08" + b"\xff" * 9 + b"\x01")
    assert (cpu.shares.value, cpu.quota.value, cpu.HasField("period")) == (1024, -1, False)
    assert MESSAGES.decode("LinuxCPU", b"\x12\x00").HasField("quota")


def test_the_mask_is_made_of_bits() -> None:
    assert MESSAGES["ConfigureResponse"](events=0x1FF).SerializeToString() == bytes.fromhex("10ff03")
    assert [nri_enums.mask(event) for event in (
        Verb.RUN_POD, Verb.STOP_POD, Verb.REMOVE_POD, Verb.CREATE,
        Verb.POST_CREATE, Verb.START, Verb.POST_START, Verb.UPDATE,
        Verb.POST_UPDATE, Verb.STOP, Verb.REMOVE)] == [1 << bit for bit in range(11)]


@given(st.integers(-(2**31), 2**31 - 1))
def test_an_event_of_a_later_version_is_a_number(event: int) -> None:
    raw = MESSAGES["StateChangeEvent"](event=event).SerializeToString()
    assert MESSAGES.decode("StateChangeEvent", raw).event == event


@pytest.mark.parametrize("raw", [b"\x12", b"\x12\x05ab", b"\xff" * 12, b"\x12\x03\x0a\x01\xff"])
def test_what_is_no_message_is_an_error(raw: bytes) -> None:
    with pytest.raises(WireError, match=r"nri\.pkg\.api\.v1alpha1\.StateChangeEvent"):
        MESSAGES.decode("StateChangeEvent", raw)
