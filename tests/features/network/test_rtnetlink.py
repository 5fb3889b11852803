"""Messages of the running kernel, and those that no kernel sends."""

from __future__ import annotations

import contextlib
import socket
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.errors import WireError
from vmpin.features.network.rtnetlink import links_request, nsid_request, parse_links, parse_nsid
from vmpin.features.network.vm_network import NetLink

#: RTM_NEWLINK of `eth0`, a veth with its peer 7 in namespace 3, in master 9, on pci 0000:3b:00.0.
_KIND = struct.pack("=HH5s3x", 9, 1, b"veth\0")
LINK = b"".join((
    struct.pack("=BxHiII", 0, 1, 4, 0, 0), struct.pack("=HH5s3x", 9, 3, b"eth0\0"), struct.pack("=HHi", 8, 5, 7),
    struct.pack("=HHi", 8, 10, 9), struct.pack("=HH", 4 + len(_KIND), 18 | 0x8000) + _KIND,
    struct.pack("=HHi", 8, 37, 3), struct.pack("=HH13s3x", 17, 56, b"0000:3b:00.0\0"),
    struct.pack("=HH4s", 8, 57, b"pci\0")))


def message(kind: int, payload: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, 2, 0, 0) + payload


DONE = message(3, bytes(4))


def test_a_link_is_read_with_all_that_a_path_needs() -> None:
    assert parse_links(message(16, LINK) + DONE) == (
        [NetLink(4, "eth0", "veth", 7, 3, 9, "pci/0000:3b:00.0")], True)
    assert parse_links(message(16, LINK)) == ([NetLink(4, "eth0", "veth", 7, 3, 9, "pci/0000:3b:00.0")], False)


def test_a_namespace_without_a_number_has_none() -> None:
    assert parse_nsid(message(88, bytes(4) + struct.pack("=HHi", 8, 1, 5))) == 5
    assert parse_nsid(message(88, bytes(4) + struct.pack("=HHi", 8, 1, -1))) is None


@pytest.mark.parametrize("raw", [
    message(2, struct.pack("=i", -1)), struct.pack("=IHHII", 9999, 16, 0, 0, 0), message(16, b"short"),
    message(16, LINK[:16] + struct.pack("=HH", 2, 3)), message(16, LINK[:16] + struct.pack("=HH", 99, 3))])
def test_what_is_no_answer_is_an_error(raw: bytes) -> None:
    with pytest.raises(WireError):
        parse_links(raw)
    with pytest.raises(WireError):
        parse_nsid(raw)


@given(st.binary(max_size=200), st.integers(0, 150))
def test_no_bytes_raise_anything_else(noise: bytes, at: int) -> None:
    raw = message(16, LINK) + DONE
    for each in (noise, raw[:at] + noise + raw[at:], raw[:at], message(16, noise), message(88, noise)):
        with contextlib.suppress(WireError):
            parse_links(each)
        with contextlib.suppress(WireError):
            parse_nsid(each)


def test_the_kernel_takes_the_requests_and_its_answers_are_read() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(60)
        netlink.send(links_request())
        links, last = [], False
        while not last:
            more, last = parse_links(netlink.recv(1 << 16))
            links += more
        netlink.send(nsid_request(1))
        assert parse_nsid(netlink.recv(1 << 16)) in (None, *range(1000))
        netlink.send(nsid_request(2**22 + 1))
        with pytest.raises(WireError, match="error 3"):
            parse_nsid(netlink.recv(1 << 16))
    assert {link.ifindex: link.name for link in links} == {number: name for number, name in socket.if_nameindex()}
    assert all(before.ifindex != after.ifindex for before, after in pairwise(links))
