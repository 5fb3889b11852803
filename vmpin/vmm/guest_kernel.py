"""Which Linux a VM was started with, from the kernel image that its VMM was given.

The guest is not asked: its answer need not be true. The VMM reads the file once, so it is believed only as long as it
is the one from before the VM started.
"""

import os
import re
import stat
from collections.abc import Sequence
from typing import BinaryIO

from vmpin.host.procfs import began

#: Bytes: the size limit of a kernel image, how much of it is searched at a time, and of that again with the next part.
_MOST, _PART, _OVERLAP = 512 << 20, 1 << 20, 64
_BANNER = re.compile(rb"Linux version ([0-9]{1,3})\.([0-9]{1,3})")
_RELEASE = re.compile(rb"([0-9]{1,3})\.([0-9]{1,3})")
#: Documentation/arch/x86/boot.rst: the magic at 0x202, and at 0x20e where the version's text is, less 0x200.
_MAGIC, _MAGIC_AT, _TEXT_AT = b"HdrS", 0x202, 0x20E

#: What was read, by the file's identity: a node's VMs have few different kernels, and one takes 0.1 s to look through.
_known: dict[tuple[int, int, int, int], tuple[int, int] | None] = {}


def kernel_version(paths: Sequence[str], pid: int, starttime: int) -> tuple[int, int] | None:
    """Return the version of a VM's kernel, its first two numbers; None when it cannot be read from the file.
    :param paths: of the kernel: of several it is not known which counts. :param pid: whose view they are of.
    :param starttime: when that process began (clock ticks since boot)."""
    if len(paths) != 1 or not paths[0] or "\0" in paths[0]:
        return None
    path = f"/proc/{pid}/root{paths[0]}" if paths[0].startswith("/") else f"/proc/{pid}/cwd/{paths[0]}"
    try:
        # Not opened before it is known for a file: a command line may name any device, and some act when opened.
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or not 0 < info.st_size <= _MOST or info.st_ctime > began(starttime):
            return None
        key = (info.st_dev, info.st_ino, info.st_ctime_ns, info.st_size)
        if key not in _known:
            if len(_known) >= 64:
                _known.clear()
            # Read and not mapped: its owner may cut it short at any moment.
            with open(f"/proc/self/fd/{fd}", "rb") as image:
                _known[key] = version_in(image)
        return _known[key]
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def version_in(image: BinaryIO) -> tuple[int, int] | None:
    """The version that an x86 bzImage has in its header, or an uncompressed kernel in its data."""
    head = image.read(_PART)
    if head[_MAGIC_AT:_MAGIC_AT + len(_MAGIC)] == _MAGIC:
        at = int.from_bytes(head[_TEXT_AT:_TEXT_AT + 2], "little")
        return _numbers(_RELEASE.match(head, at + 0x200)) if at else None
    read = len(head)
    while head:
        more = image.read(_PART) if read < _MOST else b""
        read += len(more)
        match = _BANNER.search(head)
        if match is not None and (match.end() < len(head) or not more):
            return _numbers(match)
        head = head[-_OVERLAP:] + more if more else b""
    return None


def _numbers(match: re.Match[bytes] | None) -> tuple[int, int] | None:
    return (int(match[1]), int(match[2])) if match else None
