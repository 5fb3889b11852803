"""Credentials of the peers of Unix sockets: users and groups, as recorded by the kernel."""

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
    """The uid of the connected process, and all its groups at the time of the connection."""

    uid: int
    gids: frozenset[int]


Admission = Callable[[Peer], bool]  #: Decides whether a peer is served.


def gid_of(group: str) -> int:
    """A group's gid by its name, or by its number as text (in a container the host's groups have no names); -1 for "".
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
    """Whether a peer is root, this process's user, or in `group`. A group that was deleted has no members."""
    if peer.uid in (0, os.geteuid()):
        return True
    try:
        return gid_of(group) in peer.gids
    except ConfigError:
        return False


def peer_of(connection: socket.socket) -> Peer:
    """Read the credentials of a connection's peer: SO_PEERCRED, and SO_PEERGROUPS where the kernel has it."""
    _, uid, gid = struct.unpack("3I", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 65536)
    except OSError:
        raw = b""
    return Peer(uid, frozenset((gid, *struct.unpack(f"{len(raw) // 4}I", raw))))
