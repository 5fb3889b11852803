"""The files of interrupts: /proc/interrupts, /proc/softirqs, /proc/irq; and which devices a VMM has by VFIO.

Since Linux 6.12 the mode of an interrupt's files shows whether its mask can be set; before, writing fails with EIO or
EPERM. That is so for managed interrupts, whose queue has an interrupt for each CPU, and for those of one CPU each
(kernel/irq/manage.c: irq_can_set_affinity_usr).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from functools import lru_cache

from vmpin.bounded import parse_whole
from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.features.irqs.interrupt_table import MAX_IRQ, InterruptTable
from vmpin.host.procfs import Procfs, names_in, read_file
from vmpin.host.sysfs import cpu_list

#: In place of a number: the mask of interrupts that are yet to be set up.
DEFAULT = -1
_MOST_BYTES, _MOST_FDS, _MAX_NODE = 256 << 20, 65536, 1023
_CHUNK = 1 << 20
_GROUP = re.compile(r"/dev/vfio/(?:noiommu-)?([0-9]{1,9})")
_CHARACTER_DEVICE = re.compile(r"/dev/vfio/devices/(vfio[0-9]{1,9})")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class IrqFiles:
    """:param proc: the host's /proc. :param sys_root: the host's /sys."""

    def __init__(self, proc: Procfs, sys_root: str | os.PathLike[str]) -> None:
        self.proc, self.sys = proc, os.fspath(sys_root)
        self.irq = f"{proc.root}/irq"

    def interrupts(self) -> InterruptTable:
        """Read /proc/interrupts. :raises OSError: /proc/interrupts cannot be read."""
        return InterruptTable(_read_all(f"{self.proc.root}/interrupts"))

    def softirqs(self) -> InterruptTable:
        """Read /proc/softirqs. :raises OSError: /proc/softirqs cannot be read."""
        return InterruptTable(_read_all(f"{self.proc.root}/softirqs"), softirqs=True)

    def numbers(self) -> list[int]:
        """The interrupts that have files. :raises OSError: they cannot be listed."""
        try:
            names = sorted(os.listdir(self.irq))
        except FileNotFoundError:
            return []
        return [number for name in names if (number := parse_whole(name, MAX_IRQ)) is not None]

    def mask(self, number: int) -> CpuSet | None:
        """The CPUs that an interrupt may use; None if it is gone. With DEFAULT: those of new ones.
        :raises OSError: they cannot be read."""
        if number == DEFAULT:
            return parse_mask(self._read("default_smp_affinity").decode("ascii", "replace").strip())
        return _parsed_list(self._read(f"{number}/smp_affinity_list"))

    def effective(self, number: int) -> CpuSet | None:
        """The CPUs that an interrupt's controller chose of its mask; None where the kernel does not show that."""
        return cpu_list(f"{self.irq}/{number}/effective_affinity_list") or None

    def node(self, number: int) -> int | None:
        """The NUMA node of an interrupt's device; None for none. :raises OSError: it cannot be read."""
        return parse_whole(self._read(f"{number}/node").strip(), _MAX_NODE)

    def _read(self, name: str) -> bytes:
        """Read a file; b"" if its interrupt is gone, which for an open file is EIO (fs/proc/inode.c: use_pde)."""
        try:
            return read_file(f"{self.irq}/{name}") or b""
        except OSError as err:
            if err.errno != errno.EIO:
                raise
        return b""

    def fixed(self, number: int) -> bool:
        """Whether the mode of its files shows that an interrupt's mask cannot be set."""
        with contextlib.suppress(OSError):
            return number != DEFAULT and not os.stat(f"{self.irq}/{number}/smp_affinity_list").st_mode & 0o200
        return False

    def write(self, number: int, cpus: CpuSet) -> None:
        """Set an interrupt's mask. :raises OSError: EIO, EPERM: it cannot be set; ENOSPC: these CPUs have no vector
        left; EINVAL: none of them is online; ENOENT: it is gone."""
        name, text = ("default_smp_affinity", mask_text(cpus)) if number == DEFAULT else (
            f"{number}/smp_affinity_list", str(cpus))
        fd = os.open(f"{self.irq}/{name}", os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def vfio_devices(self, pid: int) -> Iterator[str]:
        """Find the PCI addresses of the devices that a VMM has by VFIO, on its command line or plugged in later: by
        its open groups, and since Linux 6.6 by the devices' own nodes."""
        try:
            targets = {target for _, target in self.proc.descriptors(pid, _MOST_FDS)}
        except OSError:
            return
        for target in targets:
            if group := _GROUP.fullmatch(target):
                yield from filter(_ADDRESS.fullmatch, names_in(f"{self.sys}/kernel/iommu_groups/{group[1]}/devices"))
            elif device := _CHARACTER_DEVICE.fullmatch(target):
                with contextlib.suppress(OSError):
                    name = os.path.basename(os.readlink(f"{self.sys}/class/vfio-dev/{device[1]}/device"))
                    if _ADDRESS.fullmatch(name):
                        yield name


@lru_cache(maxsize=1024)
def _parsed_list(raw: bytes) -> CpuSet | None:
    """Parse a CPU list; None for none. Thousands of interrupts have a few different masks."""
    with contextlib.suppress(CpuSetError):
        return CpuSet.parse(raw.decode("ascii", "replace")) or None
    return None


def parse_mask(text: str) -> CpuSet | None:
    """Parse a mask as the kernel prints it: groups of eight hexadecimal digits with commas, the highest CPUs first.

    >>> str(parse_mask("00000003,0000000f"))
    '0-3,32-33'
    """
    groups = text.split(",")
    if len(groups) > 256 or not all(len(group) == 8 for group in groups[1:]):
        return None
    values = [parse_whole(group, (1 << 32) - 1, base=16) for group in groups]
    bits = 0
    for value in values:
        if value is None:
            return None
        bits = bits << 32 | value
    with contextlib.suppress(CpuSetError):
        return CpuSet.from_bits(bits) or None
    return None


def mask_text(cpus: CpuSet) -> str:
    """The same of CPUs.

    >>> mask_text(CpuSet.parse("0-3,32-33"))
    '00000003,0000000f'
    """
    bits, groups = cpus.bits, list[str]()
    while bits or not groups:
        groups.append(f"{bits & 0xFFFFFFFF:08x}")
        bits >>= 32
    return ",".join(reversed(groups))


def _read_all(path: str) -> bytes:
    """Read a whole file of /proc, in steps: the kernel ends each read after a line."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    parts, size = [], 0
    try:
        while size < _MOST_BYTES and (part := os.read(fd, _CHUNK)):
            parts.append(part)
            size += len(part)
    finally:
        os.close(fd)
    return b"".join(parts)
