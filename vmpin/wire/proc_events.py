"""The kernel's proc connector: what a listener sends to it, and the events that come.

A datagram is `nlmsghdr | cn_msg | proc_event`, one message each, in the machine's own byte order (linux/netlink.h,
linux/connector.h, linux/cn_proc.h). Also the classic BPF program that keeps from a listener what is nothing to it.
What stays out: the socket (host/proc_connector).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from vmpin.errors import WireError

#: linux/connector.h: CN_IDX_PROC, CN_VAL_PROC. The first is the multicast group, too.
CN_IDX_PROC = CN_VAL_PROC = 1
#: linux/cn_proc.h: enum proc_cn_mcast_op, enum proc_cn_event.
MCAST_LISTEN, MCAST_IGNORE = 1, 2
NONE, FORK, EXEC, COMM, EXIT = 0, 0x1, 0x2, 0x200, 0x80000000
#: The kernel's thread that makes all others of the kernel.
KTHREADD = 2

_NLMSG_DONE = 3
_NLMSGHDR = struct.Struct("=IHHII")
_CN_MSG = struct.Struct("=IIIIHH")
#: Both of them, and of the proc_event what, cpu (not used) and timestamp_ns.
_HEAD = struct.Struct("=IHHII IIIIHH I4xQ")
_WHAT = _NLMSGHDR.size + _CN_MSG.size
_DATA = _WHAT + 16
_FORK = struct.Struct("=IIII")
_COMM = struct.Struct("=II16s")
_PAIR = struct.Struct("=II")
_ACK = struct.Struct("=I")
_LENGTH = {FORK: _FORK.size, EXEC: _PAIR.size, COMM: _COMM.size, EXIT: 16, NONE: _ACK.size}


class Fork(NamedTuple):
    """A thread was born; `child` is its number, `process` that of its process: its own for a new process.

    `time` is when, of all events: CLOCK_MONOTONIC in ns. All numbers are the initial pid namespace's.
    """

    time: int
    parent: int
    parent_process: int
    child: int
    process: int


class Exec(NamedTuple):
    """A process executes a program; its only thread is the main one now."""

    time: int
    process: int


class Comm(NamedTuple):
    """A thread was named, by itself or through /proc; the kernel's own way of naming is not told."""

    time: int
    thread: int
    process: int
    name: str


class Exit(NamedTuple):
    """A thread has ended."""

    time: int
    thread: int
    process: int


class Ack(NamedTuple):
    """The answer to somebody's listening or ignoring; `error` is 0 or an errno."""

    time: int
    error: int


Event = Fork | Exec | Comm | Exit | Ack


def parse(raw: bytes) -> Event | None:
    """A datagram's event, None for one of no interest. :raises WireError: it is no such message."""
    if len(raw) < _DATA:
        raise WireError("proc connector", f"a message of {len(raw)} bytes")
    length, kind, _, _, _, idx, val, _, _, size, _, what, time = _HEAD.unpack_from(raw)
    if kind != _NLMSG_DONE or idx != CN_IDX_PROC or val != CN_VAL_PROC:
        raise WireError("proc connector", f"a message of type {kind} from {idx}.{val}")
    if length > len(raw) or size > len(raw) - _WHAT or size < 16 + _LENGTH.get(what, 0):
        raise WireError("proc connector", f"an event {what:#x} of {size} bytes in a message of {length}")
    if what == FORK:
        return Fork(time, *_FORK.unpack_from(raw, _DATA))
    if what == COMM:
        thread, process, name = _COMM.unpack_from(raw, _DATA)
        return Comm(time, thread, process, name.partition(b"\0")[0].decode("utf-8", "replace"))
    if what == EXEC:
        return Exec(time, _PAIR.unpack_from(raw, _DATA)[1])
    if what == EXIT:
        return Exit(time, *_PAIR.unpack_from(raw, _DATA))
    if what == NONE:
        return Ack(time, *_ACK.unpack_from(raw, _DATA))
    return None


def subscription(operation: int, events: int | None = None) -> bytes:
    """MCAST_LISTEN or MCAST_IGNORE.

    :param events: the kinds to be told of, as Linux 6.6 knows to choose them. An older kernel takes a message with
        them for none at all, without a word; None is what every kernel understands, and means all kinds.
    """
    body = struct.pack("=I", operation) if events is None else struct.pack("=II", operation, events)
    connector = _CN_MSG.pack(CN_IDX_PROC, CN_VAL_PROC, 0, 0, len(body), 0) + body
    return _NLMSGHDR.pack(_NLMSGHDR.size + len(connector), _NLMSG_DONE, 0, 0, 0) + connector


# linux/bpf_common.h, linux/filter.h
_LD, _JEQ, _JEQ_X, _TAX, _RET = 0x20, 0x15, 0x1D, 0x07, 0x06
_INSTRUCTION = struct.Struct("=HBBI")


def socket_filter() -> bytes:
    """For SO_ATTACH_FILTER, an array of sock_filter: new programs, names, new threads, and forks of kthreadd.

    New processes are kept away, which a node makes thousands of in a second: what they were forked to be, they
    execute. Ends of threads are, too. The filter of Linux 6.6 does not know a thread from a process.
    """
    drop, keep = 11, 12  # the last two
    program = [
        (_LD, 0, 0, _WHAT),
        (_JEQ, keep - 2, 0, _word(EXEC)),
        (_JEQ, keep - 3, 0, _word(COMM)),
        (_JEQ, keep - 4, 0, _word(NONE)),
        (_JEQ, 0, drop - 5, _word(FORK)),
        (_LD, 0, 0, _DATA + 4),
        (_JEQ, keep - 7, 0, _word(KTHREADD)),
        (_LD, 0, 0, _DATA + 8),
        (_TAX, 0, 0, 0),
        (_LD, 0, 0, _DATA + 12),
        (_JEQ_X, drop - 11, keep - 11, 0),
        (_RET, 0, 0, 0),
        (_RET, 0, 0, 0xFFFF),
    ]
    return b"".join(_INSTRUCTION.pack(*line) for line in program)


def _word(number: int) -> int:
    """As a load finds it: BPF takes what lies in a packet for the network's byte order."""
    found: int = struct.unpack(">I", struct.pack("=I", number))[0]
    return found
