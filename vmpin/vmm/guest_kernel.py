"""Which Linux a VM was started with, from the kernel image that QEMU was given.

The guest is not asked: what it says of itself need not be so. QEMU reads the file once, so it is believed only as long
as it is the one from before the VM started. What stays out: what follows from it (guest/numbers).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import stat
import struct
import time
from collections.abc import Sequence

from vmpin.vmm.qemu_cmdline import option_values

#: No kernel is longer (bytes); and as much as is looked through at a time.
_MOST, _PART = 512 << 20, 1 << 20
_BANNER = re.compile(rb"Linux version ([0-9]{1,3})\.([0-9]{1,3})")
_RELEASE = re.compile(rb"([0-9]{1,3})\.([0-9]{1,3})")
#: Documentation/arch/x86/boot.rst: the magic at 0x202, and at 0x20e where the version's text is, less 0x200.
_MAGIC, _MAGIC_AT, _TEXT_AT = b"HdrS", 0x202, 0x20E

#: What was read, by the file's identity: a node's VMs have few different kernels, and one takes 0.1 s to look through.
_known: dict[tuple[int, int, int, int], tuple[int, int] | None] = {}


def kernel_version(argv: Sequence[str], pid: int, starttime: int) -> tuple[int, int] | None:
    """Of QEMU's `-kernel`, as the first two numbers; None when it cannot be told.

    :param pid: whose view the path is of. :param starttime: when that process began (clock ticks since boot).
    """
    paths = option_values(argv, "kernel")
    if len(paths) != 1 or not paths[0] or "\0" in paths[0]:
        return None
    path = f"/proc/{pid}/root{paths[0]}" if paths[0].startswith("/") else f"/proc/{pid}/cwd/{paths[0]}"
    began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + starttime / os.sysconf("SC_CLK_TCK")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or not 0 < info.st_size <= _MOST or info.st_ctime > began:
            return None
        key = (info.st_dev, info.st_ino, info.st_ctime_ns, info.st_size)
        if key not in _known:
            if len(_known) >= 64:
                _known.clear()
            with mmap.mmap(fd, info.st_size, prot=mmap.PROT_READ) as image:
                _known[key] = version_in(image)
        return _known[key]
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def version_in(image: bytes | mmap.mmap) -> tuple[int, int] | None:
    """The version that an x86 bzImage has in its header, or an uncompressed kernel in its data."""
    match = None
    if image[_MAGIC_AT:_MAGIC_AT + len(_MAGIC)] == _MAGIC:
        with contextlib.suppress(struct.error):
            (at,) = struct.unpack_from("<H", image, _TEXT_AT)
            match = _RELEASE.match(image, at + 0x200) if at else None
    else:
        # In parts: a search lets no other thread run.
        parts = (_BANNER.search(image, at, at + _PART + 64) for at in range(0, len(image), _PART))
        match = next(filter(None, parts), None)
    return (int(match[1]), int(match[2])) if match else None
