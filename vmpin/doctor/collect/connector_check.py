"""Tests whether this process could use the kernel's proc connector, without subscribing.

The kernel counts its subscribers, and a subscriber that comes and goes may cost another one its events. Called by
node_facts. What stays out: subscribing (host.proc_connector).
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from vmpin.domain.facts import ConnectorFacts, Rights

#: linux/netlink.h, linux/connector.h
_NETLINK_CONNECTOR, _CN_IDX_PROC, _NLMSG_DONE = 11, 1, 3
#: An id that the kernel does not use: it discards the message, but a namespace without a connector refuses it.
_UNUSED_ID = 0x7FFFFFFF


def available(rights: Rights) -> ConnectorFacts:
    """The availability for this process, which has these rights."""
    lacks = [f"it takes the machine's own {name} namespace" for name, own in
             (("pid", rights.pid_ns), ("user", rights.user_ns)) if own is False]
    if rights.capabilities is not None and "CAP_NET_ADMIN" not in rights.capabilities:
        lacks.append("CAP_NET_ADMIN is missing")
    if lacks:
        return ConnectorFacts(False, ", ".join(lacks))
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
                           _NETLINK_CONNECTOR) as made:
            made.bind((0, _CN_IDX_PROC))
            header = struct.pack("=IHHII", 36, _NLMSG_DONE, 0, 0, os.getpid())
            made.send(header + struct.pack("=IIIIHH", _UNUSED_ID, _UNUSED_ID, 0, 0, 0, 0))
    except ConnectionRefusedError:
        return ConnectorFacts(None, "this is another network namespace; a watcher tries that of process 1")
    except OSError as err:
        if err.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
            return ConnectorFacts(False, "the kernel has none (CONFIG_PROC_EVENTS), or its sockets are forbidden here")
        return ConnectorFacts(False, err.strerror or str(err))
    return ConnectorFacts(True)
