"""The process behind a pid that a runtime gave: a hook's state and an NRI event name one, of whichever process.

What stays out: which processes are VMMs (vmm.processes). Called by hook_state and nri.translation.
"""

from __future__ import annotations

from typing import NamedTuple

from vmpin.domain.model import ThreadId
from vmpin.host.procfs import Procfs, seconds_since_boot
from vmpin.vmm.processes import HelperProcess, VmmProcess, classify

#: Seconds: start times count in clock ticks, and an older hook gives the wall clock's time.
_SLACK = 1.0


class PidOwner(NamedTuple):
    """A VMM, or a container's own first process on the host, or neither: a thread of a shim, or no process at all."""

    vmm: ThreadId | None = None
    init: ThreadId | None = None


def owner_of(pid: int, proc: Procfs, named: int | None = None) -> PidOwner:
    """Look a pid up in /proc. :param named: as for `has_ended`. :raises OSError: when /proc cannot be read now."""
    if not pid or proc.tgid(pid) != pid or has_ended(pid, proc, named):
        return PidOwner()
    stat = proc.stat(pid)
    if stat is None or stat.kernel_thread:
        return PidOwner()
    argv = proc.cmdline(pid)
    if not argv:
        return PidOwner()  # a zombie, which has no command line any more
    found = classify(argv)
    identity = ThreadId(pid, stat.starttime)
    if isinstance(found, VmmProcess) and not proc.nested(pid):
        return PidOwner(vmm=identity)
    # A VMM in a pid namespace of its own is the first process of a runc container.
    return PidOwner() if isinstance(found, HelperProcess) else PidOwner(init=identity)


def has_ended(pid: int, proc: Procfs, named: int | None) -> bool:
    """Whether a process has ended since a runtime named its pid (CLOCK_BOOTTIME ns; None: just now). A process that
    began since then is another one, with the same pid."""
    stat = proc.stat(pid)
    return stat is None or (named is not None and seconds_since_boot(stat.starttime) > named / 1e9 + _SLACK)
