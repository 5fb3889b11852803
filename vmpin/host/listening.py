"""Whether a process listens at the path of a unix socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def answers(path: Path) -> bool:
    """Whether a process accepts connections at a path: a socket that its process has left behind refuses them."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            client.connect(f"/proc/self/fd/{fd}")  # a path may be longer than the 107 bytes of an address
    except BlockingIOError:
        return True  # its queue is full
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
