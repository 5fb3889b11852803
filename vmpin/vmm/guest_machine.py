"""A guest's machine as the host knows it: its Linux version, and the hardware ids of its vCPUs.

The guest itself is not asked, because it is not trusted. The version is read from the kernel image on its VMM's
command line. The VMM reads the image once at its start, so a file that was changed since then is not used.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from vmpin.domain.model import VcpuId
from vmpin.host.files import path_of
from vmpin.host.procfs import began
from vmpin.protocol.frames import MAX_HW
from vmpin.vmm.vmm_type import VmmType

#: Bytes: the maximum size of a kernel image, the size of a chunk to search, and the overlap between chunks.
_MOST, _PART, _OVERLAP = 512 << 20, 1 << 20, 64
_BANNER = re.compile(rb"Linux version ([0-9]{1,3})\.([0-9]{1,3})")
_RELEASE = re.compile(rb"([0-9]{1,3})\.([0-9]{1,3})")
#: Documentation/arch/x86/boot.rst: the magic at 0x202, and at 0x20e where the version's text is, less 0x200.
_MAGIC, _MAGIC_AT, _TEXT_AT = b"HdrS", 0x202, 0x20E

#: Versions by the identity of the file: a node has few different guest kernels, and searching one takes 0.1 s.
_known: dict[tuple[int, int, int, int], tuple[int, int] | None] = {}


def kernel_version(paths: Sequence[str], pid: int, starttime: int) -> tuple[int, int] | None:
    """Return the (major, minor) version of a VM's kernel; None if it cannot be read, or if there are several paths.
    :param paths: the paths of the kernel image, as the VMM sees them. :param pid: the VMM.
    :param starttime: the VMM's start time (clock ticks since boot)."""
    if len(paths) != 1 or not paths[0] or "\0" in paths[0]:
        return None
    try:
        # Checked before it is opened: a command line may name any device, and some act when opened.
        fd = os.open(path_of(pid, paths[0]), os.O_PATH | os.O_CLOEXEC)
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
            # Read, not mapped: its owner may truncate it at any time, which would raise SIGBUS.
            with open(f"/proc/self/fd/{fd}", "rb") as image:
                _known[key] = version_in(image)
        return _known[key]
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def version_in(image: BinaryIO) -> tuple[int, int] | None:
    """Find the version in the header of an x86 bzImage, or in the data of an uncompressed kernel."""
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


def hardware_ids(vmm: VmmType, argv: Sequence[str], vcpus: Iterable[VcpuId]) -> dict[VcpuId, int]:
    """Return the hardware id of each vCPU: the APIC id on x86, the MPIDR's affinity fields on arm64, KVM's vcpu id on
    other architectures. Invalid vCPU numbers are left out."""
    ids = vmm.kvm_ids(argv, vcpus)
    if vmm.machine(argv) == "aarch64":
        ids = {vcpu: mpidr(number) for vcpu, number in ids.items()}
    return {vcpu: number for vcpu, number in ids.items() if 0 <= number <= MAX_HW}


def mpidr(vcpu_id: int) -> int:
    """Aff2.Aff1.Aff0 of KVM's vcpu id on arm64: 16 vCPUs a cluster (arch/arm64/kvm/sys_regs.c: reset_mpidr).

    >>> mpidr(17)
    257"""
    return vcpu_id & 0x0F | (vcpu_id >> 4 & 0xFF) << 8 | (vcpu_id >> 12 & 0xFF) << 16
