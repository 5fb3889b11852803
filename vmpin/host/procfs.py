"""Reads /proc, optimized for passes over thousands of threads.

Processes and threads end at any time: functions return None or an empty list for one that has ended. Other errors
(EPERM) are raised as they are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import time
from collections.abc import Collection, Generator, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

from vmpin.bounded import MAX_FD, parse_whole, parse_wholes
from vmpin.domain.model import named
from vmpin.named_tuple import NamedTuple

#: include/linux/sched.h
PF_KTHREAD = 0x00200000
PF_USER_WORKER = 0x00004000
PF_NO_SETAFFINITY = 0x04000000
#: Read sizes for /proc/PID/status: most are 1.5 kB; with 65536 groups (NGROUPS_MAX) it is below the second size.
_STATUS, _LONGEST_STATUS = 8192, 1 << 20
#: Read sizes for a command line: enough to recognize the program (a path has at most 4096 bytes), and the maximum.
BEGINNING, _LONGEST_CMDLINE = 4096, 131072
_OCTAL = r"\\([0-7]{3})"
_RELEASE = r"([0-9]{1,4})\.([0-9]{1,4})"
_READ = os.O_RDONLY | os.O_CLOEXEC
#: ENODEV: the file of a cgroup that was removed since it was opened (fs/kernfs/file.c). ENAMETOOLONG: /proc/PID/cgroup
#: of a process whose cgroup's path is longer than a page, as a container may make it (Linux 6.1: cgroup.c,
#: proc_cgroup_show; newer ones cut it).
_GONE = frozenset((errno.ENOENT, errno.ESRCH, errno.ENOTDIR, errno.ENODEV, errno.ENAMETOOLONG))
_STATES = {state.encode(): state for state in "RSDZXTtIPWK"}
_MAX_UID = (1 << 32) - 1
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that are used (proc_pid_stat(5)). `comm` of a user thread is cut to 15."""

    comm: str
    state: str
    ppid: int
    flags: int
    starttime: int  #: Clock ticks since boot.
    processor: int  #: The CPU it last ran on.

    @property
    def kernel_thread(self) -> bool:
        return bool(self.flags & PF_KTHREAD)


class MountEntry(NamedTuple):
    """A line of /proc/PID/mountinfo. `number` is the mount's own among all namespaces, `device` is major:minor, `top`
    the part of the file system that is mounted at `point`."""

    number: str
    device: str
    top: str
    point: str
    kind: str
    options: tuple[str, ...]


def split_stat(raw: bytes) -> tuple[bytes, list[bytes]] | None:
    """Split a stat line into the name and the fields from the third (state) to the 39th (CPU). None if the text is no
    stat line. The name may contain spaces and parentheses, so it ends at the *last* `)`."""
    begin, end = raw.find(b"("), raw.rfind(b")")
    fields = raw[end + 2 :].split(None, 37)  # what follows is not used
    return None if begin < 0 or end < begin or len(fields) < 37 else (raw[begin + 1 : end], fields)


def parse_stat(raw: bytes) -> Stat | None:
    """Parse a stat line; None if the text is no stat line."""
    parts = split_stat(raw)
    if parts is None:
        return None
    name, fields = parts
    return named(Stat, (_name(name), _STATES.get(fields[0]) or fields[0].decode("ascii", "replace"),
                        int(fields[1]), int(fields[6]), int(fields[19]), int(fields[36])))


@lru_cache(maxsize=1024)
def _name(raw: bytes) -> str:
    """A thread's name as text: thousands of threads have a few different ones."""
    return sys.intern(raw.decode("utf-8", "replace"))


def linux(release: str) -> tuple[int, int] | None:
    """The (major, minor) version in a kernel release (uname(2)); None if it has none."""
    version = re.match(_RELEASE, release)
    return None if version is None else (int(version[1]), int(version[2]))


def began(starttime: int) -> float:
    """Convert a process's start time (clock ticks since boot) to wall clock time (seconds since the epoch)."""
    return time.time() - age(starttime)


def seconds_since_boot(starttime: int) -> float:
    """Convert a process's start time (clock ticks) to CLOCK_BOOTTIME seconds (fs/proc/array.c, do_task_stat)."""
    return starttime / _TICKS_A_SECOND


def age(starttime: int) -> float:
    """Seconds since a process's start time (clock ticks since boot), unaffected by steps of the wall clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - seconds_since_boot(starttime)


def _unescaped(field: str) -> str:
    """A path of mountinfo: space, tab, newline and backslash are written `\\040` and so on."""
    return re.sub(_OCTAL, lambda match: chr(int(match[1], 8)), field)


def read_file(path: str, limit: int = 65536, within: int | None = None) -> bytes | None:
    """Read the first `limit` bytes; None if the file, its process or its cgroup is gone. Not open(): a text or
    buffered file takes twice as many system calls. :param within: a directory that the path is relative to."""
    try:
        fd = os.open(path, _READ, dir_fd=within)
        try:
            return os.read(fd, limit)
        finally:
            os.close(fd)
    except OSError as err:
        if err.errno in _GONE:
            return None
        raise


def split_arguments(raw: bytes) -> list[str]:
    """The arguments in the bytes of a command line."""
    return raw.decode("utf-8", "replace").rstrip("\0").split("\0")


def _target(link: str) -> str:
    """The target of a symbolic link; "" if it cannot be read."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def names_in(directory: str | os.PathLike[str]) -> list[str]:
    """The names in a directory, sorted; [] when it cannot be read."""
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


class Procfs:
    """The processes below `root` (``/proc``, or a recorded tree in tests)."""

    def __init__(self, root: str | Path = "/proc") -> None:
        self.root = os.fspath(root)
        #: The pid namespace of this /proc, as in its ns/pid link; "" if it cannot be read, None before the first use.
        self._namespace: str | None = None

    def pids(self) -> list[str]:
        """Return all process ids, as the names of their directories."""
        return [name for name in os.listdir(self.root) if name[0] in "123456789"]

    def tids(self, pid: int | str) -> list[str]:
        """The thread ids of a process, [] when it has ended."""
        try:
            return os.listdir(f"{self.root}/{pid}/task")
        except (FileNotFoundError, ProcessLookupError):
            return []

    def iter_tids(self, pid: int | str) -> Generator[str, None, None]:
        """Iterate over the thread ids in the kernel's order; with very many threads the caller can stop early."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), \
                os.scandir(f"{self.root}/{pid}/task") as entries:
            for entry in entries:
                yield entry.name

    def thread_count(self, pid: int | str) -> int:
        """The number of a process's threads; -1 if it has ended (fs/proc/base.c: proc_task_getattr). Takes a third of
        the time of listing them."""
        try:
            return os.stat(f"{self.root}/{pid}/task").st_nlink - 2
        except (FileNotFoundError, ProcessLookupError):
            return -1

    def children(self, pid: int | str) -> list[str]:
        """The pids of the children of a process's main thread; [] also without CONFIG_PROC_CHILDREN."""
        return (read_file(f"{self.root}/{pid}/task/{pid}/children", 65536) or b"").decode("ascii", "replace").split()

    def stat(self, pid: int | str) -> Stat | None:
        raw = read_file(f"{self.root}/{pid}/stat", 4096)
        return None if raw is None else parse_stat(raw)

    def thread_stat(self, pid: int | str, tid: int | str) -> Stat | None:
        raw = read_file(f"{self.root}/{pid}/task/{tid}/stat", 4096)
        return None if raw is None else parse_stat(raw)

    def task_stats(self, pid: int | str, tids: Collection[int]) -> dict[int, Stat]:
        """Read the stats of a process's threads, without those that have ended. For many threads it takes half the
        time of `thread_stat`, as it opens the files relative to the task directory."""
        stats: dict[int, Stat] = {}
        if len(tids) == 1:
            return {tid: stat for tid in tids if (stat := self.thread_stat(pid, tid)) is not None}
        try:
            tasks = os.open(f"{self.root}/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            return stats
        opened, read, close = os.open, os.read, os.close
        try:
            for tid in tids:
                try:
                    fd = opened(f"{tid}/stat", _READ, dir_fd=tasks)
                except (FileNotFoundError, ProcessLookupError):
                    continue
                try:
                    stat = parse_stat(read(fd, 4096))
                except ProcessLookupError:
                    continue
                finally:
                    close(fd)
                if stat is not None:
                    stats[tid] = stat
        finally:
            close(tasks)
        return stats

    def beginning(self, pid: int | str) -> bytes:
        """The first 4096 bytes of the raw command line; b"" for kernel threads and processes that have ended."""
        return read_file(f"{self.root}/{pid}/cmdline", BEGINNING) or b""

    def cmdline(self, pid: int | str, beginning: bytes | None = None) -> list[str]:
        """The arguments in the first 128 KiB of the command line (a process may set a very long one); [] for kernel
        threads and processes that have ended. :param beginning: the result of `beginning`, to avoid a second read."""
        raw = self.beginning(pid) if beginning is None else beginning
        if not raw:
            return []
        if len(raw) == BEGINNING:  # rare; a large buffer costs more than reading a typical command line
            raw = read_file(f"{self.root}/{pid}/cmdline", _LONGEST_CMDLINE) or b""
        return split_arguments(raw)

    def status_of(self, pid: int | str, label: bytes) -> bytes:
        """A line of a process's status without its label; b"" without one. Not for what follows the groups."""
        # The thread's name precedes it, but the kernel escapes newlines in the name.
        raw = b"\n" + (read_file(f"{self.root}/{pid}/status", _STATUS) or b"")
        return raw.partition(b"\n%b:" % label)[2].partition(b"\n")[0]

    def tgid(self, pid: int) -> int | None:
        """The process of a thread id. /proc/TID exists for threads, too, although it is not listed."""
        number = self.status_of(pid, b"Tgid")
        return int(number) if number else None

    def uids(self, pid: int | str) -> tuple[int, ...] | None:
        """The uids of a process (real, effective, saved, file system) in this user namespace; None if they cannot be
        read."""
        numbers = parse_wholes(self.status_of(pid, b"Uid").split(), _MAX_UID, 4)
        return tuple(numbers) if numbers else None

    def foreign_uid(self, pid: int | str) -> int:
        """A uid of a process that is neither root's nor this program's; 0 if there is none. By its status, as
        /proc/PID belongs to the effective uid (fs/proc/base.c: task_dump_owner), which is root's for a setuid program
        that another user has started."""
        return max(set(self.uids(pid) or ()) - {0, os.geteuid()}, default=0)

    def nested(self, pid: int | str) -> bool | None:
        """Whether a process is in a pid namespace below that of this /proc, as in a container; None if it has ended.
        By its ns/pid link, which takes a fifth of the time of its status; by its status if the process may not be
        traced (fs/proc/namespaces.c: proc_ns_readlink)."""
        if self._namespace is None:
            # Pid 1 may not be traceable, so this process comes first, if it is not nested itself.
            self._namespace = self._link(1 if self._nested("self") else "self") or ""
        link = self._link(pid) if self._namespace else None
        if link is None:
            return self._nested(pid)
        return link != self._namespace if link else None

    def _nested(self, pid: int | str) -> bool:
        """Whether a process is in a nested pid namespace, by its status file."""
        raw = read_file(f"{self.root}/{pid}/status", _STATUS) or b""
        if len(raw) == _STATUS:  # NSpid follows the groups, and a process may have very many of them
            raw = read_file(f"{self.root}/{pid}/status", _LONGEST_STATUS) or b""
        for line in raw.splitlines():
            if line.startswith(b"NSpid:"):
                return len(line.split()) > 2
        return len(raw) >= _STATUS  # too long to parse: treated as nested

    def _link(self, pid: int | str) -> str | None:
        """The ns/pid link of a process; "" if it has ended, None if it may not be read."""
        try:
            return os.readlink(f"{self.root}/{pid}/ns/pid")
        except (FileNotFoundError, ProcessLookupError):
            return ""
        except OSError:
            return None

    def network_namespace(self, pid: int | str) -> str:
        """The network namespace of a process, as its link names it; "" where that cannot be read."""
        return _target(f"{self.root}/{pid}/ns/net")

    def mounts(self, pid: int | str) -> Iterator[MountEntry]:
        """The mounts that a process sees, in the order of mounting. :raises OSError: they cannot be read."""
        # Not read_file(): read(2) returns at most a page of this file, and a node's mounts take several.
        for line in os.fsdecode(Path(f"{self.root}/{pid}/mountinfo").read_bytes()).split("\n"):
            before, _, after = line.partition(" - ")  # optional fields end there (proc_pid_mountinfo(5))
            fields, kind = before.split(" "), after.split(" ")
            if len(fields) >= 6 and len(kind) >= 3:
                yield MountEntry(fields[0], fields[2], _unescaped(fields[3]), _unescaped(fields[4]),
                                 kind[0], tuple(kind[2].split(",")))

    def executable(self, pid: int | str) -> str:
        """The path of a process's program; "" where that cannot be read. Unlike its command line it is read without
        the memory map's lock (since Linux 4.1: kernel/fork.c, get_task_exe_file)."""
        return _target(f"{self.root}/{pid}/exe")

    def working_directory(self, pid: int | str) -> str:
        """A process's working directory; "" where that cannot be read."""
        return _target(f"{self.root}/{pid}/cwd")

    def syscall(self, pid: int | str, tid: int | str) -> str:
        """/proc/PID/task/TID/syscall: `16 0x1c 0xae80 …`, `running`, or "" when gone or not readable."""
        try:
            raw = read_file(f"{self.root}/{pid}/task/{tid}/syscall", 512)
        except PermissionError:
            return ""
        return "" if raw is None else raw.decode("ascii", "replace").strip()

    def fd_link(self, pid: int | str, fd: int) -> str:
        """The target of a process's descriptor; "" if it cannot be read."""
        return _target(f"{self.root}/{pid}/fd/{fd}")

    def descriptors(self, pid: int | str, most: int = MAX_FD) -> Iterator[tuple[int, str]]:
        """Yield up to `most` of a process's descriptors with their targets, as in `fd_link`; none if it has ended.
        :raises OSError: it may not be traced."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), \
                os.scandir(f"{self.root}/{pid}/fd") as entries:
            for entry in islice(entries, most):
                if (fd := parse_whole(entry.name, MAX_FD)) is not None:
                    yield fd, self.fd_link(pid, fd)

    def boot_id(self) -> str:
        raw = read_file(f"{self.root}/sys/kernel/random/boot_id", 64)
        return "" if raw is None else raw.decode("ascii", "replace").strip()
