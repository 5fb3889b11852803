"""The kernel's proc connector (linux/cn_proc.h): reports new programs, threads and their names as they appear.

The descriptor is for an event loop. Events that come faster than they are read are lost, and the loss is reported; a
resync makes up for it.
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
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
#: What the kernel keeps of events that are not read yet (bytes, which it doubles): twenty thousand of some 800 bytes,
#: a third of a second of the worst that two CPUs can do.
_BUFFER = 8 << 20
_ALL = 1 << 15  #: More events than it holds.
#: Longer than any event.
_READ = 512
_KINDS = FORK | EXEC | COMM
_PATIENCE = 2.0  #: Seconds for the event of a thread of one's own. It comes within a millisecond.
#: Linux that can choose the kinds for each listener (drivers/connector/cn_proc.c).
_CHOOSES = (6, 6)
_CAP_NET_ADMIN = 12
_CLONE_NEWNET = 0x40000000
_INITIAL = {"user": 0xEFFFFFFD, "pid": 0xEFFFFFFC}  #: include/linux/proc_ns.h: PROC_USER_INIT_INO, PROC_PID_INIT_INO.


class ProcConnector:
    """A listener. `filtered`: whether the kernel chooses the kinds of events for it (since Linux 6.6).
    :param release: the running kernel's. :param patience: seconds within which the kernel has to report a thread of
        our own.
    :param network: where the machine's network namespace is entered if this is another: events come only there.
    :raises SourceError: no events can be received here, with the reason. May take seconds."""

    def __init__(self, proc: Procfs | None = None, network: Path | None = None, release: str | None = None,
                 patience: float = _PATIENCE) -> None:
        self._proc = proc or Procfs()
        self._patience = patience
        # An older kernel ignores a subscription with kinds. A socket that receives events all the same, as another
        # program listens, receives none as soon as that program ends.
        version = linux(os.uname().release if release is None else release)
        self._forms = (_KINDS, None) if version is not None and version >= _CHOOSES else (None,)
        self._network = network or Path(self._proc.root) / "1/ns/net"
        self.filtered = True
        #: The kinds of events that the kernel was asked for; None for all.
        self.kinds: int | None = _KINDS
        self._listening = False
        if _foreign_namespaces(self._proc):
            # The kernel would ignore the subscription, and send events as long as another program listens.
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
        """Read at most so many events, the oldest first. :returns: them, and whether earlier ones were lost."""
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

    def follow_names(self, pids: Collection[int]) -> None:
        """Receive from now on only the names of these processes' threads, where the kernel has room for them; of all
        processes otherwise, and before the first call. Events that were sent already are received yet."""
        programs = [proc_events.socket_filter()]
        if len(pids) <= proc_events.MAX_NAMED:
            chosen = proc_events.socket_filter(pids)
            # Without room for both (ENOMEM, sysctl net.core.optmem_max) the old one gives way to a short one first.
            programs = [chosen, *programs, chosen]
        for program in programs:
            with contextlib.suppress(OSError):
                _attach(self._socket, program)
                if program is programs[0]:
                    return

    def close(self) -> None:
        """End the subscription; a second call does nothing. The kernel counts its listeners, and goes on making events
        for one that does not unsubscribe."""
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
                with contextlib.suppress(OSError):  # then they are sorted out here
                    _attach(netlink, proc_events.socket_filter())
                netlink.bind((0, proc_events.CN_IDX_PROC))
            except OSError as err:
                raise self._unavailable(err) from err
            closing.pop_all()
        return netlink

    def _open_in(self, namespace: Path) -> socket.socket:
        """A socket of another network namespace; a thread goes there for it, and ends."""
        sockets: list[socket.socket] = []
        errors: list[Exception] = []

        def there() -> None:
            import ctypes  # which a hardened service may be refused the memory for

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

        thread = threading.Thread(target=there)
        thread.start()
        thread.join()
        if sockets:
            return sockets[0]
        lacks = lacking_rights(self._proc, "network")
        raise SourceError("proc connector", f"{lacks}, which cannot be entered from here: {errors[0]}") from errors[0]

    def _listen(self) -> None:
        """Ask for events, and see that they come."""
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
                          or "the kernel does not report a thread of our own")

    def _receives(self) -> bool:
        """Whether the creation of a thread of our own is reported. The kernel does not report a refused subscription
        (cn_proc_mcast_ctl)."""
        own, late = os.getpid(), False
        threading.Thread(target=time.sleep, args=(0,)).start()
        deadline = time.monotonic() + self._patience
        while not late:  # and once more: it may have come while it was this thread that stood still
            late = (left := deadline - time.monotonic()) <= 0
            select.select([self._socket], [], [], max(0.0, left))
            if any(isinstance(event, Fork) and event.process == own for event in self.read(_ALL)[0]):
                return True
        return False

    def _unavailable(self, err: OSError) -> SourceError:
        missing = err.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT)
        return SourceError("proc connector", "the kernel has none (CONFIG_PROC_EVENTS), or this service may not have "
                           "its sockets" if missing else lacking_rights(self._proc) or str(err.strerror))


def _attach(to: socket.socket, filter: bytes) -> None:
    """Have the kernel run a filter (struct sock_fprog) on a socket's messages. :raises OSError: it does not."""
    program = array.array("B", filter)
    to.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER,
                  struct.pack("@HP", len(program) // 8, program.buffer_info()[0]))


def lacking_rights(proc: Procfs, *namespaces: str) -> str:
    """Name the rights that this process lacks for the connector, "" if none is known to be missing.
    :param namespaces: kinds that are missing besides those that its links under /proc/self/ns show."""
    kinds = [*_foreign_namespaces(proc), *namespaces]
    lacks = [f"it takes the machine's own {' and '.join(kinds)} namespace"] if kinds else []
    for line in (read_file(f"{proc.root}/self/status", 8192) or b"").splitlines():
        if line.startswith(b"CapEff:") and not int(line.split()[1], 16) >> _CAP_NET_ADMIN & 1:
            lacks.insert(0, "CAP_NET_ADMIN is missing")
    return ", ".join(lacks)


def _foreign_namespaces(proc: Procfs) -> list[str]:
    """The kinds of which this process is in another namespace than the machine's first, as far as that is known."""
    kinds = []
    for kind, number in _INITIAL.items():
        with contextlib.suppress(OSError):
            if os.readlink(f"{proc.root}/self/ns/{kind}") != f"{kind}:[{number}]":
                kinds.append(kind)
    return kinds
