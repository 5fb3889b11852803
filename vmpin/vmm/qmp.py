"""Queries QEMU over QMP for its vCPU and iothread ids. Kata's own QMP socket is never used.

QMP serves one client at a time. A second client waits in the socket's backlog, and closing its connection does not
remove it: QEMU accepts the dead connection when the first client leaves. So the backlog is checked first, and a socket
that is in use is not connected to. It loads asyncio, so it is imported when a VM needs it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TypeGuard

from vmpin.bounded import MAX_PID, load_json
from vmpin.domain.model import VcpuId
from vmpin.host.files import path_of, short_path
from vmpin.vmm.virtual_machine import QmpAnswer, Vm

logger = logging.getLogger(__name__)

#: The flags word of a listening socket (net/unix/af_unix.c: unix_seq_show writes __SO_ACCEPTCON).
_LISTENING = "00010000"
#: Bytes of a line: a reply about a thousand vCPUs is below 256 KiB.
_LONGEST = 1 << 18
#: Bytes that are read of a connection, where each line counts for at least _LINE. Events may precede a reply; a QEMU
#: that sends them without end, each in few bytes, would take all of the loop's time until the deadline.
_MOST, _LINE = 1 << 20, 1 << 10
#: The deadline of each attempt in seconds. QEMU usually answers within milliseconds; on a busy machine either end may
#: wait for a CPU.
DEADLINES = 0.2, 0.8, 3.2


async def query_threads(vm: Vm, deadlines: tuple[float, ...] = DEADLINES) -> bool:
    """Query a VM's QMP sockets in turn and store the answer in `vm.qmp`. A thread set is queried only once.
    :returns: whether there was an answer."""
    vm.qmp_queried = frozenset(vm.vmm.stats)
    for path in () if vm.type.qmp_sockets is None else vm.type.qmp_sockets(vm.vmm.argv):
        vm.qmp = await _repeated(path, vm.vmm.pid, deadlines)
        if vm.qmp is not None:
            return True
    return False


async def _repeated(path: str, pid: int, deadlines: tuple[float, ...]) -> QmpAnswer | None:
    """Query a socket, once for each deadline, until there is an answer. Not with host.retry: the pause must be as long
    as the deadline that ran out, because QEMU may hold the closed connection for that long."""
    pause = 0.0
    for deadline in deadlines:
        await asyncio.sleep(pause)  # the socket is in use until QEMU has accepted the closed connection
        try:
            answer = await query(path, deadline, pid)
        except TimeoutError:
            pause = deadline
            continue
        if answer is not None or not pause:
            return answer
    return None


async def query(path: str, deadline: float, pid: int | None = None) -> QmpAnswer | None:
    """Query the QEMU that listens on `path`; None if it is busy, has ended or answers nonsense.

    :param pid: QEMU's pid: the path is resolved in its mount namespace and, if relative, from its working directory.
    :raises TimeoutError: after `deadline` seconds. The connection is closed then."""
    process = pid or "self"
    if _in_use(path, f"/proc/{process}/net/unix"):
        logger.debug("QMP socket in use path=%s", path)
        return None
    try:
        with short_path(path_of(process, path)) as address:
            async with asyncio.timeout(deadline):
                return await _query(address)
    except TimeoutError:
        logger.debug("no answer from QMP path=%s within %g s", path, deadline)
        raise
    except Exception as err:  # any failure means that there is no answer
        logger.debug("no answer from QMP path=%s error=%r", path, err)
        return None


async def _query(address: str) -> QmpAnswer:
    """Query the QEMU that listens at a socket.
    :raises OSError, EOFError, ValueError: the peer is no QEMU, or refuses a command."""
    reader, writer = await asyncio.open_unix_connection(address, limit=_LONGEST)
    left = _MOST

    async def member(name: str, of: str | None = None) -> object:
        """The member of the next message that has it. :param of: the id of the message."""
        nonlocal left
        while line := await reader.readline():
            left -= max(len(line), _LINE)
            message = load_json(line)
            if left < 0 or not isinstance(message, dict) or "error" in message:
                raise ValueError(f"{line[:80]!r} is not an expected QMP message")
            if name in message and message.get("id") == of:
                return message[name]
        raise EOFError

    async def reply(command: str) -> object:
        writer.write(json.dumps({"execute": command, "id": command}).encode() + b"\n")
        return await member("return", command)

    try:
        await member("QMP")
        await reply("qmp_capabilities")
        return read_answer(await reply("query-cpus-fast"), await reply("query-iothreads"))
    finally:
        writer.transport.abort()


def read_answer(cpus: object, iothreads: object) -> QmpAnswer:
    """Parse the replies to query-cpus-fast and query-iothreads; items of an undocumented shape are left out."""
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
    return type(value) is int and 0 <= value <= MAX_PID


def _in_use(path: str, table: str) -> bool:
    """Whether a client is connected to the socket or waits in its backlog. /proc/PID/net/unix lists the sockets of the
    process's network namespace: the listening one, and one with the same path for every client."""
    try:
        with open(table, encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.rstrip("\n").split(None, 7)
                if len(fields) == 8 and fields[7] == path and fields[3] != _LISTENING:
                    return True
    except OSError:
        pass  # the deadline still applies
    return False
