"""The peers of unix sockets: their users and groups, as the kernel has them."""

from __future__ import annotations

import grp
import os
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from vmpin.bounded import parse_whole
from vmpin.errors import ConfigError

_SO_PEERGROUPS = 59  #: asm-generic/socket.h, Linux 4.13; the socket module has no name for it.


class Peer(NamedTuple):
    """The user of a process that connected, and all groups that it was in at that moment, as the kernel has them."""

    uid: int
    gids: frozenset[int]


Admission = Callable[[Peer], bool]  #: Whether a peer is answered at all.


def gid_of(group: str) -> int:
    """A group's number, -1 for "": by its name, else the number itself, which a container's group has no name for.
    :raises ConfigError: there is no such group."""
    if not group:
        return -1
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        if (number := parse_whole(group, 0xFFFFFFFE)) is not None:
            return number
        raise ConfigError(f"watch.status_group: no group {group!r} on this machine") from None


def is_member(peer: Peer, group: str) -> bool:
    """Whether a peer is root, this process's user, or in `group`. False for a group that is gone by now."""
    if peer.uid in (0, os.geteuid()):
        return True
    try:
        return gid_of(group) in peer.gids
    except ConfigError:
        return False


def peer_of(connection: socket.socket) -> Peer:
    """Return the peer: SO_PEERCRED (pid, uid, gid), and its supplementary groups where the kernel has them."""
    _, uid, gid = struct.unpack("3I", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 65536)
    except OSError:
        raw = b""
    return Peer(uid, frozenset((gid, *struct.unpack(f"{len(raw) // 4}I", raw))))
