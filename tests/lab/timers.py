"""Runs in the node: sets the timers of an emulated CPU going again that has lost an interrupt of its clock.

Linux programs a CPU's clock for the timer that ends first. Where the emulator loses that one interrupt, every timer
that is set on that CPU later ends later than the first, which has ended long ago, so the clock is not programmed any
more and the CPU's timers are dead for good (hrtimer_reprogram, seen on 6.1). A timer that ends before all others gets
it programmed; on each CPU a thread sets one whenever the thread of the CPU before it says so, which takes no timer
there.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
import time

#: Seconds between two pokes: so long, or a little longer, a CPU's timers may stand still.
PAUSE = 2.0
_CLOCK_MONOTONIC, _TIMER_ABSTIME = 1, 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def keep(cpu: int, poked: int, other: int) -> None:
    """Look after one CPU. :param poked: the pipe that says so. :param other: the pipe of the next CPU's thread."""
    libc, past = ctypes.CDLL(None), _Timespec(0, 1)
    due = time.monotonic() + PAUSE
    while True:
        if select.select([poked], [], [], max(0.0, due - time.monotonic()))[0]:
            os.read(poked, 4096)
            try:
                os.sched_setaffinity(0, {cpu})  # it was moved away if the CPU has been offline
            except OSError:
                continue
            libc.clock_nanosleep(_CLOCK_MONOTONIC, _TIMER_ABSTIME, ctypes.byref(past), None)
        else:
            due = time.monotonic() + PAUSE
            os.write(other, b".")


def main() -> None:
    cpus = range(os.sysconf("SC_NPROCESSORS_CONF"))
    pipes = [os.pipe() for _ in cpus]
    for cpu in cpus:
        threading.Thread(target=keep, args=(cpu, pipes[cpu][0], pipes[(cpu + 1) % len(cpus)][1])).start()


if __name__ == "__main__":
    main()
