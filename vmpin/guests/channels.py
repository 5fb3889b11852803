"""Channels into a guest: one class for each way, and finding a VM's from its VMM's command line and Kata's files."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vmpin.host.files import path_of, short_path
from vmpin.host.procfs import Procfs, split_arguments
from vmpin.named_tuple import NamedTuple
from vmpin.protocol.parsing import SERIAL
from vmpin.vmm.arguments import keyvals, long_options, vsock_cid
from vmpin.vmm.virtual_machine import Vm

#: The longest wait for a connection, and for the answer to CONNECT (seconds): a guest that accepts takes 1 ms.
CONNECT_DEADLINE = 2.0
#: The most input that a stream buffers before it stops reading (bytes).
BUFFERED = 65536
#: The answer to CONNECT on a hybrid vsock, and its greatest length (bytes).
_OK = re.compile(rb"OK [0-9]{1,10}\n")
_LONGEST = 32
_DAEMON = "vhost-device-vsock"
_AGENT_URL = re.compile(r"(hvsock|vsock)://(.{1,4096}):([0-9]{1,10})", re.ASCII)


class NotListening(OSError):
    """No process listens on the port; the channel itself may be right."""


class Stream(NamedTuple):
    """An open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        """Close at once and drop what the guest has not read, so that it cannot hold the connection."""
        self.writer.transport.abort()


class Channel(Protocol):
    """A way into one guest. `str()` of it appears in the log and in the status."""

    async def open(self, port: int) -> Stream:
        """Connect to a port in the guest. :raises NotListening: no process listens there. :raises OSError: the guest
        cannot be reached. :raises TimeoutError: there was no answer."""


async def _connected(family: int, address: str | tuple[int, int]) -> Stream:
    """Connect a socket. :raises OSError, TimeoutError: as `Channel.open`."""
    client = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        async with asyncio.timeout(CONNECT_DEADLINE):
            await asyncio.get_running_loop().sock_connect(client, address)
        return Stream(*await asyncio.open_connection(sock=client, limit=BUFFERED))
    except BaseException:
        client.close()
        raise


async def open_unix(path: str, pid: int, peer: int | None) -> Stream:
    """Connect to a Unix socket at a path as process `pid` resolves it: in its mount namespace, and relative to its
    working directory.
    :param peer: the process that must be the one listening, as a path from a command line may lead anywhere; None:
        any.
    :raises PermissionError: another process listens. :raises NotListening: the socket exists and no process listens.
    """
    try:
        with short_path(path_of(pid, path)) as address:
            stream = await _connected(socket.AF_UNIX, address)
    except (ConnectionRefusedError, BlockingIOError) as err:  # the second where the backlog is full
        busy = isinstance(err, BlockingIOError)
        raise NotListening(err.errno, "is busy" if busy else err.strerror, path) from err
    # The process that called listen() (struct ucred: pid, uid, gid).
    credentials = stream.writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    listener, _, _ = struct.unpack("3i", credentials)
    if peer is not None and listener != peer:
        stream.close()
        raise PermissionError(1, f"process {listener} listens there and not {peer}", path)
    return stream


def socket_id(path: str, pid: int) -> tuple[int, int] | None:
    """The (device, inode) of the socket at a path as process `pid` resolves it; None if there is none."""
    try:
        info = os.stat(path_of(pid, path))
    except OSError:
        return None
    return (info.st_dev, info.st_ino) if stat.S_ISSOCK(info.st_mode) else None


@dataclass(frozen=True)
class Vsock:
    """AF_VSOCK: the guest has a number (CID), and the kernel connects to its ports (vhost-vsock)."""

    cid: int

    def __str__(self) -> str:
        return f"vsock, CID {self.cid}"

    async def open(self, port: int) -> Stream:
        try:
            return await _connected(socket.AF_VSOCK, (self.cid, port))
        except OSError as err:
            # A port on which no process listens is answered with a reset (net/vmw_vsock/virtio_transport_common.c).
            if err.errno in (errno.ECONNRESET, errno.ECONNREFUSED):
                raise NotListening(err.errno, f"no process listens on port {port}", str(self)) from err
            raise


@dataclass(frozen=True)
class ContestedVsock:
    """A CID that two VMMs' command lines name, so that either guest may answer: it is never connected to."""

    name: str
    other: str

    def __str__(self) -> str:
        return self.name

    async def open(self, port: int) -> Stream:
        raise OSError(errno.EBUSY, f"is also the CID on the command line of sandbox {self.other}'s VMM", self.name)


@dataclass(frozen=True)
class HybridVsock:
    """Vsock for the guest, and for the host a Unix socket of the VMM on which the port is requested: Firecracker,
    Cloud Hypervisor, Dragonball, and vhost-device-vsock for QEMU (firecracker/docs/vsock.md). `CONNECT 1024\\n` is
    answered with `OK <port of the host>\\n`, or closed if no process listens in the guest.

    `path` is resolved as by process `pid`; `peer` is the process that must be listening there (None: any)."""

    path: str
    pid: int
    peer: int | None = None

    def __str__(self) -> str:
        return f"hybrid vsock {self.path}"

    async def open(self, port: int) -> Stream:
        stream = await open_unix(self.path, self.pid, self.peer)
        try:
            stream.writer.write(b"CONNECT %d\n" % port)
            async with asyncio.timeout(CONNECT_DEADLINE):
                answer = await _line(stream.reader)
            if not answer:
                raise ConnectionResetError
            if not _OK.fullmatch(answer):
                raise OSError(errno.EPROTO, f"answered {answer!r} to CONNECT", self.path)
        except BaseException as err:
            stream.close()
            if isinstance(err, ConnectionError):
                raise NotListening(errno.ECONNREFUSED, f"no process listens on port {port}", self.path) from err
            raise
        return stream


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Read a line byte by byte, as what follows is the guest's; at most _LONGEST bytes."""
    line = b""
    while len(line) < _LONGEST and not line.endswith(b"\n"):
        byte = await reader.read(1)
        if not byte:
            break
        line += byte
    return line


@dataclass(frozen=True)
class VirtioSerial:
    """A virtio-serial port: QEMU's Unix socket on the host, a character device in the guest. It is a single stream
    without connections: the rest of an incomplete message of one client on the host precedes the messages of the next.
    QEMU serves one client at a time; a second one waits.

    `path` is resolved as by the QEMU with this pid, which must be the process listening there."""

    path: str
    pid: int

    def __str__(self) -> str:
        return f"virtio-serial {self.path}"

    async def open(self, port: int) -> Stream:
        """Connect. `port` has no meaning here: a serial port has a name."""
        return await open_unix(self.path, self.pid, self.pid)


def find_channels(vm: Vm, agent_url: str, proc: Procfs, kata_go: Path, kata_rs: Path) -> list[Channel]:
    """The channels into a VM's guest, those with ports first: Kata's agent can be reached over them as well.
    :param agent_url: the agent's address by Kata's files, or "".
    :param kata_go, kata_rs: the state directories of Kata's two runtimes."""
    of_type, pid, argv = vm.type.channels, vm.vmm.pid, vm.vmm.argv
    channels: list[Channel] = []
    # The command line first: for a restored or renumbered VM it has the CID that the kernel was given.
    cid = of_type.cid(argv)
    if cid is not None:
        channels.append(Vsock(cid))
    elif (device := of_type.vsock_daemon(argv)) is not None:
        channels += _of_daemon(device, proc)
    if not channels:
        in_jail = of_type.hybrid_in_jail(argv)
        hybrid = [] if in_jail is None else [HybridVsock(str(in_jail), pid, pid)]
        hybrid += [HybridVsock(str(path), os.getpid(), pid)
                   for path in of_type.hybrid(vm.sandbox, argv, kata_go, kata_rs)]
        channels += _distinct((*_of_url(agent_url, pid), *hybrid))
    if (path := of_type.serial(argv, SERIAL)) is not None:
        channels.append(VirtioSerial(path, pid))
    return channels


def _distinct(channels: Iterable[HybridVsock | Vsock]) -> Iterator[Channel]:
    """The hybrid sockets that exist, each once, and at most one vsock."""
    sockets = set()
    for channel in channels:
        identity = socket_id(channel.path, channel.pid) if isinstance(channel, HybridVsock) else (0, 0)
        if identity is not None and identity not in sockets:
            sockets.add(identity)
            yield channel


def _of_url(agent_url: str, pid: int) -> Iterator[HybridVsock | Vsock]:
    match = _AGENT_URL.fullmatch(agent_url)
    if match is None:
        return
    if match[1] == "hvsock" and match[2].startswith("/") and "\0" not in match[2]:
        yield HybridVsock(match[2], os.getpid(), pid)
    elif match[1] == "vsock" and (cid := vsock_cid(match[2])) is not None:
        yield Vsock(cid)


def _of_daemon(device: str, proc: Procfs) -> Iterable[Channel]:
    """The channel of the vhost-device-vsock that serves this device. Reads the beginning of every process's command
    line, and the rest only of root's: parsing 128 KiB takes long, and any user may have a thousand such processes."""
    for pid in proc.pids():
        # A process in a pid namespace of its own is a program in a container, whatever its command line is.
        beginning = b"" if proc.nested(pid) else proc.beginning(pid)
        if _DAEMON.encode() not in beginning:
            continue
        uds = daemon_uds(split_arguments(beginning) if proc.foreign_uid(pid) else proc.cmdline(pid, beginning), device)
        if uds is not None:
            yield HybridVsock(uds, int(pid), int(pid))


def daemon_uds(argv: Sequence[str], socket: str) -> str | None:
    """Where vhost-device-vsock takes connections for the guest that it serves over `socket`; None when this is not the
    command line of such a daemon."""
    if not argv or not argv[0].rpartition("/")[2].startswith(_DAEMON):
        return None
    for _, value in long_options(argv, "--vm"):  # several guests in one daemon: guest-cid=3,socket=…,uds-path=…
        pairs = dict(keyvals(value, "guest-cid"))
        if pairs.get("socket") == socket and pairs.get("uds-path"):
            return pairs["uds-path"]
    options = dict(long_options(argv, "--socket", "--uds-path"))
    return options.get("--uds-path") or None if options.get("--socket") == socket else None
