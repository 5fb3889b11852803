"""The kernel's proc connector (linux/cn_proc.h): reports new programs, threads and their names as they appear.

The descriptor is for an event loop. When events arrive faster than they are read, some are lost; the loss is reported,
and the caller resynchronizes.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Collection
from pathlib import Path

from vmpin.errors import SourceError, WireError
from vmpin.host.procfs import Procfs, linux, read_file
from vmpin.wire import proc_events
from vmpin.wire.proc_events import COMM, EXEC, FORK, MCAST_IGNORE, MCAST_LISTEN, Event, Fork

_NETLINK_CONNECTOR = 11  #: linux/netlink.h
#: asm-generic/socket.h
_SO_ATTACH_FILTER, _SO_DETACH_FILTER, _SO_RCVBUFFORCE = 26, 27, 33
#: The socket's receive buffer in bytes, which the kernel doubles: about 20,000 events of 800 bytes, a third of a
#: second at the highest rate of two CPUs.
_BUFFER = 8 << 20
_ALL = 1 << 15  #: More events than the buffer holds.
#: Longer than any event.
_READ = 512
_KINDS = FORK | EXEC | COMM
#: Seconds to wait for the event of a new thread of this process. It usually arrives within a millisecond.
_PATIENCE = 2.0
#: The first Linux that filters event kinds per listener (drivers/connector/cn_proc.c).
_CHOOSES = (6, 6)
_CAP_NET_ADMIN = 12
_CLONE_NEWNET = 0x40000000
_INITIAL = {"user": 0xEFFFFFFD, "pid": 0xEFFFFFFC}  #: include/linux/proc_ns.h: PROC_USER_INIT_INO, PROC_PID_INIT_INO.


class ProcConnector:
    """A subscription to the proc connector. `filtered`: whether the kernel filters by kind of event (since Linux 6.6).
    :param release: the running kernel's release. :param patience: seconds within which the kernel must report a new
        thread of this process.
    :param network: path of the initial network namespace, the only one that receives events. It is entered if this
        process is in another one.
    :raises SourceError: no events can be received, with the reason. May take seconds."""

    def __init__(self, proc: Procfs | None = None, network: Path | None = None, release: str | None = None,
                 patience: float = _PATIENCE) -> None:
        self._proc = proc or Procfs()
        self._patience = patience
        # An older kernel ignores a subscription with kinds. The socket may still receive events while another program
        # is subscribed, but not after that program ends.
        version = linux(os.uname().release if release is None else release)
        self._forms = (_KINDS, None) if version is not None and version >= _CHOOSES else (None,)
        self._network = network or Path(self._proc.root) / "1/ns/net"
        self.filtered = True
        #: The kinds of events that the kernel was asked for; None for all.
        self.kinds: int | None = _KINDS
        self._listening = False
        if _foreign_namespaces(self._proc):
            # The kernel would ignore the subscription, yet send events while another program is subscribed.
            raise SourceError("proc connector", lacking_rights(self._proc))
        self._socket = self._open()
        try:
            self._listen()
        except BaseException:
            self.close()
            raise

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def read(self, most: int = 256) -> tuple[list[Event], bool]:
        """Read pending events. :returns: at most `most` events, oldest first; and whether events were lost."""
        events: list[Event] = []
        lost = False
        receive, parse = self._socket.recvfrom, proc_events.parse
        for _ in range(most):
            try:
                raw, sender = receive(_READ)
            except BlockingIOError:
                break
            except OSError as err:
                if err.errno != errno.ENOBUFS:
                    raise
                lost = True
                continue
            if sender[0]:
                continue  # not the kernel: any program with CAP_NET_ADMIN may send to this socket
            try:
                event = parse(raw)
            except WireError:
                continue
            if event is not None:
                events.append(event)
        return events, lost

    def follow(self, pids: Collection[int]) -> None:
        """Receive new threads and thread names (COMM) of these processes only, and new kernel threads only if there
        are any. If the kernel has no room for such a filter, and before the first call, those of all processes are
        received. Events already queued are not filtered."""
        programs = [proc_events.socket_filter()]
        if len(pids) <= proc_events.MAX_FOLLOWED:
            chosen = proc_events.socket_filter(pids)
            # If both filters do not fit (ENOMEM, sysctl net.core.optmem_max), a short one replaces the old one first.
            programs = [chosen, *programs, chosen]
        attached = False
        for program in programs:
            with contextlib.suppress(OSError):
                _attach(self._socket, program)
                attached = True
                if program is programs[0]:
                    return
        if not attached:  # the former filter would hide threads of newly followed processes
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)

    def close(self) -> None:
        """Unsubscribe and close. Idempotent. The kernel counts its listeners, and would keep generating events for one
        that closed its socket without unsubscribing."""
        if self._listening:
            self._listening = False
            with contextlib.suppress(OSError):
                self._socket.send(proc_events.subscription(MCAST_IGNORE, self.kinds))
        self._socket.close()

    def _open(self) -> socket.socket:
        with contextlib.ExitStack() as closing:
            try:
                netlink = closing.enter_context(socket.socket(
                    socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
                    _NETLINK_CONNECTOR))
                try:
                    netlink.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
                except PermissionError:
                    netlink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)  # as much as any process may
                with contextlib.suppress(OSError):  # without the filter, read() drops the events
                    _attach(netlink, proc_events.socket_filter())
                netlink.bind((0, proc_events.CN_IDX_PROC))
            except OSError as err:
                raise self._unavailable(err) from err
            closing.pop_all()
        return netlink

    def _open_in(self, namespace: Path) -> socket.socket:
        """Open the socket in another network namespace, which a short-lived thread enters."""
        sockets: list[socket.socket] = []
        errors: list[Exception] = []

        def open_inside() -> None:
            import ctypes  # a hardened service may be refused the memory that it needs

            try:
                fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if ctypes.CDLL(None, use_errno=True).setns(fd, _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                finally:
                    os.close(fd)
                sockets.append(self._open())
            except Exception as err:
                errors.append(err)

        thread = threading.Thread(target=open_inside)
        thread.start()
        thread.join()
        if sockets:
            return sockets[0]
        lacks = lacking_rights(self._proc, "network")
        raise SourceError("proc connector", f"{lacks}, which cannot be entered from here: {errors[0]}") from errors[0]

    def _listen(self) -> None:
        """Subscribe, and check that events arrive."""
        for events in self._forms:
            self.kinds, self.filtered = events, events is not None
            message = proc_events.subscription(MCAST_LISTEN, events)
            try:
                try:
                    self._socket.send(message)
                except ConnectionRefusedError:  # not in this network namespace
                    self._socket.close()
                    self._socket = self._open_in(self._network)
                    self._socket.send(message)
            except OSError as err:
                raise self._unavailable(err) from err
            self._listening = True
            if self._receives():
                return
        raise SourceError("proc connector", lacking_rights(self._proc)
                          or "the kernel does not report a new thread of this process")

    def _receives(self) -> bool:
        """Whether a new thread of this process is reported. The kernel does not report a refused subscription
        (cn_proc_mcast_ctl)."""
        own = os.getpid()
        threading.Thread(target=time.sleep, args=(0,)).start()
        deadline = time.monotonic() + self._patience
        while True:
            left = deadline - time.monotonic()
            poll = select.poll()  # select(2) takes no descriptor from 1024 on, and each guest has one
            poll.register(self._socket, select.POLLIN)
            poll.poll(1000 * max(0.0, left))
            if any(isinstance(event, Fork) and event.process == own for event in self.read(_ALL)[0]):
                return True
            if left <= 0:  # only now: the event may have arrived while this thread was stopped
                return False

    def _unavailable(self, err: OSError) -> SourceError:
        missing = err.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT)
        return SourceError("proc connector", "the kernel has no proc connector (CONFIG_PROC_EVENTS), or this service "
                           "may not open its sockets" if missing else lacking_rights(self._proc) or str(err.strerror))


def _attach(to: socket.socket, filter: bytes) -> None:
    """Attach a filter (struct sock_fprog) to a socket. :raises OSError: the kernel refuses it."""
    program = array.array("B", filter)
    to.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER,
                  struct.pack("@HP", len(program) // 8, program.buffer_info()[0]))


def lacking_rights(proc: Procfs, *namespaces: str) -> str:
    """Describe the rights that this process lacks for the connector; "" if none is known to be missing.
    :param namespaces: kinds of namespaces to name in addition to those found in /proc/self/ns."""
    kinds = [*_foreign_namespaces(proc), *namespaces]
    lacks = [f"it needs the machine's own {' and '.join(kinds)} namespace"] if kinds else []
    for line in (read_file(f"{proc.root}/self/status", 8192) or b"").splitlines():
        if line.startswith(b"CapEff:") and not int(line.split()[1], 16) >> _CAP_NET_ADMIN & 1:
            lacks.insert(0, "CAP_NET_ADMIN is missing")
    return ", ".join(lacks)


def _foreign_namespaces(proc: Procfs) -> list[str]:
    """The kinds of namespaces in which this process is not in the machine's initial one, as far as can be read."""
    kinds = []
    for kind, number in _INITIAL.items():
        with contextlib.suppress(OSError):
            if os.readlink(f"{proc.root}/self/ns/{kind}") != f"{kind}:[{number}]":
                kinds.append(kind)
    return kinds
