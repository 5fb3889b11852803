"""The running kernel, and a process's capabilities, namespaces and access to the proc connector.

The connector is tested without subscribing: the kernel counts its subscribers, and one that comes and goes may cost
another its events. psutil has no capabilities or namespaces."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct

from vmpin.domain.facts import ConnectorFacts, Kernel, Rights
from vmpin.host.procfs import Procfs, linux, read_file
from vmpin.reports.redact import kernel_parameters

#: include/uapi/linux/capability.h; those that matter here.
CAPABILITIES = {0: "CAP_CHOWN", 1: "CAP_DAC_OVERRIDE", 2: "CAP_DAC_READ_SEARCH", 12: "CAP_NET_ADMIN",
                19: "CAP_SYS_PTRACE", 23: "CAP_SYS_NICE"}
#: include/linux/proc_ns.h: PROC_PID_INIT_INO and PROC_USER_INIT_INO, the same on every machine.
_INITIAL = {"pid": 0xEFFFFFFC, "user": 0xEFFFFFFD}
_INODE = re.compile(r"[a-z]+:\[([0-9]+)\]")
_NETLINK_CONNECTOR, _CN_IDX_PROC, _NLMSG_DONE = 11, 1, 3  #: linux/netlink.h, linux/connector.h
#: An id that the kernel does not use: it discards the message, but a namespace without a connector refuses it.
_UNUSED_ID = 0x7FFFFFFF


def kernel(proc: Procfs, sys_root: str = "/sys") -> Kernel:
    """The running kernel's facts; what cannot be read is left empty."""
    release = _text(f"{proc.root}/sys/kernel/osrelease")
    return Kernel(release, linux(release), tuple(kernel_parameters(_text(f"{proc.root}/cmdline"))),
                  schedstat=os.path.exists(f"{proc.root}/self/schedstat"),
                  kvm_debugfs=os.path.isdir(f"{sys_root}/kernel/debug/kvm"))


def _text(path: str) -> str:
    try:
        return (read_file(path) or b"").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def status_fields(proc: Procfs, process: str) -> dict[str, str]:
    """The fields of a process's status file, {} where it cannot be read. The kernel escapes a newline in the name."""
    lines = _text(f"{proc.root}/{process}/status").split("\n")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def rights(proc: Procfs, pid: int | None, who: str) -> Rights:
    """The rights of a process; for None those of this process, with its pid in that /proc."""
    at = "self" if pid is None else str(pid)
    fields = status_fields(proc, at)
    uid, effective = fields.get("Uid", "").split(), fields.get("CapEff", "")
    bits = int(effective, 16) if effective else None
    return Rights(who, pid if pid is not None else int(fields.get("Pid") or 0), int(uid[1]) if len(uid) > 1 else -1,
                  None if bits is None else frozenset(name for bit, name in CAPABILITIES.items() if bits >> bit & 1),
                  user_ns=_initial(proc, at, "user"), pid_ns=_initial(proc, at, "pid"))


def _initial(proc: Procfs, process: str, kind: str) -> bool | None:
    """True for the machine's own namespace of this kind, None if it cannot be read."""
    try:
        found = _INODE.fullmatch(os.readlink(f"{proc.root}/{process}/ns/{kind}"))
    except OSError:
        return None
    return None if found is None else int(found[1]) == _INITIAL[kind]


def available(rights: Rights) -> ConnectorFacts:
    """The proc connector's availability for this process, which has these rights."""
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
