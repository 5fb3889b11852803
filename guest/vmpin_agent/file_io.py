"""Small files of the kernel's: read, with None for what is not there, and written."""

from __future__ import annotations

import os
import sys
from typing import List, Optional

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.protocol.frames import clean


def read(path: str) -> Optional[str]:
    """The whole file, None when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts: List[bytes] = []
        while True:
            part = os.read(fd, 1 << 16)
            if not part:
                return b"".join(parts).decode("utf-8", "surrogateescape")
            parts.append(part)
    except OSError:
        return None
    finally:
        os.close(fd)


def cpus(path: str) -> Optional[CpuSet]:
    """A list of CPUs, None when there is none."""
    text = read(path)
    try:
        return None if text is None else CpuSet.parse(text)
    except CpuSetError:
        return None


def write(path: str, text: str) -> None:
    """In one write, as a control file takes it. :raises OSError:"""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, (text + "\n").encode())
    finally:
        os.close(fd)


def replace(path: str, text: str, mode: int) -> None:
    """The file has this text at once, or is as it was. :raises OSError:"""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    part = f"{path}.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode), "w") as file:
        file.write(text)
    os.replace(part, path)


def log(text: str) -> None:
    """A line on standard error: the journal's, or the console's."""
    try:
        sys.stderr.write(f"vmpin-agent: {clean(text)}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return  # nobody reads it
