"""What a process may do: its capabilities and namespaces, from /proc. What stays out: what is needed (doctor)."""

from __future__ import annotations

import os
import re

from vmpin.domain.facts import Rights
from vmpin.host.procfs import Procfs, read_file

#: include/uapi/linux/capability.h; those that matter here.
CAPABILITIES = {0: "CAP_CHOWN", 1: "CAP_DAC_OVERRIDE", 2: "CAP_DAC_READ_SEARCH", 12: "CAP_NET_ADMIN",
                19: "CAP_SYS_PTRACE", 23: "CAP_SYS_NICE"}
#: include/linux/proc_ns.h: PROC_PID_INIT_INO and PROC_USER_INIT_INO, the same on every machine.
_INITIAL = {"pid": 0xEFFFFFFC, "user": 0xEFFFFFFD}
_INODE = re.compile(r"[a-z]+:\[([0-9]+)\]")


def rights(proc: Procfs, pid: int | None, who: str) -> Rights:
    """Of a process; None: this one, under whatever number that /proc knows it."""
    at = f"{proc.root}/{'self' if pid is None else pid}"
    try:
        raw = read_file(f"{at}/status", 8192) or b""
    except OSError:
        raw = b""
    # The name stands before it, but the kernel escapes a newline in that.
    fields = dict(line.split(b":", 1) for line in raw.split(b"\n") if b":" in line)
    uid, effective = fields.get(b"Uid", b"").split(), fields.get(b"CapEff", b"").strip()
    number = fields.get(b"Pid", b"").strip()
    bits = int(effective, 16) if effective else None
    return Rights(
        who, pid if pid is not None else int(number or 0), int(uid[1]) if len(uid) > 1 else -1,
        None if bits is None else frozenset(name for bit, name in CAPABILITIES.items() if bits >> bit & 1),
        user_ns=_initial(at, "user"), pid_ns=_initial(at, "pid"))


def _initial(process: str, kind: str) -> bool | None:
    """Whether a process is in the machine's own namespace of a kind."""
    try:
        found = _INODE.fullmatch(os.readlink(f"{process}/ns/{kind}"))
    except OSError:
        return None
    return None if found is None else int(found[1]) == _INITIAL[kind]
