"""The capabilities and namespaces of a process, from /proc.

Called by node_facts. psutil has neither. What stays out: the required ones (doctor.node_checks).
"""

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
    """The rights of a process; for None those of this process, with its pid in that /proc."""
    at = f"{proc.root}/{'self' if pid is None else pid}"
    try:
        raw = read_file(f"{at}/status", 8192) or b""
    except OSError:
        raw = b""
    # The name comes first, but the kernel escapes a newline in it.
    fields = dict(line.split(b":", 1) for line in raw.split(b"\n") if b":" in line)
    uid, effective = fields.get(b"Uid", b"").split(), fields.get(b"CapEff", b"").strip()
    number = fields.get(b"Pid", b"").strip()
    bits = int(effective, 16) if effective else None
    return Rights(
        who, pid if pid is not None else int(number or 0), int(uid[1]) if len(uid) > 1 else -1,
        None if bits is None else frozenset(name for bit, name in CAPABILITIES.items() if bits >> bit & 1),
        user_ns=_initial(at, "user"), pid_ns=_initial(at, "pid"))


def _initial(process: str, kind: str) -> bool | None:
    """True for the machine's own namespace of this kind, None if it cannot be read."""
    try:
        found = _INODE.fullmatch(os.readlink(f"{process}/ns/{kind}"))
    except OSError:
        return None
    return None if found is None else int(found[1]) == _INITIAL[kind]
