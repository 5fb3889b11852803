"""`vmpin top` in a terminal, beside a program that reads the same files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench_node import Node, Watcher, cpu_seconds
from drifting import wake
from measure import CannotMeasure, Figure, environment
from vms import Machine

#: The default of `vmpin top --delay`, in seconds.
DELAY = 3.0


class Shown:
    """A program in a terminal of 80x24, whose output is read and counted."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                                        env=environment(TERM="xterm-256color"))
        os.close(theirs)
        self.bytes, self.parts = 0, 0
        self.last = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while part := os.read(self._ours, 65536):
                self.last = part
                self.bytes += len(part)
                self.parts += 1

    def until(self, count: int) -> None:
        """Until it has written so many times."""
        deadline = time.monotonic() + 600
        while self.parts < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise CannotMeasure(f"{self.process.args!r:.200} shows nothing: {self.last[-300:]!r}")
            time.sleep(0.01)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._thread.join()
        os.close(self._ours)


@contextlib.contextmanager
def _running(*argvs: Sequence[str]) -> Iterator[list[Shown]]:
    found: list[Shown] = []
    try:
        for argv in argvs:
            found.append(Shown(argv))
        yield found
    finally:
        for each in found:
            each.end()


def top(made: Node, machines: Sequence[Machine], refreshes: int, delay: float = DELAY) -> Figure:
    """CPU time of `vmpin top` at its default delay while every thread of the VMs runs between two refreshes, and that
    of the program which reads the same; both at the same time, so that a busy machine weighs on both. `asleep` is the
    same while none of them runs."""
    made.forget()
    floor = [sys.executable, str(Path(__file__).with_name("top_floor.py")), str(delay), str(made.run / "vmpin.sock")]
    with Watcher(made), _running(made.command_line("top", "--delay", str(delay)), floor) as (shown, bare):
        shown.until(3)
        bare.until(2)
        before = shown.parts, bare.parts, shown.bytes
        value, least = _spent([shown.process.pid, bare.process.pid], refreshes * delay, lambda: wake(machines))
        drawn, rounds, written = (now - then for now, then in zip(
            (shown.parts, bare.parts, shown.bytes), before, strict=True))
        asleep, idle = _spent([shown.process.pid, bare.process.pid], refreshes * delay, lambda: None)
    if min(drawn, rounds) < refreshes - 1:
        raise CannotMeasure(f"{drawn} refreshes and {rounds} rounds in the time of {refreshes}")

    def share(seconds: float) -> float:
        return 100 * seconds / (refreshes * delay)

    return Figure("top_200x16", share(value), "% of a CPU", share(least), 2.5, "ratio",
                  {"sandboxes": len(machines), "threads": sum(len(machine.tids()) for machine in machines),
                   "refreshes": refreshes, "delay_seconds": delay, "refresh_ms": round(1000 * value / refreshes, 3),
                   "asleep": round(share(asleep), 3), "asleep_floor": round(share(idle), 3),
                   "bytes_a_refresh": round(written / refreshes)})


def _spent(pids: Sequence[int], seconds: float, work: Callable[[], object]) -> list[float]:
    """CPU seconds of each process in so many seconds, in which `work` is done once a second."""
    before = [cpu_seconds(pid) for pid in pids]
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        work()
        time.sleep(max(0.0, min(1.0, left, end - time.monotonic())))
    return [cpu_seconds(pid) - then for pid, then in zip(pids, before, strict=True)]
