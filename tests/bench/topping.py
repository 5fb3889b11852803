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
        while self.parts < count or self.process.poll() is not None:
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
        written = shown.bytes
        value, least = _shares(shown, bare, refreshes, delay, lambda: wake(machines))
        written = shown.bytes - written
        asleep, idle = _shares(shown, bare, refreshes, delay, lambda: None)
    return Figure("top_200x16", value, "% of a CPU", least, 2.5, "ratio",
                  {"sandboxes": len(machines), "threads": sum(len(machine.tids()) for machine in machines),
                   "refreshes": refreshes, "delay_seconds": delay, "refresh_ms": round(10 * value * delay, 3),
                   "asleep": round(asleep, 3), "asleep_floor": round(idle, 3),
                   "bytes_a_refresh": round(written / refreshes)})


def _shares(shown: Shown, bare: Shown, refreshes: int, delay: float,
            work: Callable[[], object]) -> tuple[float, float]:
    """What each of the two needs, in % of a CPU at that delay, until both have refreshed so often: however late a busy
    machine is with that. `work` is done once a second, or as often as they refresh."""
    both = shown, bare
    before = [(cpu_seconds(each.process.pid), each.parts) for each in both]
    while any(each.parts < parts + refreshes for each, (_, parts) in zip(both, before, strict=True)):
        work()
        time.sleep(min(1.0, delay / 2))
        for each in both:
            each.until(0)
    found = [100 * (cpu_seconds(each.process.pid) - spent) / (each.parts - parts) / delay
             for each, (spent, parts) in zip(both, before, strict=True)]
    return found[0], found[1]
