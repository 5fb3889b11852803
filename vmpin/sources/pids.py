"""The process behind a pid that a runtime gave: a hook's state and an NRI event name one, of whichever process."""

from __future__ import annotations

from typing import NamedTuple

from vmpin.domain.events import VmmClaim
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.host.procfs import Procfs, Stat, seconds_since_boot
from vmpin.vmm.recognition import ClaimedVmm, Impostor, VmmProcess, recognize

_ENDED = frozenset("ZXx")  #: States of a process that has ended (proc_pid_stat(5)).
_SLACK = 1.0  #: Seconds: start times count in clock ticks.


class PidOwner(NamedTuple):
    """A VMM, or a container's own first process on the host, or neither: a thread of a shim, or no process at all."""

    vmm: ThreadId | None = None
    init: ThreadId | None = None


def owner_of(pid: int, proc: Procfs, sandbox: SandboxId, named: int | None = None) -> PidOwner:
    """Look a pid up in /proc. :param sandbox: of which the runtime named it: that shows that an unprivileged user's
    process (Kata's `rootless`) is the VMM of this sandbox, if it names it. :param named: as for `has_ended`.
    :raises OSError: when /proc cannot be read now."""
    stat = _same_process(pid, proc, named) if pid and proc.tgid(pid) == pid else None
    if stat is None or stat.kernel_thread or stat.state in _ENDED:
        return PidOwner()
    # Without arguments it is in its exec, as a container's first process often is when its start is reported.
    found = recognize(proc, pid, proc.beginning(pid), ClaimedVmm(sandbox, VmmClaim(pid)))
    identity = ThreadId(pid, stat.starttime)
    if found is None or isinstance(found, Impostor):
        return PidOwner(init=identity)
    return PidOwner(vmm=identity) if isinstance(found[1], VmmProcess) else PidOwner()


def has_ended(pid: int, proc: Procfs, named: int | None) -> bool:
    """Whether a process has ended since a runtime named its pid (CLOCK_BOOTTIME ns; None: just now)."""
    return _same_process(pid, proc, named) is None


def _same_process(pid: int, proc: Procfs, named: int | None) -> Stat | None:
    """The stat of the process that had the pid at `named`; one that began since then is another, with the same pid."""
    stat = proc.stat(pid)
    if stat is not None and named is not None and seconds_since_boot(stat.starttime) > named / 1e9 + _SLACK:
        return None
    return stat
