"""A pid and mount namespace for processes of a test: they see each other and no other process, and end together.

Discovery is node-wide, and what containerd starts has ids of its own choosing; in here a watcher sees the test's
sandboxes and no others. When the `with` ends, or this process, however, no process, mount or zombie is left.

    with Enclosure() as enclosure:
        enclosure.popen(["containerd"])
        with enclosure.inside():                      # for what starts processes itself
            subprocess.run([*enclosure.enter, "ps"])
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from lab.cache import PRIVATELY
from need import need_root, need_tool, need_unshare

_CLONE_NEWPID = 0x20000000
_libc = ctypes.CDLL(None, use_errno=True)
#: Process 1: reaps until its standard input ends, then kills and reaps the rest. Else the kernel would kill it at the
#: namespace's end, and no process's times would have their CPU time. The mount hides the daemons' files below /run.
_INIT = """\
import os, select, signal, subprocess
assert os.getpid() == 1
subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"], check=True)
child, wakeup = os.pipe()
os.set_blocking(child, False), os.set_blocking(wakeup, False)
signal.set_wakeup_fd(wakeup)
signal.signal(signal.SIGCHLD, lambda *_: None)
print(flush=True)
while 0 not in select.select([0, child], [], [])[0]:
    os.read(child, 4096)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
try:
    os.kill(-1, signal.SIGKILL)
    while True:
        os.wait()
except (ProcessLookupError, ChildProcessError):
    pass
"""


class Enclosure:
    def __init__(self) -> None:
        need_root()
        need_unshare(*PRIVATELY[PRIVATELY.index("unshare") + 1:-1])
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Enclosure:
        self._process = subprocess.Popen([*PRIVATELY, sys.executable, "-IS", "-c", _INIT], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE)
        try:
            assert self._process.stdout is not None
            assert self._process.stdout.readline() == b"\n", "the namespaces cannot be made"
            self._init = _child(self._process.pid)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """With every process in it. Who started one `inside` has to wait for it before."""
        for process in self._started:
            process.kill()
            process.wait()  # a namespace is not gone before its last zombie
        if self._process is not None:
            try:
                self._process.communicate(timeout=120)
            finally:
                self._process.kill()
                self._process, self._init = None, 0

    def popen(self, argv: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        """Start a process in here; it ends at the end, at the latest."""
        with self.inside():
            started = subprocess.Popen([*self.enter, *argv], stdin=subprocess.DEVNULL, **more)
        self._started.append(started)
        return started

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What this thread starts meanwhile is in the pid namespace; it sees its processes only with `enter`. (A
        thread cannot be started meanwhile.)"""
        with _namespace(self._init) as inner, _namespace(os.getpid()) as own:
            _setns(inner)
            try:
                yield
            finally:
                _setns(own)

    @property
    def enter(self) -> list[str]:
        """Put before a command: with the mounts of in here, its /proc among them."""
        return [need_tool("nsenter"), f"--mount=/proc/{self._init}/ns/mnt", "--"]

    @property
    def proc(self) -> Path:
        """Its /proc, as seen from here."""
        return Path(f"/proc/{self._init}/root/proc")

    def outer(self, pid: int) -> int:
        """The pid here of a process in there."""
        wanted = _identity(self.proc / str(pid))
        for path in Path("/proc").glob("[1-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                status = (path / "status").read_text()
                ids = status.partition("\nNSpid:")[2].partition("\n")[0].split()
                if str(pid) in ids[1:] and _identity(path) == wanted:
                    return int(path.name)
        raise ProcessLookupError(f"{pid} of the namespace")


def _identity(path: Path) -> tuple[str, str]:
    """The start time of a process, and its namespace: another enclosure may have started the same in the same tick."""
    return (path / "stat").read_text().rpartition(")")[2].split()[19], os.readlink(path / "ns/pid")


def _child(pid: int) -> int:
    for path in Path("/proc").glob("[1-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (path / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                return int(path.name)
    raise ProcessLookupError(f"{pid} has no child")


@contextlib.contextmanager
def _namespace(pid: int) -> Iterator[int]:
    fd = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _setns(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWPID):
        raise OSError(ctypes.get_errno(), "setns")
