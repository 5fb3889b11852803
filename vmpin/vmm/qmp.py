"""Asking QEMU which thread is which, over a QMP socket that is not Kata's.

QMP serves one client at a time. A further one waits in the socket's queue, and closing it does not take it out
of there: QEMU meets the corpse when the first client leaves. So the queue is read first, and a socket that is
in use is left alone.
What stays out: when to ask (threads.wants_qmp) and believing the answer (threads.identify).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from vmpin.domain.model import VcpuId

if TYPE_CHECKING:
    from qemu.qmp import QMPClient

_log = logging.getLogger(__name__)

#: The library reports every failed connection as an error of its own; a QEMU that is busy or gone is no error
#: here. This logger has no parent and no handler.
_silent = logging.Logger("qemu.qmp", logging.CRITICAL + 1)

#: The flags word of a listening socket (net/unix/af_unix.c: unix_seq_show writes __SO_ACCEPTCON).
_LISTENING = "00010000"
#: A reply about thousands of vCPUs is below a megabyte.
_READ_LIMIT = 1 << 20


class QmpAnswer(NamedTuple):
    """The thread ids QEMU gave: each vCPU's cpu-index, the iothreads, and each vCPU's place in the guest
    (`{"socket-id": 0, "core-id": 1, …}`), as far as it gave them."""

    vcpus: Mapping[int, VcpuId]
    iothreads: frozenset[int]
    props: Mapping[VcpuId, Mapping[str, int]] = MappingProxyType({})


async def query(path: str, deadline: float = 0.2, pid: int | None = None) -> QmpAnswer | None:
    """Ask the QEMU that listens on `path`; None when it is busy, gone, slow or talks nonsense.

    With QEMU's `pid` the path is taken as QEMU sees it: in its mount namespace, and a relative one from its
    working directory. After `deadline` seconds the connection is closed, whatever it was doing.
    """
    import asyncio  # here, as the first pass of a starting watcher does not wait for it (60 ms)

    process = f"/proc/{pid or 'self'}"
    if _in_use(path, f"{process}/net/unix"):
        _log.debug("QMP socket in use path=%s", path)
        return None
    directory = -1
    try:
        # By descriptor, because the way through /proc is longer than the 107 bytes an address may have.
        place = f"{process}/root{path}" if path.startswith("/") else f"{process}/cwd/{path}"
        directory = os.open(os.path.dirname(place), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        async with asyncio.timeout(deadline):
            return await _ask(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    except Exception as err:  # whatever it is, the answer is that there is none
        _log.debug("no answer from QMP path=%s error=%r", path, err)
        return None
    finally:
        if directory >= 0:
            os.close(directory)


async def _ask(address: str) -> QmpAnswer:
    from qemu.qmp import QMPClient  # 59 ms, and most nodes never ask

    client: QMPClient = QMPClient(readbuflen=_READ_LIMIT)
    client.logger = _silent
    await client.connect(address)
    try:
        cpus = await client.execute("query-cpus-fast")
        iothreads = await client.execute("query-iothreads")
    finally:
        await client.disconnect()
    return read_answer(cpus, iothreads)


def read_answer(cpus: object, iothreads: object) -> QmpAnswer:
    """The replies to query-cpus-fast and query-iothreads; whatever is not of the documented shape is left out."""
    vcpus: dict[int, VcpuId] = {}
    props: dict[VcpuId, Mapping[str, int]] = {}
    for entry in _dicts(cpus):
        tid, index = entry.get("thread-id"), entry.get("cpu-index")
        if not _count(tid) or not _count(index):
            continue
        vcpu = VcpuId(index)
        vcpus[tid] = vcpu
        given = entry.get("props")
        if isinstance(given, dict):
            props[vcpu] = {str(key): value for key, value in given.items() if _count(value)}
    tids = (entry.get("thread-id") for entry in _dicts(iothreads))
    return QmpAnswer(vcpus, frozenset(tid for tid in tids if _count(tid)), props)


def _dicts(reply: object) -> list[dict[str, object]]:
    return [entry for entry in reply if isinstance(entry, dict)] if isinstance(reply, list) else []


def _count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 22  # PID_MAX_LIMIT


def _in_use(path: str, table: str) -> bool:
    """Whether a client is connected to the socket, or waits for it.

    /proc/PID/net/unix lists the sockets of that process's network namespace: a listening one, and for every
    client a second one with the same path.
    """
    try:
        with open(table, encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.rstrip("\n").split(None, 7)
                if len(words) == 8 and words[7] == path and words[3] != _LISTENING:
                    return True
    except OSError:
        pass  # then the deadline alone protects
    return False
