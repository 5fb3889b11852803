"""Which descriptors of a process are one open file: duplicates (dup, fork, SCM_RIGHTS) share it.

/proc shows a link and an fdinfo for each descriptor, alike for duplicates and for a file that was opened again; only
kcmp(2) compares open files (kernel/kcmp.c, KCMP_FILE)."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from vmpin.host.procfs import Procfs

#: The call's number (asm/unistd.h), as glibc has no wrapper.
_KCMP = {"x86_64": 312, "aarch64": 272, "riscv64": 272, "ppc64le": 354, "s390x": 343}
_FILE = 0  #: linux/kcmp.h, KCMP_FILE
#: Each is compared with each distinct one: a process chooses how many it has. A tap has 256 queues at most.
MAX_FDS = 1024


def distinct_files(proc: Procfs, pid: int, fds: Sequence[int]) -> list[int]:
    """The first MAX_FDS descriptors without duplicates of earlier ones, in their order; with the duplicates where the
    kernel does not compare them: without CONFIG_KCMP, without the right to trace the process, or with a /proc of
    another pid namespace, whose numbers mean other processes here."""
    fds = fds[:MAX_FDS]
    number = _KCMP.get(platform.machine())
    if len(fds) < 2 or number is None or not _own(proc):
        return list(fds)
    import ctypes  # which a hardened service may be refused the memory for

    call = ctypes.CDLL(None, use_errno=True).syscall
    found: list[int] = []
    for fd in fds:
        if not any(call(number, pid, pid, _FILE, ctypes.c_ulong(fd), ctypes.c_ulong(other)) == 0 for other in found):
            found.append(fd)
    return found


def _own(proc: Procfs) -> bool:
    """Whether this /proc has this process by the number that it has for itself."""
    try:
        return os.readlink(f"{proc.root}/self") == str(os.getpid())
    except OSError:
        return False
