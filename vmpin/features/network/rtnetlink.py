"""rtnetlink: the requests for the links of a network namespace and for the number of another one, and their answers.

A message is `nlmsghdr`, a fixed part, and attributes, in the machine's own byte order (linux/netlink.h,
linux/rtnetlink.h, linux/if_link.h, linux/net_namespace.h). For the watcher, whose loop cannot spare the quarter of a
second that pyroute2 takes to load; commands read namespaces with that (netns_reader).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from vmpin.errors import WireError
from vmpin.features.network.vm_network import NetLink

_HEADER = struct.Struct("=IHHII")
_IFINFO = struct.Struct("=BxHiII")
_RTGEN = struct.Struct("=B3x")
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct("=i")
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE, _NEWLINK, _GETLINK, _NEWNSID, _GETNSID = 2, 3, 16, 18, 88, 90
#: linux/if_link.h: IFLA_…; linux/net_namespace.h: NETNSA_…
_IFNAME, _LINK, _MASTER, _LINKINFO, _LINK_NETNSID, _PARENT_NAME, _PARENT_BUS = 3, 5, 10, 18, 37, 56, 57
_INFO_KIND, _NSID, _NSID_PID = 1, 1, 2
_TYPE = 0x3FFF  #: NLA_TYPE_MASK


def links_request() -> bytes:
    """Make the request for all links of the socket's namespace; `parse_links` takes the datagrams of the answer."""
    return _HEADER.pack(_HEADER.size + _IFINFO.size, _GETLINK, _REQUEST | _DUMP, 0, 0) + _IFINFO.pack(0, 0, 0, 0, 0)


def nsid_request(pid: int) -> bytes:
    """Make the request for the number that the socket's namespace has for that of a process; `parse_nsid` takes the
    answer."""
    payload = _RTGEN.pack(0) + _ATTRIBUTE.pack(_ATTRIBUTE.size + 4, _NSID_PID) + struct.pack("=I", pid)
    return _HEADER.pack(_HEADER.size + len(payload), _GETNSID, _REQUEST, 0, 0) + payload


def parse_links(datagram: bytes) -> tuple[list[NetLink], bool]:
    """The links in one datagram of an answer, and whether it was the last. :raises WireError: for any other bytes."""
    links: list[NetLink] = []
    for kind, payload in _messages(datagram):
        if kind == _DONE:
            return links, True
        if kind == _NEWLINK:
            links.append(_link(payload))
    return links, False


def parse_nsid(datagram: bytes) -> int | None:
    """The number; None where the namespace has none. :raises WireError: also for an error of the kernel's."""
    for kind, payload in _messages(datagram):
        if kind == _NEWNSID:
            number = _number(dict(_attributes(payload[_RTGEN.size:])), _NSID)
            return None if number is None or number < 0 else number
    raise WireError("rtnetlink", "no answer to RTM_GETNSID")


def _messages(datagram: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(datagram):
        length, kind, *_ = _HEADER.unpack_from(datagram, at)
        if length < _HEADER.size or at + length > len(datagram):
            raise WireError("rtnetlink", f"a message of {length} bytes in a datagram of {len(datagram)}")
        payload = datagram[at + _HEADER.size : at + length]
        if kind == _ERROR:
            raise WireError("rtnetlink", f"error {-_NUMBER.unpack_from(payload.ljust(4, bytes(1)))[0]}")
        yield kind, payload
        at += length + 3 & ~3


def _link(payload: bytes) -> NetLink:
    if len(payload) < _IFINFO.size:
        raise WireError("rtnetlink", "a link without its fixed part")
    ifindex = _IFINFO.unpack_from(payload)[2]
    attributes = dict(_attributes(payload[_IFINFO.size:]))
    info = dict(_attributes(attributes.get(_LINKINFO, b"")))
    bus, device = _text(attributes, _PARENT_BUS), _text(attributes, _PARENT_NAME)
    return NetLink(ifindex, _text(attributes, _IFNAME), _text(info, _INFO_KIND), _number(attributes, _LINK) or 0,
                   _number(attributes, _LINK_NETNSID), _number(attributes, _MASTER) or 0,
                   f"{bus}/{device}" if bus and device else "")


def _attributes(raw: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(raw):
        length, kind = _ATTRIBUTE.unpack_from(raw, at)
        if length < _ATTRIBUTE.size or at + length > len(raw):
            raise WireError("rtnetlink", f"an attribute of {length} bytes in {len(raw)}")
        yield kind & _TYPE, raw[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3


def _text(attributes: dict[int, bytes], key: int) -> str:
    return attributes.get(key, b"").partition(b"\0")[0].decode("utf-8", "backslashreplace")


def _number(attributes: dict[int, bytes], key: int) -> int | None:
    raw = attributes.get(key, b"")
    return None if len(raw) != 4 else int(_NUMBER.unpack(raw)[0])
