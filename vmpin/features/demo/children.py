"""Waiting for the demo's child processes, while SIGTERM or Ctrl-C may unwind the stack at any moment.

`Popen.poll` and waiting with a time-out take a lock and enter its `try` in two steps (CPython, subprocess._wait): an
exception that a signal handler raises between them leaves the lock taken, and the next wait blocks for good. A pidfd
takes no lock, and neither does waiting without a time-out in two steps.
"""

import os
import select
import signal
import subprocess
from collections.abc import Sequence
from typing import Any


def ended(process: subprocess.Popen[bytes], seconds: float = 0.0) -> bool:
    """Whether a child has ended, or ends within so many seconds. Does not reap it."""
    if process.returncode is not None:
        return True
    descriptor = os.pidfd_open(process.pid)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def run(argv: Sequence[str], seconds: float, **more: Any) -> int:
    """Run a command. :returns: its exit code. :raises subprocess.TimeoutExpired: it was killed after `seconds`."""
    process = subprocess.Popen(argv, **more)
    try:
        if not ended(process, seconds):
            raise subprocess.TimeoutExpired(argv, seconds)
        return process.wait()
    except BaseException:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        raise
