"""Asking QEMU which thread is which, over a QMP socket that is not Kata's.

QMP serves one client at a time. A further one waits in the socket's queue, and closing it does not take it out of
there: QEMU accepts the dead connection when the first client leaves. So the queue is read first, and a socket that is
in use is left alone.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, TypeGuard

from vmpin.domain.model import VcpuId
from vmpin.vmm.virtual_machine import QmpAnswer

if TYPE_CHECKING:
    from qemu.qmp import QMPClient

    from vmpin.vmm.virtual_machine import Vm

_log = logging.getLogger(__name__)

#: The library reports every failed connection as an error of its own; a QEMU that is busy or gone is no error
#: here. This logger has no parent and no handler.
_silent = logging.Logger("qemu.qmp", logging.CRITICAL + 1)

#: The flags word of a listening socket (net/unix/af_unix.c: unix_seq_show writes __SO_ACCEPTCON).
_LISTENING = "00010000"
#: A reply about thousands of vCPUs is below a megabyte.
_READ_LIMIT = 1 << 20
#: Seconds for each attempt at a socket. QEMU answers within milliseconds, but on a machine that is busy both ends may
#: wait for a CPU.
DEADLINES = 0.2, 0.8, 3.2


async def ask(vm: Vm, deadlines: tuple[float, ...] = DEADLINES) -> bool:
    """Query a VM's QMP sockets in turn and keep the answer in `vm.qmp`; True when there was one. Each thread set is
    asked about once."""
    vm.qmp_asked = frozenset(vm.vmm.stats)
    for path in () if vm.type.qmp_sockets is None else vm.type.qmp_sockets(vm.vmm.argv):
        vm.qmp = await _repeated(path, vm.vmm.pid, deadlines)
        if vm.qmp is not None:
            return True
    return False


async def _repeated(path: str, pid: int, deadlines: tuple[float, ...]) -> QmpAnswer | None:
    """Query a socket again when it gave no answer in time. Not by host.retry: it makes as many attempts as there are
    deadlines, and the pause is the deadline that ran out, as QEMU may hold the closed connection for so long."""
    import asyncio  # here, as the first pass of a starting watcher does not wait for it (60 ms)

    pause = 0.0
    for deadline in deadlines:
        await asyncio.sleep(pause)  # the socket is in use until QEMU has met the connection that was closed
        try:
            answer = await query(path, deadline, pid)
        except TimeoutError:
            pause = deadline
            continue
        if answer is not None or not pause:
            return answer
    return None


async def query(path: str, deadline: float, pid: int | None = None) -> QmpAnswer | None:
    """Ask the QEMU that listens on `path`; None when it is busy, gone or talks nonsense.

    With QEMU's `pid` the path is taken as QEMU sees it: in its mount namespace, and a relative one from its working
    directory.
    :raises TimeoutError: after `deadline` seconds. The connection is closed then, whatever it was doing."""
    import asyncio

    process = f"/proc/{pid or 'self'}"
    if _in_use(path, f"{process}/net/unix"):
        _log.debug("QMP socket in use path=%s", path)
        return None
    directory = -1
    try:
        from qemu.qmp import QMPClient  # 59 ms, and most nodes never ask; before the deadline begins

        # By descriptor, because the way through /proc is longer than the 107 bytes an address may have.
        place = f"{process}/root{path}" if path.startswith("/") else f"{process}/cwd/{path}"
        directory = os.open(os.path.dirname(place), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        async with asyncio.timeout(deadline):
            return await _query(QMPClient(readbuflen=_READ_LIMIT),
                                f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    except TimeoutError:
        _log.debug("no answer from QMP path=%s within %g s", path, deadline)
        raise
    except Exception as err:  # whatever it is, the answer is that there is none
        _log.debug("no answer from QMP path=%s error=%r", path, err)
        return None
    finally:
        if directory >= 0:
            os.close(directory)


async def _query(client: QMPClient, address: str) -> QmpAnswer:
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
    for entry in _dicts(cpus):
        tid, index = entry.get("thread-id"), entry.get("cpu-index")
        if _count(tid) and _count(index):
            vcpus[tid] = VcpuId(index)
    tids = (entry.get("thread-id") for entry in _dicts(iothreads))
    return QmpAnswer(vcpus, frozenset(tid for tid in tids if _count(tid)))


def _dicts(reply: object) -> list[dict[str, object]]:
    return [entry for entry in reply if isinstance(entry, dict)] if isinstance(reply, list) else []


def _count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 22  # PID_MAX_LIMIT


def _in_use(path: str, table: str) -> bool:
    """Whether a client is connected to the socket, or waits for it. /proc/PID/net/unix lists the sockets of that
    process's network namespace: a listening one, and for every client a second one with the same path."""
    try:
        with open(table, encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.rstrip("\n").split(None, 7)
                if len(fields) == 8 and fields[7] == path and fields[3] != _LISTENING:
                    return True
    except OSError:
        pass  # then the deadline alone protects
    return False
