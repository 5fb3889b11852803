"""What can go wrong, as a tree::

    VmpinError                what failed, on what; `hint` says what to do
    ├── ConfigError           a configuration or scenario value that cannot be used (exit 2)
    ├── UsageError            a command that cannot be carried out as typed (exit 2)
    ├── SourceError           a file or message of a source that cannot be believed
    │   └── WireError         bytes that are not the protocol they should be; the connection is of no more use
    ├── WatcherError          the watcher is away, busy, or said no
    │   └── LockHeldError     another process holds the run directory's lock
    ├── UnseenError           what a command is to judge could not be looked at (exit 3)
    ├── StateFileError        the state file cannot be written
    └── AffinityError         the kernel refused a mask
        ├── ThreadGone        the thread has ended (normal)
        ├── CpuNotAllowed     no CPU asked for is allowed to the thread (EINVAL)
        └── NotPermitted      EPERM

Every error carries its evidence as attributes. The command line turns them into one line and a hint; nothing
else prints or exits.
"""

from __future__ import annotations

import errno

from vmpin.cpuset import CpuSet


class VmpinError(Exception):
    """The base: `str(error)` says what failed on what, `hint` what to do about it."""

    #: With which the command line ends (docs/exit-codes.md).
    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(VmpinError):
    """A value in a file, the environment or a flag; the message names the file, the place and the value."""

    exit_code = 2


class UsageError(VmpinError):
    """What was asked for does not exist or does not go together."""

    exit_code = 2


class SourceError(VmpinError):
    """A hook state, bundle or runtime state that is not what it should be. `where` names it."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")
        self.where = where
        self.why = why


class WireError(SourceError):
    """What came over a connection, or is to go over it, is not that protocol."""


class WatcherError(VmpinError):
    """The watcher cannot be asked."""


class LockHeldError(WatcherError):
    """Another process holds the lock of the run directory."""


class UnseenError(VmpinError):
    """Nothing can be said, good or bad: a watcher that does not answer, or too few rights to look without one."""

    exit_code = 3


class StateFileError(VmpinError):
    """The state file cannot be kept."""


class AffinityError(VmpinError):
    """`tid` is the kernel's thread id, `cpus` what was asked for."""

    def __init__(self, tid: int, cpus: CpuSet, why: str, hint: str = "") -> None:
        super().__init__(f"cannot set thread {tid} to CPUs {cpus}: {why}", hint)
        self.tid = tid
        self.cpus = cpus


class ThreadGone(AffinityError):
    """ESRCH, or the number belongs to another thread by now."""

    def __init__(self, tid: int, cpus: CpuSet) -> None:
        super().__init__(tid, cpus, "the thread has ended")


class CpuNotAllowed(AffinityError):
    """EINVAL: none of the CPUs is both online and in the thread's cpuset cgroup."""

    def __init__(self, tid: int, cpus: CpuSet) -> None:
        super().__init__(tid, cpus, "none of them is online and in the thread's cpuset cgroup",
                         "see the cpuset of the cgroup in /proc/TID/cgroup")


class NotPermitted(AffinityError):
    """EPERM."""

    def __init__(self, tid: int, cpus: CpuSet) -> None:
        super().__init__(tid, cpus, "not permitted", "run vmpin as root or with CAP_SYS_NICE")


def passing(err: OSError) -> bool:
    """Whether it is for want of descriptors or memory: it says nothing of the file, and may go by itself."""
    return err.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
