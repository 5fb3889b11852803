"""Small files: reading (None if absent), writing control files, replacing; and the log on standard error."""

import os
import sys
from typing import List, Optional

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.protocol.frames import clean


def read(path: str) -> Optional[str]:
    """The whole file; None if it cannot be read."""
    raw = read_bytes(path)
    return None if raw is None else raw.decode("utf-8", "surrogateescape")


def read_bytes(path: str) -> Optional[bytes]:
    """Read a file as `read` does. By system calls, as there are thousands: open() takes half as long again."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts: List[bytes] = []
        while True:
            part = os.read(fd, 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
    except OSError:
        return None
    finally:
        os.close(fd)


def cpus(path: str) -> Optional[CpuSet]:
    """A file with a list of CPUs; None if there is no such file or no list in it."""
    text = read(path)
    try:
        return None if text is None else CpuSet.parse(text)
    except CpuSetError:
        return None


def write(path: str, text: str) -> None:
    """Write with one system call, as control files need it. :raises OSError: the kernel refuses it."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, (text + "\n").encode())
    finally:
        os.close(fd)


def replace(path: str, text: str, mode: int) -> None:
    """Give the file this content atomically. :raises OSError: the file is as it was."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    part = f"{path}.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode), "w") as file:
        file.write(text)
    os.replace(part, path)


def log(text: str) -> None:
    """Write a line to standard error, which is the journal or the console; nothing for an empty text."""
    if not text:
        return
    try:
        sys.stderr.write(f"vmpin-agent: {clean(text)}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return  # standard error is closed
