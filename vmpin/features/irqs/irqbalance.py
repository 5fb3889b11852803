"""irqbalance's own socket (irqbalance.c: sock_handle): the CPUs to which it moves no interrupts, read and set.

It accepts root alone, by the credentials of a message, and answers one message a connection. The socket is of one
process, and gone with it. What is set there counts in place of IRQBALANCE_BANNED_CPULIST and of the isolated CPUs that
it leaves alone by itself (cputree.c: setup_banned_cpus), from its next scan on: every ten seconds. NULL undoes that.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from pathlib import Path

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.features.irqs.irq_files import parse_mask
from vmpin.host.procfs import names_in

DIRECTORY = Path("/run/irqbalance")
#: Seconds for an answer, and the most bytes of one.
_PATIENCE, _MOST = 1.0, 1 << 16
_NAME = re.compile(r"irqbalance[0-9]{1,7}\.sock")
_BANNED = re.compile(r"BANNED ([0-9a-f,]+)")


def irqbalance_sockets(directory: Path = DIRECTORY) -> list[str]:
    """The paths of the sockets: one for each irqbalance that runs, and those that a killed one left."""
    return [str(directory / name) for name in names_in(directory) if _NAME.fullmatch(name)]


def banned_cpus(path: str) -> CpuSet | None:
    """The CPUs to which an irqbalance moves no interrupts, as of its last scan; None where it does not answer."""
    with contextlib.suppress(OSError):
        match = _BANNED.search(_exchange(path, "setup", answered=True))
        return None if match is None else parse_mask(match[1]) or EMPTY
    return None


def ban_cpus(path: str, cpus: CpuSet) -> None:
    """Have an irqbalance move no interrupts to these CPUs; EMPTY: those of its own configuration again.
    :raises OSError: it does not take that."""
    _exchange(path, f"settings cpus {cpus or 'NULL'}", answered=False)


def _exchange(path: str, text: str, answered: bool) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(path)
        credentials = struct.pack("3i", os.getpid(), os.getuid(), os.getgid())
        connection.sendmsg([text.encode()], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])
        parts, size = [], 0
        while answered and size < _MOST and (part := connection.recv(4096)):
            parts.append(part)
            size += len(part)
    return b"".join(parts).decode("ascii", "replace")
