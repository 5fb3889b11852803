"""What is behind a pid that a runtime gave: a hook's state and an NRI event name one, and do not say of what."""

from __future__ import annotations

from vmpin.domain.model import ThreadId
from vmpin.host.procfs import Procfs, seconds_since_boot
from vmpin.vmm.processes import HelperProcess, VmmProcess, classify

#: Start times count in clock ticks, and an older hook gives the wall clock's time (seconds).
_SLACK = 1.0


def behind(pid: int, proc: Procfs, named: int | None = None) -> tuple[ThreadId | None, ThreadId | None]:
    """What the pid is: a VMM (its identity first), or a container's own process (second), or neither: a thread of a
    shim, nothing at all.

    :param named: as for `gone`.
    """
    if not pid or proc.tgid(pid) != pid or gone(pid, proc, named):
        return None, None
    stat = proc.stat(pid)
    if stat is None or stat.kernel_thread:
        return None, None
    argv = proc.cmdline(pid)
    if not argv:
        return None, None  # a zombie: of what, nobody can tell any more
    found = classify(argv)
    identity = ThreadId(pid, stat.starttime)
    if isinstance(found, VmmProcess) and not proc.nested(pid):
        return identity, None
    # A VMM in a pid namespace of its own is the first process of a runc container.
    return None, None if isinstance(found, HelperProcess) else identity


def gone(pid: int, proc: Procfs, named: int | None) -> bool:
    """Whether a process has ended since its pid was named (ns of CLOCK_BOOTTIME; None: just now). One that began since
    is another one, with the same pid."""
    stat = proc.stat(pid)
    return stat is None or (named is not None and seconds_since_boot(stat.starttime) > named / 1e9 + _SLACK)
