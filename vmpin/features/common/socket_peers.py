"""Which sockets are connected to a unix socket on the node, and by which processes, from the kernel's list of sockets
(sock_diag). The list has those of this network namespace: the servers', wherever their clients are.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from vmpin.bounded import MAX_INT64, parse_whole
from vmpin.host.procfs import Procfs

#: linux/netlink.h, linux/sock_diag.h, linux/unix_diag.h, include/net/tcp_states.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_SHOW_VFS, _SHOW_PEER, _VFS, _PEER = 2, 4, 1, 2
_ESTABLISHED = 1 << 1
#: A program connects to the runtime at its start; one in any container may have its name and a million descriptors.
_MOST_FDS = 4096
_MESSAGE, _ATTRIBUTE, _ENTRY = struct.Struct("=IHHII"), struct.Struct("=HH"), 16


def peers(paths: Iterable[Path]) -> dict[int, Path]:
    """The sockets that are connected to those at some paths, by their inode; {} where the kernel does not list them.
    A path's socket is recognised by its file, so one of the same name elsewhere does not count."""
    servers: dict[tuple[int, int], Path] = {}
    for path in paths:
        try:
            info = os.stat(path)
        except OSError:
            continue
        # The kernel's own form of a device number (include/linux/kdev_t.h), and the lower half of the inode.
        servers[info.st_ino & 0xFFFFFFFF, os.major(info.st_dev) << 20 | os.minor(info.st_dev)] = path
    if not servers:
        return {}
    try:
        return {peer: servers[file] for file, peer in _connections() if peer and file in servers}
    except OSError:
        return {}


def _connections() -> Iterator[tuple[tuple[int, int], int]]:
    """Each connected unix socket that has a file: (inode and device of the file, the peer's inode or 0)."""
    body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, _ESTABLISHED, 0, _SHOW_VFS | _SHOW_PEER, ~0 & 0xFFFFFFFF,
                       ~0 & 0xFFFFFFFF)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(2.0)
        link.send(_MESSAGE.pack(_MESSAGE.size + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + body)
        while True:
            data, at = link.recv(65536), 0
            while at + _MESSAGE.size <= len(data):
                length, kind, *_ = _MESSAGE.unpack_from(data, at)
                if kind in (_DONE, _ERROR):
                    return
                values = dict(_attributes(data[at + _MESSAGE.size + _ENTRY:at + length]))
                if _VFS in values and _PEER in values:
                    yield struct.unpack("=II", values[_VFS]), struct.unpack("=I", values[_PEER])[0]
                at += max(_MESSAGE.size, length + 3 & ~3)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        yield kind, data[at + _ATTRIBUTE.size:at + length]
        at += max(_ATTRIBUTE.size, length + 3 & ~3)


def sockets_of(proc: Procfs, pid: int) -> Iterator[int]:
    """The inodes of the sockets among a process's first _MOST_FDS descriptors, as far as they can be read."""
    with suppress(OSError):
        for _, target in proc.descriptors(pid, _MOST_FDS):
            number = parse_whole(target.removeprefix("socket:[").removesuffix("]"), MAX_INT64)
            if number is not None:
                yield number
