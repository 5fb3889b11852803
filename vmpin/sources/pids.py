"""The process with a pid that a runtime reported, in a hook's state or an NRI event."""

from __future__ import annotations

from vmpin.domain.events import VmmClaim
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.host.procfs import Procfs, Stat, seconds_since_boot
from vmpin.named_tuple import NamedTuple
from vmpin.vmm.recognition import ClaimedVmm, Impostor, VmmProcess, recognize

_ENDED = frozenset("ZXx")  #: States of a process that has ended (proc_pid_stat(5)).
_SLACK = 1.0  #: Seconds: start times count in clock ticks.


class PidOwner(NamedTuple):
    """A VMM, or a container's first process on the host; neither for any other process, and without a process.
    `sandbox` is the one that the VMM's command line names, perhaps cut; None if it names none."""

    vmm: ThreadId | None = None
    init: ThreadId | None = None
    sandbox: SandboxId | None = None


def owner_of(pid: int, proc: Procfs, sandbox: SandboxId, named: int | None = None) -> PidOwner:
    """Look a pid up in /proc. :param sandbox: the sandbox with which the runtime reported the pid: it makes an
    unprivileged process (Kata's `rootless`) that names this sandbox its VMM. :param named: see `has_ended`.
    :raises OSError: if /proc cannot be read now."""
    stat = _same_process(pid, proc, named) if pid and proc.tgid(pid) == pid else None
    if stat is None or stat.kernel_thread or stat.state in _ENDED:
        return PidOwner()
    # During its exec a process has no arguments, as a container's first process often is when its start is reported.
    recognized = None if proc.nested(pid) else recognize(proc, pid, proc.beginning(pid),
                                                         claimed=ClaimedVmm(sandbox, VmmClaim(pid)))
    identity = ThreadId(pid, stat.starttime)
    if recognized is None or isinstance(recognized, Impostor):
        return PidOwner(init=identity)
    _, process, _ = recognized
    return PidOwner(identity, sandbox=process.sandbox) if isinstance(process, VmmProcess) else PidOwner()


def has_ended(pid: int, proc: Procfs, named: int | None) -> bool:
    """Whether a process has ended since a runtime reported its pid. :param named: when (CLOCK_BOOTTIME ns); None:
    now."""
    return _same_process(pid, proc, named) is None


def _same_process(pid: int, proc: Procfs, named: int | None) -> Stat | None:
    """The stat of the process that had the pid at `named`; None if it has ended. A process that began later has reused
    the pid."""
    stat = proc.stat(pid)
    if stat is not None and named is not None and seconds_since_boot(stat.starttime) > named / 1e9 + _SLACK:
        return None
    return stat
