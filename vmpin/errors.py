"""What can go wrong, as a tree::

    VmpinError                what failed, on what; `hint` has what to do
    ├── ConfigError           a value in a file, the environment or a flag; the message names its place (exit 2)
    ├── UsageError            arguments that name what does not exist, or exclude each other (exit 2)
    ├── SourceError           a file or message of a source that cannot be used
    │   └── WireError         bytes that are not the protocol they should be; the connection is of no more use
    ├── WatcherError          the watcher is away, busy, or refused
    │   ├── LockHeldError     another process holds the run directory's lock
    │   └── WatcherStopped    it is stopped, as by SIGSTOP
    ├── UnseenError           no verdict: a command could not read what it is to judge (exit 3)
    ├── StateFileError        the state file cannot be written
    └── AffinityError         the kernel refused a mask
        ├── ThreadGone        ESRCH, or another thread has the number by now: the thread has ended (normal)
        ├── CpuNotAllowed     EINVAL: no CPU of the mask is both online and in the thread's cpuset cgroup
        ├── ThreadBound       EINVAL: the kernel lets no program set this thread's mask
        └── NotPermitted      EPERM

Every error carries its evidence as attributes. The command line turns them into one line and a hint; nothing else
prints or exits.
"""

from __future__ import annotations

import errno

from vmpin.cpuset import CpuSet


class VmpinError(Exception):
    """The base: `str(error)` is what failed on what, `hint` what to do about it."""

    #: The exit code of the command line (docs/exit-codes.md).
    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(VmpinError):
    exit_code = 2


class UsageError(VmpinError):
    exit_code = 2


class SourceError(VmpinError):
    """`where` names the file or peer, `why` is what is wrong with what it holds or sent."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")
        self.where = where
        self.why = why


class WireError(SourceError):
    pass


class WatcherError(VmpinError):
    pass


class LockHeldError(WatcherError):
    pass


class WatcherStopped(WatcherError):
    """`pid` is the watcher's."""

    def __init__(self, pid: int, hint: str = "") -> None:
        super().__init__(f"the watcher (pid {pid}) is stopped", f"`kill -CONT {pid}` continues it (a service: "
                         f"`systemctl kill --signal=CONT vmpin`){'; ' * bool(hint)}{hint}")
        self.pid = pid


class UnseenError(VmpinError):
    exit_code = 3


class StateFileError(VmpinError):
    pass


class AffinityError(VmpinError):
    """`tid` is the kernel's thread id, `cpus` the mask that was requested."""

    def __init__(self, tid: int, cpus: CpuSet, why: str, hint: str = "") -> None:
        super().__init__(f"cannot set thread {tid} to CPUs {cpus}: {why}", hint)
        self.tid = tid
        self.cpus = cpus


class ThreadGone(AffinityError):
    def __init__(self, tid: int, cpus: CpuSet) -> None:
        super().__init__(tid, cpus, "the thread has ended")


class CpuNotAllowed(AffinityError):
    def __init__(self, tid: int, cpus: CpuSet) -> None:
        super().__init__(tid, cpus, "none of them is online and in the thread's cpuset cgroup",
                         "see the cpuset of the cgroup in /proc/TID/cgroup")


class ThreadBound(AffinityError):
    def __init__(self, tid: int, cpus: CpuSet) -> None:
        super().__init__(tid, cpus, "the kernel lets no program set the mask of this thread (PF_NO_SETAFFINITY)",
                         "for an io_uring worker of a VMM use Linux 6.3 or newer, or another aio= for its disks")


class NotPermitted(AffinityError):
    def __init__(self, tid: int, cpus: CpuSet) -> None:
        super().__init__(tid, cpus, "not permitted", "run vmpin as root or with CAP_SYS_NICE")


def passing(err: OSError) -> bool:
    """True if a call failed for want of descriptors or memory: no fault of the file, and it may pass by itself."""
    return err.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
