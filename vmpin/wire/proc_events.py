"""The kernel's proc connector: the messages that a listener sends, and the events that it receives.

A datagram is `nlmsghdr | cn_msg | proc_event`, one message each, in the machine's own byte order (linux/netlink.h,
linux/connector.h, linux/cn_proc.h). Also the classic BPF program that drops events of no interest before they reach
the listener."""

from __future__ import annotations

import struct
from collections.abc import Collection

from vmpin.errors import WireError
from vmpin.named_tuple import NamedTuple

#: linux/connector.h: CN_IDX_PROC, CN_VAL_PROC. The first is the multicast group, too.
CN_IDX_PROC = CN_VAL_PROC = 1
#: linux/cn_proc.h: enum proc_cn_mcast_op, enum proc_cn_event.
MCAST_LISTEN, MCAST_IGNORE = 1, 2
FORK, EXEC, COMM, EXIT = 0x1, 0x2, 0x200, 0x80000000
#: The kernel thread that creates all other kernel threads.
KTHREADD = 2

_NLMSG_DONE = 3
_NLMSGHDR = struct.Struct("=IHHII")
_CN_MSG = struct.Struct("=IIIIHH")
#: Both headers, and the proc_event's fields what, cpu (not used) and timestamp_ns.
_HEAD = struct.Struct("=IHHII IIIIHH I4xQ")
_WHAT = _NLMSGHDR.size + _CN_MSG.size
_DATA = _WHAT + 16
_FORK = struct.Struct("=IIII")
_COMM = struct.Struct("=II16s")
_PAIR = struct.Struct("=II")
_LENGTH = {FORK: _FORK.size, EXEC: _PAIR.size, COMM: _COMM.size, EXIT: 16}


class Fork(NamedTuple):
    """A thread was created: `child` is its tid, `process` the pid of its process (equal for a new process). `time` of
    this and every event is CLOCK_MONOTONIC in ns. All ids are of the initial pid namespace."""

    time: int
    parent: int
    parent_process: int
    child: int
    process: int


class Exec(NamedTuple):
    """A process executed a program; only its main thread is left."""

    time: int
    process: int


class Comm(NamedTuple):
    """A thread was named, by itself or through /proc; names that the kernel sets by itself cause no event."""

    time: int
    thread: int
    process: int
    name: str


class Exit(NamedTuple):
    """A thread has ended."""

    time: int
    thread: int
    process: int


Event = Fork | Exec | Comm | Exit


def parse(raw: bytes) -> Event | None:
    """Parse a datagram. :returns: None for an event of no interest. :raises WireError: it is no such message."""
    if len(raw) < _DATA:
        raise WireError("proc connector", f"a message of {len(raw)} bytes")
    length, kind, _, _, _, idx, val, _, _, size, _, event, time = _HEAD.unpack_from(raw)
    if kind != _NLMSG_DONE or idx != CN_IDX_PROC or val != CN_VAL_PROC:
        raise WireError("proc connector", f"a message of type {kind} from {idx}.{val}")
    if length > len(raw) or size > len(raw) - _WHAT or size < 16 + _LENGTH.get(event, 0):
        raise WireError("proc connector", f"an event {event:#x} of {size} bytes in a message of {length}")
    if event == FORK:
        return Fork(time, *_FORK.unpack_from(raw, _DATA))
    if event == COMM:
        thread, process, name = _COMM.unpack_from(raw, _DATA)
        return Comm(time, thread, process, name.partition(b"\0")[0].decode("utf-8", "replace"))
    if event == EXEC:
        return Exec(time, _PAIR.unpack_from(raw, _DATA)[1])
    if event == EXIT:
        return Exit(time, *_PAIR.unpack_from(raw, _DATA))
    return None


def subscription(operation: int, events: int | None = None) -> bytes:
    """The message that starts or ends a subscription.
    :param operation: MCAST_LISTEN or MCAST_IGNORE.
    :param events: the kinds of events to receive, which Linux 6.6 and later can select. An older kernel silently
        ignores a message with this field; None works with every kernel and means all kinds."""
    body = struct.pack("=I", operation) if events is None else struct.pack("=II", operation, events)
    connector = _CN_MSG.pack(CN_IDX_PROC, CN_VAL_PROC, 0, 0, len(body), 0) + body
    return _NLMSGHDR.pack(_NLMSGHDR.size + len(connector), _NLMSG_DONE, 0, 0, 0) + connector


# linux/bpf_common.h, linux/filter.h
_LD, _JA, _JEQ, _JEQ_X, _TAX, _RET = 0x20, 0x05, 0x15, 0x1D, 0x07, 0x06
_INSTRUCTION = struct.Struct("=HBBI")
_DROP, _KEEP = (_RET, 0, 0, 0), (_RET, 0, 0, 0xFFFF)
#: A conditional jump reaches 255 instructions; a program has 4096 (BPF_MAXINSNS).
_BLOCK = 250
MAX_FOLLOWED = 4000


def socket_filter(followed: Collection[int] | None = None) -> bytes:
    """An array of sock_filter for SO_ATTACH_FILTER: it passes executions, and new threads and names in some processes;
    if there are any, also forks of kthreadd. It drops new processes, of which a node creates thousands a second, as a
    process of interest executes a program next; and ends of threads. (The selection by Linux 6.6 cannot distinguish a
    thread from a process.)
    :param followed: these processes, at most MAX_FOLLOWED; None for all. The kernel runs the program in the thread
        that sends the event, so that this pays for it where it sends a hundred thousand."""
    drop, keep, name, chosen = 11, 12, 13, 14
    kernel = drop if followed is not None and not followed else keep
    program = [
        (_LD, 0, 0, _WHAT),
        (_JEQ, keep - 2, 0, _as_loaded(EXEC)),
        (_JEQ, name - 3, 0, _as_loaded(COMM)),
        (_JEQ, 0, drop - 4, _as_loaded(FORK)),
        (_LD, 0, 0, _DATA + 4),
        (_JEQ, kernel - 6, 0, _as_loaded(KTHREADD)),
        (_LD, 0, 0, _DATA + 8),
        (_TAX, 0, 0, 0),
        (_LD, 0, 0, _DATA + 12),
        (_JEQ_X, drop - 10, 0, 0),
        (_JA, 0, 0, chosen - 11),
        _DROP,
        _KEEP,
        (_LD, 0, 0, _DATA + 4),
    ]
    if followed is None:
        program.append(_KEEP)
    else:
        pids = sorted(followed)
        for at in range(0, len(pids), _BLOCK):
            block = pids[at : at + _BLOCK]
            program += [(_JEQ, len(block) - number, 0, _as_loaded(pid)) for number, pid in enumerate(block)]
            program += [(_JA, 0, 0, 1), _KEEP]
        program.append(_DROP)
    return b"".join(_INSTRUCTION.pack(*line) for line in program)


def _as_loaded(number: int) -> int:
    """The number as a BPF load sees it, which assumes network byte order in a packet."""
    return int.from_bytes(struct.pack("=I", number), "big")
